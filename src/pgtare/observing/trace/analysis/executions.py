"""How often statements ran: the execution that each outermost call of a session belongs to."""

from __future__ import annotations

import numpy as np

from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.file.reader import Integers
from pgtare.observing.trace.file.records import CallKind

_RUNS = (CallKind.EXECUTE, CallKind.UTILITY)
_BEFORE = (CallKind.PARSE, CallKind.BIND, CallKind.PLAN)


def runs(ledger: Ledger, of_call: Integers, tops: Integers) -> tuple[Integers, Integers]:
    """For each call of a ledger: the number of its run, and 1 if it is the run itself.

    A run is an execution or the call of a utility statement. What prepares a statement belongs to
    its next run in that session, fetches and commits to the last one. of_call: the statement of
    each call. tops: the outermost calls; for others the number is -1.
    """
    number = np.full(len(ledger.calls), -1, np.int64)
    itself = np.zeros(len(ledger.calls), np.int64)
    if not len(tops):
        return number, itself
    kind = ledger.calls["kind"]
    order = np.lexsort((ledger.calls["start"][tops], of_call[tops], ledger.call_process[tops]))
    tops = tops[order]
    new = np.concatenate(
        [[True], (np.diff(ledger.call_process[tops]) != 0) | (np.diff(of_call[tops]) != 0)]
    )
    group = np.cumsum(new) - 1
    ran = np.isin(kind[tops], _RUNS)
    before = np.cumsum(ran)[new] - ran[new]
    most = np.maximum(np.bincount(group, ran), 1).astype(np.int64)
    within = np.cumsum(ran) - before[group] + np.isin(kind[tops], _BEFORE)
    number[tops] = before[group] + group + np.clip(within, 1, most[group])
    itself[tops] = ran
    return number, itself
