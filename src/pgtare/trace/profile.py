"""The response-time profile: where the wall time of sessions went, in lines that add up to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgtare.errors import UsageError
from pgtare.trace import nodes
from pgtare.trace.aggregate import BUCKETS, bucket
from pgtare.trace.ledger import CLIENT, MISSING, Entries, Ledger
from pgtare.trace.stream import CallKind
from pgtare.trace.texts import OUTSIDE, statement_labels

GROUPINGS = ("event", "statement", "call", "node", "relation", "session")


@dataclass(frozen=True)
class Line:
    """A line of a profile; times in ns. A time is a wait, or the CPU (and so on) of one call.

    kernel_ns: of waits, what the kernel worked (estimated), part of ns.
    """

    name: str
    ns: float
    times: int
    mean_ns: float
    min_ns: float
    max_ns: float
    histogram: tuple[int, ...]
    kernel_ns: float = 0.0


@dataclass(frozen=True)
class Profile:
    """Lines that add up to total_ns. sessions: of how many; of parallel workers, if workers.

    measured: row sources are in the trace.
    """

    scope: str
    by: str
    total_ns: float
    lines: tuple[Line, ...]
    sessions: int
    notes: tuple[str, ...] = ()
    workers: bool = False
    measured: bool = False

    def share(self, line: Line) -> float:
        """In percent."""
        return 100 * line.ns / self.total_ns if self.total_ns else 0.0


@dataclass(frozen=True)
class Scope:
    """What part of a trace is looked at: everything, or what all the fields that are set name.

    pids; transaction: its number within a session, from 1; statement: a label or query
    identifier, outermost, or, where there is none such, a part of a label; workers: parallel
    workers instead of sessions.
    """

    pids: frozenset[int] | None = None
    transaction: int | None = None
    statement: str | None = None
    workers: bool = False
    busy: bool = False
    words: str = field(default="", compare=False)


def check_grouping(by: str) -> None:
    """Raise UsageError where there is no such grouping."""
    if by not in GROUPINGS:
        raise UsageError(f"--by {by}: choose among {', '.join(GROUPINGS)}")


def profile(ledger: Ledger, by: str = "event", scope: Scope | None = None) -> Profile:
    """The profile of a trace. Raises UsageError where the scope holds nothing."""
    check_grouping(by)
    scope = scope or Scope()
    entries = select(ledger, scope)
    names, key, ns, times = _grouped(ledger, by, entries)
    # a wait that was cut is still one, of its whole length
    lines = _lines(names, key, ns, times, entries.whole if ns is entries.ns else ns)
    if by == "event":
        lines = [_with_kernel(ledger, line, entries) for line in lines]
    return Profile(
        scope.words or "all sessions", by, float(entries.ns.sum()),
        tuple(sorted(lines, key=lambda line: -line.ns)),
        len(np.unique(entries.process)), tuple(ledger.notes), scope.workers,
        any(p.stream.rowsources for p in ledger.processes),
    )  # fmt: skip


def select(ledger: Ledger, scope: Scope) -> Entries:
    """The bookings within a scope. Raises UsageError where there are none."""
    entries = ledger.entries
    kept = np.ones(len(entries), bool)
    worker = np.array([p.leader_pid is not None for p in ledger.processes], bool)
    if len(worker):
        kept &= worker[entries.process] == scope.workers
    if scope.pids is not None:
        pids = np.array([p.leader_pid or p.ring.pid for p in ledger.processes])
        kept &= np.isin(pids[entries.process], list(scope.pids)) if len(pids) else False
    if scope.transaction is not None:
        kept &= entries.transaction == scope.transaction - 1
    if scope.statement is not None:
        kept &= _of_statement(ledger, entries, scope.statement)
    if scope.busy:
        kept &= ~np.isin(entries.component, [CLIENT, MISSING])
    found = entries.of(kept)
    if not len(found):
        raise UsageError(
            f"the trace holds nothing of {scope.words or 'sessions'}: `pgtare trace statements` "
            "lists what it holds"
        )
    return found


def _of_statement(ledger: Ledger, entries: Entries, wanted: str) -> npt.NDArray[np.bool_]:
    labels = statement_labels(ledger)
    exact = [
        wanted in (label, str(query_id))
        for label, query_id in zip(labels.names, labels.query_ids, strict=True)
    ]
    part = [wanted.lower() in label.lower() for label in labels.names]
    chosen = np.array(exact if any(exact) else part, bool)
    which = _looked_up(labels.of_call, entries.top)
    hit = chosen[which] if len(chosen) else np.zeros(len(which), bool)
    return np.asarray((entries.top >= 0) & hit)


_Grouped = tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]


def _grouped(ledger: Ledger, by: str, entries: Entries) -> _Grouped:
    """Names, and for each part of a booking: the number of its name, its ns and its times."""
    return _GROUPERS[by](ledger, entries)


def _by_event(ledger: Ledger, entries: Entries) -> _Grouped:
    met, key = np.unique(entries.component, return_inverse=True)
    return [ledger.name(int(c)) for c in met], np.asarray(key), entries.ns, entries.times


def _by_statement(ledger: Ledger, entries: Entries) -> _Grouped:
    """By outermost statement: for each call once, whatever components its time has."""
    labels = statement_labels(ledger)
    outside = [OUTSIDE, "client", "not recorded"]
    where = np.select(
        [entries.component == CLIENT, entries.component == MISSING], [1, 2], default=0
    )
    key = np.where(entries.top >= 0, _looked_up(labels.of_call, entries.top) + len(outside), where)
    return _once_a_call([*outside, *labels.names], key, entries, entries.top)


def _looked_up(
    values: npt.NDArray[np.int64], index: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """What stands at each index; 0 at -1, also where there are no values at all."""
    return np.append(values, 0)[index]


def _by_call(ledger: Ledger, entries: Entries) -> _Grouped:
    names = [OUTSIDE, "client", "not recorded", *(kind.name.lower() for kind in CallKind)]
    where = np.select(
        [entries.component == CLIENT, entries.component == MISSING], [1, 2], default=0
    )
    kinds = np.clip(ledger.calls["kind"].astype(np.int64), 1, len(CallKind)) + 2
    key = np.where(entries.call >= 0, _looked_up(kinds, entries.call), where)
    return _once_a_call(names, key, entries, entries.call)


def _by_session(ledger: Ledger, entries: Entries) -> _Grouped:
    names = [who(p.ring) for p in ledger.processes]
    return names, entries.process, entries.ns, entries.times


def who(ring: object) -> str:
    """A session as a person names it: its process number, user, database and application."""
    user = getattr(ring, "user", None) or "?"
    database = getattr(ring, "database", None) or "?"
    application = getattr(ring, "application", None) or ""
    return f"{getattr(ring, 'pid', 0)} {user}@{database} {application}".strip()


def _once_a_call(
    names: list[str],
    key: npt.NDArray[np.int64],
    entries: Entries,
    call: npt.NDArray[np.int64],
) -> _Grouped:
    """Joined so that one call (or booking outside of calls) counts once, with all its time."""
    alone = np.where(call >= 0, -1, np.arange(len(call)))
    order = np.lexsort((alone, call, key))
    k, c, a = key[order], call[order], alone[order]
    new = np.concatenate([[True], (np.diff(k) != 0) | (np.diff(c) != 0) | (np.diff(a) != 0)])
    begins = np.flatnonzero(new)
    ns = np.add.reduceat(entries.ns[order], begins)
    return names, k[begins], ns, np.ones(len(begins), np.int64)


def _by_node(ledger: Ledger, entries: Entries) -> _Grouped:
    return nodes.grouped(ledger, entries, nodes.kind_label)


def _by_relation(ledger: Ledger, entries: Entries) -> _Grouped:
    return nodes.grouped(ledger, entries, nodes.relation_label)


_GROUPERS: dict[str, Callable[[Ledger, Entries], _Grouped]] = {
    "event": _by_event,
    "statement": _by_statement,
    "call": _by_call,
    "node": _by_node,
    "relation": _by_relation,
    "session": _by_session,
}


def _lines(
    names: list[str],
    key: npt.NDArray[np.int64],
    ns: npt.NDArray[np.float64],
    times: npt.NDArray[np.int64],
    length: npt.NDArray[np.float64],
) -> list[Line]:
    # lines of one name are one line
    unique = {name: i for i, name in enumerate(dict.fromkeys(names))}
    key = np.array([unique[name] for name in names], np.int64)[key] if len(key) else key
    order = np.argsort(key, kind="stable")
    found = []
    names = list(unique)
    bounds = np.searchsorted(key[order], np.arange(len(names) + 1))
    for i, name in enumerate(names):
        of = order[bounds[i] : bounds[i + 1]]
        if not len(of) or not ns[of].sum():
            continue
        n = int(times[of].sum()) or len(of)  # only the rests of waits that began elsewhere
        begun = of[times[of] > 0]
        lengths = length[begun] if len(begun) else ns[of]
        counts = np.bincount(bucket(lengths.astype(np.int64)), minlength=BUCKETS)[:BUCKETS]
        total = float(ns[of].sum())
        found.append(
            Line(
                name, total, n, float(lengths.mean()), float(lengths.min()), float(lengths.max()),
                tuple(int(c) for c in counts),
            )
        )  # fmt: skip
    return found


def _with_kernel(ledger: Ledger, line: Line, entries: Entries) -> Line:
    for event, share in ledger.kernel_share.items():
        if ledger.name(event) == line.name:
            return Line(**{**line.__dict__, "kernel_ns": share * line.ns})
    return line
