"""The response-time profile: where the wall time of sessions went, in lines that add up to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from pgtare.errors import UsageError
from pgtare.observing.trace.analysis import plan_nodes
from pgtare.observing.trace.analysis.ledger import CLIENT, MISSING, Ledger, LedgerEntries
from pgtare.observing.trace.analysis.plan_nodes import Bookings
from pgtare.observing.trace.analysis.texts import OUTSIDE, StatementLabels, statement_labels
from pgtare.observing.trace.documents import ProfileLine, TraceProfile
from pgtare.observing.trace.file.reader import Integers, Ring
from pgtare.observing.trace.file.records import CallKind

#: Statements that a heading names, and characters of each.
_NAMED, _WIDTH = 3, 200
Grouping = Literal["event", "class", "statement", "call", "node", "relation", "session"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
BUCKETS = 64
#: What counts as a run of a statement, and what prepares one.
_RUNS = (CallKind.EXECUTE, CallKind.UTILITY)
_BEFORE = (CallKind.PARSE, CallKind.BIND, CallKind.PLAN)
#: What time outside of calls is called.
_OUTSIDE = (OUTSIDE, "client", "not recorded")


def bucket(length_ns: Integers) -> Integers:
    """The power of two below each length: bucket b holds lengths from 2^b up to 2^(b+1) ns.

    A length of 0 or 1 ns is in bucket 0.
    """
    bits = np.maximum(length_ns, 1).astype(np.float64).view(np.int64) >> 52
    # the conversion rounds 2^k - 1 up to 2^k from 2^53 on: those are 104 days and more
    return np.asarray(bits - 1023, dtype=np.int64)


@dataclass(frozen=True)
class Scope:
    """What part of a trace is looked at: everything, or what all the fields that are set name.

    pids; statement: a text or query identifier, outermost, or, if there is none such, a part of a
    text; workers: parallel workers instead of sessions. words: name all of that but the statement.
    """

    pids: frozenset[int] | None = None
    statement: str | None = None
    workers: bool = False
    busy: bool = False
    words: str = field(default="", compare=False)


def profile(ledger: Ledger, by: Grouping = "event", scope: Scope | None = None) -> TraceProfile:
    """The profile of a trace. Raises UsageError if the scope holds nothing."""
    (found,) = profiles(ledger, (by,), scope)
    return found


def profiles(
    ledger: Ledger, groupings: Sequence[Grouping], scope: Scope | None = None
) -> list[TraceProfile]:
    """The profile by each of some groupings, of bookings that are selected once."""
    scope = scope or Scope()
    entries = select(ledger, scope)
    # the statements that it took have names
    taken = [] if scope.statement is None else [_quoted(_names_by_time(ledger, entries))]
    heading = _joined(scope, taken) or "all sessions"
    return [_profile(ledger, by, scope, entries, heading) for by in groupings]


def _profile(
    ledger: Ledger, by: Grouping, scope: Scope, entries: LedgerEntries, heading: str
) -> TraceProfile:
    names, key, ns, times = _GROUPERS[by](ledger, entries)
    if by in ("event", "class"):
        # a wait that was cut is still one, of its whole length; if all of an event began before
        # what is looked at, their rests count
        times = np.where(np.bincount(key, times, minlength=1)[key] > 0, times, 1)
        lines = _lines(names, key, ns, times, entries.whole)
        shares = {ledger.name(event): share for event, share in ledger.kernel_share.items()}
        for line in lines:
            line.kernel_ns = shares.get(line.name, 0.0) * line.total_ns
    else:
        lines = _lines(names, key, ns, times, ns / np.maximum(times, 1))
    total = float(entries.ns.sum())
    for line in lines:
        line.share_pct = 100 * line.total_ns / total if total else 0.0
    return TraceProfile(
        scope=heading,
        by=by,
        total_ns=total,
        sessions=len(np.unique(entries.process)),
        workers=scope.workers,
        measured=any(p.stream.rowsources for p in ledger.processes),
        lines=sorted(lines, key=lambda line: -line.total_ns),
        notes=list(ledger.notes),
    )


def select(ledger: Ledger, scope: Scope) -> LedgerEntries:
    """The bookings within a scope. Raises UsageError if there are none."""
    entries = ledger.entries
    kept = np.ones(len(entries), bool)
    worker = np.array([p.leader_pid is not None for p in ledger.processes], bool)
    if len(worker):
        kept &= worker[entries.process] == scope.workers
    if scope.pids is not None:
        pids = np.array([p.leader_pid or p.ring.pid for p in ledger.processes])
        kept &= np.isin(pids[entries.process], list(scope.pids)) if len(pids) else False
    if scope.statement is not None:
        kept &= _of_statement(ledger, entries, scope.statement)
    if scope.busy:
        kept &= ~np.isin(entries.component, [CLIENT, MISSING])
    found = entries.of(kept)
    if not len(found):
        wanted = [] if scope.statement is None else [f"statement {scope.statement}"]
        words = _joined(scope, wanted) or "sessions"
        raise UsageError(f"the trace holds nothing of {words}: {_listing(scope)}")
    return found


def _joined(scope: Scope, words: list[str]) -> str:
    return ", ".join([scope.words, *words] if scope.words else words)


def _names_by_time(ledger: Ledger, entries: LedgerEntries) -> list[str]:
    """The outermost statements of some bookings, that with most time first."""
    labels = statement_labels(ledger)
    ns = np.bincount(labels.of_call[entries.top], entries.ns)
    order = np.argsort(-ns, kind="stable")
    return [labels.names[i] for i in order[ns[order] > 0].tolist()]


def _quoted(names: list[str]) -> str:
    """Statements as a heading names them: some of many, each on one line, cut."""
    lines = [" ".join(name.split()) for name in names[:_NAMED]]
    quoted = "; ".join(line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…" for line in lines)
    if len(names) == 1:
        return f"statement {quoted}"
    more = f"; {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} statements: {quoted}{more}"


def _listing(scope: Scope) -> str:
    """What tells what there is to choose from."""
    if scope.statement is not None:
        return "`pgtare trace statements TRACE` lists its statements"
    if scope.workers:
        return "no parallel worker was traced"
    return "`pgtare trace profile TRACE --by session` lists its sessions"


def _of_statement(ledger: Ledger, entries: LedgerEntries, wanted: str) -> npt.NDArray[np.bool_]:
    labels = statement_labels(ledger)
    chosen = np.array(_matches(labels, wanted), bool)
    which = _looked_up(labels.of_call, entries.top)
    hit = chosen[which] if len(chosen) else np.zeros(len(which), bool)
    return np.asarray((entries.top >= 0) & hit)


def _matches(labels: StatementLabels, wanted: str) -> list[bool]:
    """Of each statement whether it is what is wanted; if none is, whether a text contains that."""
    texts = [{name, *found} for name, found in zip(labels.names, labels.texts, strict=True)]
    exact = [
        wanted in found or (query_id != 0 and wanted == str(query_id))
        for found, query_id in zip(texts, labels.query_ids, strict=True)
    ]
    if any(exact):
        return exact
    part = wanted.lower()
    return [any(part in text.lower() for text in found) for found in texts]


def _by_event(ledger: Ledger, entries: LedgerEntries) -> Bookings:
    met, key = np.unique(entries.component, return_inverse=True)
    return [ledger.name(int(c)) for c in met], np.asarray(key), entries.ns, entries.times


def _by_class(ledger: Ledger, entries: LedgerEntries) -> Bookings:
    """By the class of wait events; what is no wait as by event."""
    names, key, ns, times = _by_event(ledger, entries)
    return [name.partition("/")[0] for name in names], key, ns, times


def _by_statement(ledger: Ledger, entries: LedgerEntries) -> Bookings:
    """By outermost statement: for each run once, whatever calls and components its time has."""
    labels = statement_labels(ledger)
    inside = _looked_up(labels.of_call, entries.top) + len(_OUTSIDE)
    key = np.where(entries.top >= 0, inside, _outside(entries))
    return _by_run([*_OUTSIDE, *labels.names], key, ledger, entries)


def _outside(entries: LedgerEntries) -> Integers:
    """Of bookings outside of calls, the number of their name."""
    kinds = [entries.component == CLIENT, entries.component == MISSING]
    return np.select(kinds, [1, 2], default=0)


def _by_run(names: list[str], key: Integers, ledger: Ledger, entries: LedgerEntries) -> Bookings:
    run, itself = _runs(ledger, np.unique(entries.top[entries.top >= 0]))
    unit = np.where(entries.top >= 0, _looked_up(run, entries.top), -1)
    return _once_each(names, key, entries, unit, _looked_up(itself, entries.top))


def _runs(ledger: Ledger, tops: Integers) -> tuple[Integers, Integers]:
    """For each call of a ledger: the number of its run, and 1 if it is the run itself.

    A run is an execution or the call of a utility statement. What prepares a statement belongs to
    its next run in that session, fetches and commits to the last one. tops: the outermost calls;
    for others the number is -1.
    """
    of_call = statement_labels(ledger).of_call
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


def _looked_up(values: Integers, index: Integers) -> Integers:
    """What is at each index; 0 at -1, also if there are no values at all."""
    return np.append(values, 0)[index]


def _by_call(ledger: Ledger, entries: LedgerEntries) -> Bookings:
    names = [*_OUTSIDE, *(kind.name.lower() for kind in CallKind)]
    kinds = np.clip(ledger.calls["kind"].astype(np.int64), 1, len(CallKind)) + 2
    key = np.where(entries.call >= 0, _looked_up(kinds, entries.call), _outside(entries))
    times = _looked_up(ledger.fetches(), entries.call)
    return _once_each(names, key, entries, entries.call, times)


def _by_session(ledger: Ledger, entries: LedgerEntries) -> Bookings:
    names = [who(p.ring) for p in ledger.processes]
    return _by_run(names, entries.process, ledger, entries)


def who(ring: Ring) -> str:
    """A session as a person names it: its process number, user, database and application."""
    return f"{ring.pid} {ring.user or '?'}@{ring.database or '?'} {ring.application or ''}".strip()


def _once_each(
    names: list[str], key: Integers, entries: LedgerEntries, unit: Integers, times: Integers
) -> Bookings:
    """Joined so that the bookings of one unit are one, with all its time, counted as times tells.

    A unit of -1 is none: what is booked outside of calls adds its time and is not counted.
    """
    order = np.lexsort((unit, key))
    k, u = key[order], unit[order]
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(k) != 0) | (np.diff(u) != 0)]))
    ns = np.add.reduceat(entries.ns[order], begins)
    counted = np.maximum.reduceat(times[order], begins)
    return names, k[begins], ns, np.where(u[begins] >= 0, counted, 0)


_GROUPERS: dict[Grouping, Callable[[Ledger, LedgerEntries], Bookings]] = {
    "event": _by_event,
    "class": _by_class,
    "statement": _by_statement,
    "call": _by_call,
    "node": partial(plan_nodes.grouped, label=plan_nodes.kind_label),
    "relation": partial(plan_nodes.grouped, label=plan_nodes.relation_label),
    "session": _by_session,
}


def _lines(
    names: list[str],
    key: Integers,
    ns: npt.NDArray[np.float64],
    times: Integers,
    length: npt.NDArray[np.float64],
) -> list[ProfileLine]:
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
        total = float(ns[of].sum())
        begun = of[times[of] > 0]
        if not len(begun):
            found.append(ProfileLine(name=name, total_ns=total))
            continue
        lengths, weights = length[begun], times[begun]
        counts = np.bincount(bucket(lengths.astype(np.int64)), weights, minlength=BUCKETS)
        found.append(
            ProfileLine(
                name=name,
                total_ns=total,
                times=int(weights.sum()),
                mean_ns=float(np.average(lengths, weights=weights)),
                min_ns=float(lengths.min()),
                max_ns=float(lengths.max()),
                histogram=[int(c) for c in counts[:BUCKETS]],
            )
        )
    return found
