"""Who holds up whom: from each waiter along its blockers to those who wait for nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgtare.observing.findings.observation import (
    Observation,
    SampledSession,
    SessionsSample,
)

#: Longer paths are not followed.
_LONGEST = 50


@dataclass(frozen=True)
class RootPath:
    """How a waiter comes to a root.

    root: its process, 0 for a prepared transaction. between: those who wait in between, the
    nearest to the root last. ring: they wait for each other, all of `between`.
    """

    root: int
    between: tuple[int, ...]
    ring: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    """Whom a session waited for at one time, and what these did then, as far as it was seen."""

    at: float
    blockers: tuple[int, ...]
    holders: list[SampledSession | None]

    def may_hold(self, rows: Mapping[int, SampledSession]) -> bool:
        """Whether none of them is in another transaction now, or gone. rows: of now.

        What holds a lock outside of a transaction is idle, and in samples only if asked for.
        """
        for holder in self.holders:
            if holder is None or holder.xact_us is None:
                continue
            now = rows.get(holder.pid)
            if now is None or (now.started_us, now.xact_us) != (holder.started_us, holder.xact_us):
                return False
        return True


class BlockerGraph:
    """The edges of each sample; what one does not show, another of the same statement may."""

    def __init__(self, observation: Observation) -> None:
        self._locks = observation.locks
        self._known: dict[tuple[int, int | None], list[_Asked]] = {}
        for sample in observation.samples:  # a later sample may know whom an earlier wait was for
            self._learn(sample)

    def _learn(self, sample: SessionsSample) -> None:
        rows = {one.pid: one for one in sample.sessions}
        for one in sample.sessions:
            if one.blockers:
                asked = _Asked(sample.at, one.blockers, [rows.get(pid) for pid in one.blockers])
                self._known.setdefault((one.pid, one.query_us), []).append(asked)

    def _inherited(
        self, one: SampledSession, at: float, rows: Mapping[int, SampledSession]
    ) -> tuple[int, ...]:
        """Whom it waited for when it was asked for next, or before, if these are still there."""
        known = self._known.get((one.pid, one.query_us), ())
        there = [asked for asked in known if asked.may_hold(rows)]
        return min(there, key=lambda asked: abs(asked.at - at)).blockers if there else ()

    def edges(self, sample: SessionsSample) -> dict[int, tuple[int, ...]]:
        """Whom each waiter of a sample waits for, as far as it is known."""
        rows = {one.pid: one for one in sample.sessions}
        found = {
            one.pid: one.blockers or self._inherited(one, sample.at, rows)
            for one in sample.sessions
            if one.type == "Lock"
        }
        of_lock: dict[str, tuple[int, ...]] = {}  # by what is locked, wholly named
        for pid, blockers in found.items():
            lock = self._locks.get(pid)
            if blockers and lock is not None and lock.tag:
                of_lock.setdefault(lock.tag, blockers)
        for pid, blockers in found.items():
            lock = self._locks.get(pid)
            if not blockers and lock is not None:
                others = of_lock.get(lock.tag, ())
                found[pid] = tuple(other for other in others if other != pid)
        return {pid: blockers for pid, blockers in found.items() if blockers}


def paths(pid: int, edges: Mapping[int, Sequence[int]]) -> list[RootPath]:
    """All ends of a waiter's paths, each root once, by its shortest path."""
    found: dict[int, RootPath] = {}
    ring: tuple[int, ...] = ()
    queue: list[tuple[int, tuple[int, ...]]] = [(pid, ())]
    seen = {pid}
    while queue:
        node, between = queue.pop(0)
        for blocker in edges.get(node, ()):
            path = (pid, *between)
            if blocker in path:
                ring = ring or path[path.index(blocker) :]
            elif blocker not in edges:
                found.setdefault(blocker, RootPath(blocker, between))
            elif blocker not in seen and len(between) < _LONGEST:
                seen.add(blocker)
                queue.append((blocker, (*between, blocker)))
    if found or not ring:
        return list(found.values())
    return [RootPath(min(ring), tuple(sorted(ring)), ring=True)]


def gate(paths_to_root: Mapping[int, RootPath]) -> int | None:
    """Who has all others behind it on their way to the root: two at least, or None.

    paths_to_root: by waiter.
    """
    shared: set[int] | None = None
    passed = {node for path in paths_to_root.values() for node in path.between}
    for waiter, path in paths_to_root.items():
        if waiter in passed:
            continue
        shared = set(path.between) if shared is None else shared & set(path.between)
    if not shared:
        return None
    behind = sum(1 for path in paths_to_root.values() if shared & set(path.between))
    if behind < 2:
        return None
    order = max((path.between for path in paths_to_root.values()), key=len)
    return next(node for node in reversed(order) if node in shared)
