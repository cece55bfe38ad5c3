"""Names of statements: those of one query identifier are one, whatever constants they have.

A name holds no literal and no comment: somebody sent it, and it may be about a person.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.file.reader import Integers
from pgtare.observing.trace.file.records import CallKind
from pgtare.postgres.sql_text import normalised

#: Work of a session that belongs to no call: reading requests, sending answers.
OUTSIDE = "between calls"
_SUPPRESSED = "(text suppressed)"


@dataclass(frozen=True)
class StatementLabels:
    """The statement of each call, as an index into names (a text), query_ids (0: none) and texts.

    texts: all that were met of a statement, as sent, which differ in their constants.
    """

    names: list[str]
    query_ids: list[int]
    of_call: Integers
    texts: list[set[str]]


#: Made once for each ledger: all groupings and pages of one command use them.
_MADE: WeakKeyDictionary[Ledger, StatementLabels] = WeakKeyDictionary()


def statement_labels(ledger: Ledger) -> StatementLabels:
    """Which statement each call of a ledger belongs to.

    Its name is the first text that a client asked for, or, if there is none, of a nested call,
    without literals; of a text that is cut only if there is no other. Without identifiers, texts
    of one name are one statement.
    """
    found = _MADE.get(ledger)
    if found is None:
        found = _MADE[ledger] = _labels(ledger)
    return found


def _labels(ledger: Ledger) -> StatementLabels:
    calls = ledger.calls
    names: list[str] = []
    query_ids: list[int] = []
    texts: list[set[str]] = []
    whole: list[bool] = []
    known: dict[tuple[str, int | str], int] = {}
    of_call = np.zeros(len(calls), np.int64)
    if not len(calls):
        return StatementLabels([], [], of_call, [])
    keys = np.stack(
        [ledger.call_process, calls["text"].astype(np.int64), calls["query_id"], calls["kind"]],
        axis=1,
    )
    groups, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = np.asarray(inverse).ravel()
    numbers = np.zeros(len(groups), np.int64)
    # first those in which a client's own call is
    own = np.bincount(inverse[calls["depth"] == 0], minlength=len(groups)) > 0
    for i in np.argsort(~own, kind="stable").tolist():
        process, text_id, query_id, kind = groups[i].tolist()
        found = ledger.processes[process].stream.texts.get(text_id & 0xFFFFFFFFFFFFFFFF)
        query_id = query_id or (found.query_id if found else 0)
        text = found.text if found and not found.suppressed else None
        if found is None:
            text = ledger.trace.texts.get(query_id)
        label = (normalised(text) if text else "") or _without_text(query_id, kind, bool(found))
        complete = bool(text and not (found and found.cut))
        key = ("id", query_id) if query_id else ("text", label)
        if key not in known:
            known[key] = len(names)
            names.append(label)
            query_ids.append(query_id)
            texts.append(set())
            whole.append(complete)
        elif text and (_tells_nothing(names[known[key]]) or complete > whole[known[key]]):
            names[known[key]] = label
            whole[known[key]] = complete
        if text:
            texts[known[key]].add(text.strip())
        numbers[i] = known[key]
    return StatementLabels(_apart(names, query_ids), query_ids, numbers[inverse], texts)


def _tells_nothing(name: str) -> bool:
    return name == _SUPPRESSED or name.startswith("query ")


def _without_text(query_id: int, kind: int, suppressed: bool) -> str:
    if suppressed:
        return _SUPPRESSED
    if query_id:
        return f"query {query_id}"
    if kind in (CallKind.COMMIT, CallKind.ROLLBACK):
        return CallKind(kind).name
    return "(text not recorded)"


def _apart(names: list[str], query_ids: list[int]) -> list[str]:
    """Two statements of one text (of two users' tables, say) differ by their identifier."""
    seen = Counter(names)
    return [
        f"{name} /* query {query_id} */" if seen[name] > 1 and query_id else name
        for name, query_id in zip(names, query_ids, strict=True)
    ]
