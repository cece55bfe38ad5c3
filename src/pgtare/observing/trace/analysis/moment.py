"""What a session did when a trigger fired, from the trace that was kept because of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from pgtare.observing.trace.analysis.kept_state import kept_at, kept_because, state_then
from pgtare.observing.trace.analysis.ledger import Ledger, ends_of_work
from pgtare.observing.trace.analysis.texts import statement_labels
from pgtare.observing.trace.analysis.timeline import Process
from pgtare.observing.trace.documents import IncidentSession, InSameWait, KeptTrace, TimeOf
from pgtare.observing.trace.file.reader import Integers, Trace

#: So far apart are the clocks of the trigger and of the trace at most, in ns.
_APART = 10**7


@dataclass(frozen=True)
class IncidentMoment:
    """The last request, or the transaction, of a session up to when a trigger fired.

    begin, end: ns since 1970. process: an index into the ledger's. statement: the name of the
    outermost one that took longest; None: none was traced. goes_on: it had not been answered.
    idle_ns: since the request was answered; 0, if it goes on. transaction_ns: for how long the
    transaction has been open then; None: none was. lines: components and their ns, the longest
    first; they add up to the length of the request or transaction.
    """

    process: int
    begin: int
    end: int
    statement: str | None
    goes_on: bool
    idle_ns: int
    transaction_ns: int | None
    lines: tuple[tuple[str, float], ...]


def what_it_did(kept: KeptTrace, book: Ledger, trace: Trace) -> IncidentSession:
    """A kept trace with what its session did until then."""
    found, state = moment(book), state_then(trace)
    known = state.running if state else None
    return IncidentSession(
        **vars(kept),
        statement=found.statement if found else None,
        time=[TimeOf(name=name, total_ns=ns) for name, ns in found.lines] if found else [],
        goes_on=found.goes_on if found else known,
        idle_ns=found.idle_ns if found else None,
        transaction_ns=found.transaction_ns if found else None,
        state=state,
        same_wait=same_wait(trace),
    )


def same_wait(trace: Trace) -> InSameWait | None:
    """What a kept trace says of it; None: no such wait was long."""
    found = (kept_because(trace) or {}).get("same_wait")
    if not isinstance(found, Mapping):
        return None
    try:
        stated = {name: found[name] for name in InSameWait.model_fields}
        return InSameWait(**stated | {"at": datetime.fromisoformat(str(stated["at"]))})
    except (KeyError, ValueError):  # a damaged file
        return None


def moment(ledger: Ledger) -> IncidentMoment | None:
    """Of the session whose trace was kept; None: the trace has nothing of it, or is another's."""
    kept, at = kept_because(ledger.trace), kept_at(ledger.trace)
    if kept is None or at is None:
        return None
    try:
        pid = int(kept["pid"])
    except (KeyError, TypeError, ValueError, OverflowError):  # a damaged file
        return None
    for i, process in enumerate(ledger.processes):
        if process.leader_pid is None and process.ring.pid == pid and len(process.calls):
            spans = process.transactions if kept.get("cause") == "transaction" else process.requests
            return _moment(ledger, i, at, spans)
    return None


def _moment(ledger: Ledger, i: int, at: int, spans: Integers) -> IncidentMoment | None:
    process = ledger.processes[i]
    before = spans[spans[:, 0] <= at + _APART] if len(spans) else spans
    calls = process.calls
    begin, end = before[-1].tolist() if len(before) else (process.begin, process.begin)
    # a call of which the request has no end yet
    last = int(np.argmax(calls["start"]))
    if int(calls["start"][last]) >= end and int(calls["start"][last]) <= at + _APART:
        begin, end = int(calls["start"][last]), int(calls["end"][last])
    goes_on = end > at + _APART or (process.end <= end and not _answered(process, end))
    state = state_then(ledger.trace)
    if state is not None:
        goes_on = state.running
        if goes_on and end <= at and _answered(process, end):
            begin, end = at - state.for_ns, at  # a request that is not traced
    open_since = [b for b, e in process.transactions.tolist() if b <= at and e >= min(at, end)]
    return IncidentMoment(
        i,
        begin,
        end,
        _statement(ledger, i, begin, end),
        goes_on,
        0 if goes_on else max(at - end, 0),
        max(at - open_since[-1], 0) if open_since else None,
        _lines(ledger, i, begin, end),
    )


def _answered(process: Process, end: int) -> bool:
    """The last of a process's requests may have no answer yet: then the trace tells of none."""
    return bool((process.stream.requests["end"] + process.zero == end).any())


def _statement(ledger: Ledger, i: int, begin: int, end: int) -> str | None:
    """The name of the outermost statement that took longest in a span of time."""
    labels, calls = statement_labels(ledger), ledger.calls
    ends = ends_of_work(calls)
    of = np.flatnonzero(
        (ledger.call_process == i) & (calls["depth"] == 0) & (calls["start"] < end) & (ends > begin)
    )
    if not len(of):
        return None
    length = np.minimum(ends[of], end) - np.maximum(calls["start"][of], begin)
    ns = np.bincount(labels.of_call[of], length)
    return labels.names[int(ns.argmax())]


def _lines(ledger: Ledger, i: int, begin: int, end: int) -> tuple[tuple[str, float], ...]:
    entries = ledger.entries
    start = np.where(
        entries.top >= 0, np.append(ledger.calls["start"], 0)[entries.top], entries.begin
    )
    of = entries.of((entries.process == i) & (start >= begin) & (start < end))
    met, key = np.unique(of.component, return_inverse=True)
    ns = np.bincount(np.asarray(key).ravel(), of.ns, len(met))
    order = np.argsort(-ns, kind="stable").tolist()
    return tuple((ledger.name(int(met[k])), float(ns[k])) for k in order)
