"""Clients behind pooled connections: what each of them had done, over all sessions."""

from __future__ import annotations

import re
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from pgtare.errors import UsageError
from pgtare.observing.trace.analysis.ledger import CLIENT, CPU, MISSING, OWN, Ledger, outermost
from pgtare.observing.trace.analysis.timeline import Process
from pgtare.observing.trace.documents import TraceClient
from pgtare.observing.trace.file.reader import Integers

Way = Literal["application", "address", "user", "trace"]
WAYS: tuple[Way, ...] = get_args(Way)
#: What belongs to no client: time of sessions between requests, if a way tells by statement.
NOBODY = "(no traceparent)"

#: A text may be cut within a comment.
_BLOCK_COMMENT = re.compile(r"/\*(.*?)(?:\*/|\Z)", re.DOTALL)
_LINE_COMMENT = re.compile(r"--([^\r\n]*)")
#: A key is tried from its first letter only, and never shorter: it may be long.
_PAIR = re.compile(
    r"""(?<![\w%.-])(?P<key>[A-Za-z_%0-9.-]++)["']?\s*+[=:]\s*+
    (?:'(?P<single>(?:[^'\\]|\\.)*+)'|"(?P<double>(?:[^"\\]|\\.)*+)"|(?P<bare>[^\s,;'"*]++))""",
    re.VERBOSE | re.DOTALL,
)
#: Of W3C's version 00, or of a later one with the same fields. No identifier is all zeros.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def trace_id(text: str) -> str | None:
    """The identifier of the distributed trace that a statement belongs to; None: none stated.

    That of the last comment that has one.
    """
    for comment in _comments(text):
        if "trace" not in comment:
            continue
        for readable in (comment, urllib.parse.unquote(comment)):  # the signs may be encoded, too
            stated = _fields(readable).get("traceparent", "")
            found = _TRACEPARENT.fullmatch(stated.strip().strip("'\""))
            if found:
                return found[1]
    return None


def _comments(text: str) -> Iterator[str]:
    """The last first; those to the end of a line after all others.

    Literals are not told apart: with a backslash in one, nobody can say where it ends.
    """
    for pattern in (_BLOCK_COMMENT, _LINE_COMMENT):
        yield from reversed(pattern.findall(text))


def _fields(comment: str) -> dict[str, str]:
    return {
        urllib.parse.unquote(pair["key"]): urllib.parse.unquote(
            re.sub(r"\\(['\"])", r"\1", pair["single"] or pair["double"] or pair["bare"] or "")
        )
        for pair in _PAIR.finditer(comment)
    }


def names(ledger: Ledger, way: Way) -> tuple[list[str], Integers]:
    """The clients, and of each booking the client's number."""
    if way == "application":
        return _applications(ledger)
    if way == "trace":
        return _distributed_traces(ledger)
    field = "client" if way == "address" else "user"
    values = [getattr(p.ring, field) or f"(no {way})" for p in ledger.processes]
    unique = list(dict.fromkeys(values))
    of_process = np.array([unique.index(name) for name in values], np.int64)
    return unique, of_process[ledger.entries.process]


def _distributed_traces(ledger: Ledger) -> tuple[list[str], Integers]:
    """By the comment of the outermost call, of parallel workers by that of their leader's."""
    unique = [NOBODY]
    numbers = {NOBODY: 0}
    of_call = np.zeros(len(ledger.calls) + 1, np.int64)  # the last: no call
    known: dict[tuple[int, int], int] = {}
    for i, (process, text) in enumerate(
        zip(ledger.call_process.tolist(), ledger.calls["text"].tolist(), strict=True)
    ):
        if (process, text) not in known:
            found = ledger.processes[process].stream.texts.get(text)
            name = (trace_id(found.text) if found else None) or NOBODY
            if name not in numbers:
                numbers[name] = len(unique)
                unique.append(name)
            known[process, text] = numbers[name]
        of_call[i] = known[process, text]
    return unique, of_call[_clients_calls(ledger)]


def _clients_calls(ledger: Ledger) -> Integers:
    """Of each booking the outermost call of a client session in which it was made; -1: none."""
    e = ledger.entries
    if not len(e):
        return e.top
    worker = np.array([p.leader_pid is not None for p in ledger.processes], bool)
    return np.where(worker[e.process], _served_calls(ledger, worker)[e.process], e.top)


def _served_calls(ledger: Ledger, worker: npt.NDArray[np.bool_]) -> Integers:
    """Of each parallel worker the outermost call of its leader that it worked for; -1: none.

    Such a call begins before its workers do and ends after them.
    """
    served = np.full(len(worker), -1, np.int64)
    leader = _sessions(ledger)
    middle = np.array([p.begin + (p.end - p.begin) // 2 for p in ledger.processes], np.int64)
    for i in np.unique(leader[worker & (leader >= 0)]).tolist():
        mine = worker & (leader == i)
        call = outermost(ledger.processes[i].calls, middle[mine])
        first = np.searchsorted(ledger.call_process, i)
        served[mine] = np.where(call >= 0, call + first, -1)
    return served


def _sessions(ledger: Ledger) -> Integers:
    """Of each process the client session that it is, or works for, by index; -1: not traced."""
    of_pid: dict[int, list[int]] = defaultdict(list)
    for i, p in enumerate(ledger.processes):
        if p.leader_pid is None:
            of_pid[p.ring.pid].append(i)
    found = [
        i if p.leader_pid is None else _leader(ledger, of_pid[p.leader_pid], p)
        for i, p in enumerate(ledger.processes)
    ]
    return np.array(found, np.int64)


def _leader(ledger: Ledger, candidates: list[int], worker: Process) -> int:
    """Of the sessions of one pid the one of the worker's time; -1: there is none at all."""
    since = {i: ledger.processes[i].zero for i in candidates}
    earlier = [i for i in candidates if since[i] <= worker.begin]
    if earlier:
        return max(earlier, key=lambda i: since[i])
    return min(candidates, key=lambda i: since[i], default=-1)


def _applications(ledger: Ledger) -> tuple[list[str], Integers]:
    """By the name that the session had when a booking began: a pool's sessions take several."""
    unique: dict[str, int] = {}
    e = ledger.entries
    of = np.zeros(len(e), np.int64)
    by_process = np.argsort(e.process, kind="stable")
    bounds = np.searchsorted(e.process[by_process], np.arange(len(ledger.processes) + 1))
    for i, session in enumerate(_sessions(ledger).tolist()):
        p = ledger.processes[session if session >= 0 else i]
        first = p.stream.session.get("application") or p.ring.application
        names = [first, *(name for _, name in p.stream.applications)]
        numbers = np.array(
            [unique.setdefault(name or "(no application)", len(unique)) for name in names], np.int64
        )
        since = np.array([p.zero + when for when, _ in p.stream.applications], np.int64)
        mine = by_process[bounds[i] : bounds[i + 1]]
        of[mine] = numbers[np.searchsorted(since, e.begin[mine], "right")]
    return list(unique), of


def clients(ledger: Ledger, way: Way) -> list[TraceClient]:
    """Every client with the time of its work, the busiest first."""
    unique, of = names(ledger, way)
    e = ledger.entries
    busy = ~np.isin(e.component, [CLIENT, MISSING])
    cpu = np.isin(e.component, [CPU, OWN])
    n = len(unique)
    sums = [np.bincount(of[k], e.ns[k], minlength=n) for k in (busy, cpu, e.component >= 0)]
    pid = [p.leader_pid or p.ring.pid for p in ledger.processes]
    sessions: dict[int, set[int]] = defaultdict(set)
    calls: dict[int, set[int]] = defaultdict(set)
    for client, process, top in np.unique(
        np.stack([of, e.process, e.top], axis=1), axis=0
    ).tolist():
        sessions[client].add(pid[process])
        if top >= 0 and ledger.processes[process].leader_pid is None:
            calls[client].add(top)
    found = [
        TraceClient.of_row((name, len(sessions[i]), len(calls[i]), *(float(s[i]) for s in sums)))
        for i, name in enumerate(unique)
        if sessions[i]
    ]
    return sorted(found, key=lambda c: -c.busy_ns)


def only(ledger: Ledger, way: Way, client: str) -> Ledger:
    """The ledger of one client. Raises UsageError if there is none of that name."""
    unique, of = names(ledger, way)
    if client not in unique:
        raise UsageError(
            f"the trace has no client {client} by {way}: `pgtare trace clients` lists them"
        )
    return replace(ledger, entries=ledger.entries.of(of == unique.index(client)))
