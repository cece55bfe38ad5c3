"""Who holds up whom: from each waiter along its blockers to those who wait for nobody."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pgtare.observing.findings.observation import Observation, SampledSession, SessionsSample

#: States in which each sample has a session.
_SAMPLED = ("active", "idle in transaction", "fastpath")


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

    def left(self, rows: Mapping[int, SampledSession]) -> tuple[int, ...]:
        """Those of them that are still in the same transaction. rows: sessions of another time."""
        pairs = zip(self.blockers, self.holders, strict=True)
        return tuple(pid for pid, holder in pairs if _is_there(holder, rows))


def _is_there(holder: SampledSession | None, rows: Mapping[int, SampledSession]) -> bool:
    """Whether one may still hold what it held."""
    if holder is None or holder.xact_us is None:
        return True
    now = rows.get(holder.pid)
    if now is not None:
        return (now.started_us, now.xact_us) == (holder.started_us, holder.xact_us)
    # others are in samples only if they were asked for
    return holder.backend_type != "client backend" or not holder.state.startswith(_SAMPLED)


class BlockerGraph:
    """The edges of each sample; what one does not show, another of the same statement may."""

    def __init__(self, observation: Observation) -> None:
        self._locks = observation.locks
        self._known: dict[tuple[int, int | None], list[_Asked]] = {}
        for sample in observation.samples:  # a later sample may know whom an earlier wait was for
            rows = sample.by_process
            for one in sample.sessions:
                if one.blockers:
                    held = [rows.get(pid) for pid in one.blockers]
                    asked = _Asked(sample.at, one.blockers, held)
                    self._known.setdefault((one.pid, one.query_us), []).append(asked)

    def _inherited(
        self, one: SampledSession, at: float, rows: Mapping[int, SampledSession]
    ) -> tuple[int, ...]:
        """Whom it waited for when it was asked at the nearest time, if these are there now."""
        known = self._known.get((one.pid, one.query_us), ())
        there = [(abs(asked.at - at), left) for asked in known if (left := asked.left(rows))]
        return min(there, key=lambda pair: pair[0])[1] if there else ()

    def edges(self, sample: SessionsSample) -> dict[int, tuple[int, ...]]:
        """Whom each waiter of a sample waits for, as far as it is known."""
        rows = sample.by_process
        found = {
            one.pid: one.blockers or self._inherited(one, sample.at, rows)
            for one in sample.sessions
            if one.type == "Lock"
        }
        locks = {
            pid: lock
            for pid in found
            if (lock := self._locks.get(pid)) is not None and lock.is_of(rows[pid], sample.at)
        }
        of_lock: dict[str, tuple[int, ...]] = {}  # by what is locked, wholly named
        for pid, blockers in found.items():
            lock = locks.get(pid)
            if blockers and lock is not None and lock.tag:
                of_lock.setdefault(lock.tag, blockers)
        for pid, blockers in found.items():
            lock = locks.get(pid)
            if not blockers and lock is not None:
                others = of_lock.get(lock.tag, ())
                found[pid] = tuple(other for other in others if other != pid)
        return {pid: blockers for pid, blockers in found.items() if blockers}


def paths(edges: Mapping[int, Sequence[int]]) -> dict[int, list[RootPath]]:
    """All ends of each waiter's paths, each root once, by a shortest path; or a ring.

    They are followed from the roots back: each of n sessions in a queue names all that are ahead of
    it, so that to follow them from each waiter would take n³ steps.
    """
    waiting_for: dict[int, list[int]] = defaultdict(list)
    for waiter, blockers in edges.items():
        for blocker in blockers:
            waiting_for[blocker].append(waiter)
    found: dict[int, list[RootPath]] = {waiter: [] for waiter in edges}
    for root, first in waiting_for.items():
        if root in edges:
            continue
        between: dict[int, tuple[int, ...]] = dict.fromkeys(first, ())
        reached = list(between)
        for node in reached:  # it grows meanwhile
            if len(between) == len(edges):
                break
            for waiter in waiting_for.get(node, ()):
                if waiter not in between:
                    between[waiter] = (node, *between[node])
                    reached.append(waiter)
        for waiter, passed in between.items():
            found[waiter].append(RootPath(root, passed))
    for waiter, ends in found.items():
        if not ends:
            ends.append(_ring(waiter, edges))
    return found


def _ring(pid: int, edges: Mapping[int, Sequence[int]]) -> RootPath:
    """The ring that a session without a root waits for, or is in: all before it wait as well."""
    path, seen = [pid], {pid}
    while (blocker := edges[path[-1]][0]) not in seen:
        path.append(blocker)
        seen.add(blocker)
    ring = path[path.index(blocker) :]
    return RootPath(min(ring), tuple(sorted(ring)), ring=True)


def behind(node: int, paths_to_root: Mapping[int, RootPath]) -> int:
    """How many waiters have a session in between on their way to the root."""
    return sum(node in path.between for path in paths_to_root.values())


def gate(paths_to_root: Mapping[int, RootPath], eligible: Collection[int]) -> int | None:
    """Who has the most others behind it: two at least, and half of all that wait; or None.

    paths_to_root: by waiter. eligible: who may be the gate. Of several, the nearest to the root.
    """
    passed = Counter(
        node for path in paths_to_root.values() for node in path.between if node in eligible
    )
    most = max(passed.values(), default=0)
    if most < max(2, len(paths_to_root) / 2):
        return None
    order = max((path.between for path in paths_to_root.values()), key=len)
    nearest = [node for node in (*reversed(order), *passed) if passed[node] == most]
    return nearest[0]
