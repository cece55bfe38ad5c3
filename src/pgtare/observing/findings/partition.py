"""Where the active time went: every second of every active session goes to exactly one cause."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pgtare.observing.findings.causes import (
    CLIENT,
    HOT_LOCK,
    LOCK,
    LOG,
    OBSERVER,
    STATEMENT,
    SYNC,
    Cause,
    Tally,
)
from pgtare.observing.findings.observation import (
    PACING,
    Observation,
    SampledSession,
    ServerState,
    SessionsSample,
)
from pgtare.observing.findings.read import ANY_ROWS, NOTIFY
from pgtare.observing.findings.roots import BlockerGraph, RootPath, gate, paths
from pgtare.observing.findings.wait_ages import LOG_EVENTS, SYNC_EVENT, WaitAges

#: LWLocks of what observes the server.
OBSERVERS = {
    "LWLock/pg_stat_statements": "pg_stat_statements",
    "LWLock/pg_qualstats": "pg_qualstats",
    "LWLock/pg_stat_kcache": "pg_stat_kcache",
    "LWLock/pg_wait_sampling": "pg_wait_sampling",
    "LWLock/WaitEventTiming": "wait_event_timing",
    "LWLock/SQLTrace": "sql_trace",
}
#: Locks whose holder changes all the time, whoever has it in one sample.
_SHORT_LOCKS = frozenset({"Lock/extend", "Lock/frozenid", "Lock/spectoken"})
#: From this many roots of one object on, none of which has a quarter, nobody is the root.
_MANY_ROOTS, _QUARTER = 3, 0.25
#: A root whose transaction is younger in each sample holds nobody up for long, s.
_SHORT_S = 1.0
#: An outage takes this share of all active time, and so many sessions.
_OUTAGE_SHARE, _OUTAGE_SESSIONS = 0.5, 2.0
#: Sessions that wait for each other for less may do so one after the other, s.
_SHORT_RING_S = 0.5


@dataclass(frozen=True)
class Partition:
    """All active time of a window. active_s: its sum, and that of nobody's causes.

    on_cpu: sessions that wanted a processor, on average.
    """

    observation: Observation
    causes: tuple[Cause, ...]
    active_s: float
    on_cpu: float

    @property
    def state(self) -> ServerState:
        """What the server said of itself."""
        return self.observation.state

    def share(self, cause: Cause) -> float:
        """Of all active time, from 0 to 1."""
        return cause.seconds / self.active_s if self.active_s else 0.0

    def aas(self, cause: Cause) -> float:
        """Sessions on average."""
        seconds = self.observation.seconds
        return cause.seconds / seconds if seconds else 0.0

    def is_large(self, cause: Cause) -> bool:
        """Whether it takes so much that it may be an outage."""
        return self.share(cause) >= _OUTAGE_SHARE and self.aas(cause) >= _OUTAGE_SESSIONS


class _Causes(defaultdict[str, Cause]):
    def of(self, kind: str, key: str, name: str = "") -> Cause:
        if key not in self:
            self[key] = Cause(kind, key, name)
        return self[key]


def partition(observation: Observation, quick: Collection[str] = ()) -> Partition:
    """Give every active second to a cause.

    quick: of LOG and SYNC, what commits wait for so shortly that others wait for the lock instead.
    """
    causes = _Causes()
    graph = BlockerGraph(observation)
    factors, unseen_s = _factors(observation)
    # who holds something and does nothing is in those samples only that asked for blockers
    anywhere = _by_process(observation.samples)
    active_s, on_cpu_s = sum(unseen_s.values()), unseen_s.get("CPU", 0.0)
    waits = WaitAges(observation)
    later = [*map(_waiting, observation.samples[1:]), None]
    for sample, still in zip(observation.samples, later, strict=False):
        ends = paths(graph.edges(sample))
        rows = _Rows(sample.by_process, anywhere, sample.at, still)
        waits.look(sample)
        for one in sample.sessions:
            if not one.is_active:
                continue
            seconds = sample.weight_s * factors.get(one.label, 1.0)
            active_s += seconds
            on_cpu_s += seconds if one.type is None else 0.0
            waited_s = waits.waited_s(sample.at, one)
            if one.type == "Lock":
                _lock(
                    causes, observation, one, ends.get(one.pid, ()), rows, seconds, waited_s, quick
                )
            else:
                cause = _work(causes, one)
                cause.add(sample.at, seconds, one, waited_s)
                if cause.kind in (LOG, SYNC):
                    cause.add_commit(seconds, one, waited_s, waits.may_commit(one))
    times = [sample.at for sample in observation.samples]
    before = dict(zip(times, [*times[:1], *times], strict=False))
    found = [cause for cause in _hot(causes.values(), before) if cause.seconds]
    for cause in found:
        _mark_gate(cause)
    found.sort(key=lambda cause: (-cause.seconds, cause.key))
    on_cpu = on_cpu_s / observation.seconds if observation.seconds else 0.0
    return Partition(observation, tuple(found), active_s, on_cpu)


def _factors(observation: Observation) -> tuple[dict[str, float], dict[str, float]]:
    """What makes of each event's samples the time that was counted; time that no sample shows."""
    sampled: Tally[str] = Tally()
    for sample in observation.samples:
        for one in sample.sessions:
            if one.is_active:
                sampled.add(one.label, sample.weight_s)
    counted = {
        label: seconds
        for label, seconds in (observation.waited_s or {}).items()
        if label not in PACING and not label.startswith("Activity/")
    }
    return (
        {label: counted[label] / s for label, s in sampled.items() if label in counted and s},
        {label: seconds for label, seconds in counted.items() if not sampled.get(label)},
    )


def _work(causes: _Causes, one: SampledSession) -> Cause:
    """The cause of time that is no wait for another's lock."""
    label = one.label
    if label in LOG_EVENTS:
        return causes.of(LOG, LOG)
    if label == SYNC_EVENT:
        return causes.of(SYNC, SYNC)
    if label in OBSERVERS:
        name = OBSERVERS[label]
        return causes.of(OBSERVER, f"{OBSERVER}/{name}", name)
    if one.type == "Client":
        return causes.of(CLIENT, f"{CLIENT}/{one.application}", one.application)
    database, statement = one.statement
    return causes.of(STATEMENT, f"{STATEMENT}/{database}/{statement}")


@dataclass(frozen=True)
class _Rows:
    """Sessions by process: in this sample, and in all, with the times of these.

    still: those that wait for a lock in the next sample, with their statements; None: the last.
    """

    now: Mapping[int, SampledSession]
    anywhere: Mapping[int, Sequence[tuple[float, SampledSession]]]
    at: float
    still: frozenset[tuple[int, int | None]] | None

    def went_on(self, one: SampledSession) -> bool:
        """Whether the next sample, if there is one, shows that its wait has ended."""
        return self.still is not None and (one.pid, one.query_us) not in self.still

    def nearest(self, pid: int) -> SampledSession | None:
        """What the process did at the time nearest to this sample: later it does other things."""
        if pid in self.now:
            return self.now[pid]
        rows = self.anywhere.get(pid, ())
        return min(rows, key=lambda row: abs(row[0] - self.at))[1] if rows else None


def _waiting(sample: SessionsSample) -> frozenset[tuple[int, int | None]]:
    return frozenset((one.pid, one.query_us) for one in sample.sessions if one.type == "Lock")


def _by_process(samples: Iterable[SessionsSample]) -> dict[int, list[tuple[float, SampledSession]]]:
    found: dict[int, list[tuple[float, SampledSession]]] = defaultdict(list)
    for sample in samples:
        for one in sample.sessions:
            found[one.pid].append((sample.at, one))
    return dict(found)


def _lock(
    causes: _Causes,
    observation: Observation,
    one: SampledSession,
    found: Sequence[RootPath],
    rows: _Rows,
    seconds: float,
    waited_s: float,
    quick: Collection[str],
) -> None:
    """Give the time of a wait for a lock to its root. found: all ends of its paths."""
    lock = observation.locks.get(one.pid)
    object_ = lock.object if lock is not None and lock.is_of(one, rows.at) else ""
    ends = [
        path
        for path in found
        if (_is_ring(path, rows) if path.ring else _may_hold(one, path, rows))
    ]
    if not ends or one.label in _SHORT_LOCKS or object_ == NOTIFY:
        key, went_on = f"{HOT_LOCK}/{one.label}/{object_}", False
        if one.label not in _SHORT_LOCKS and object_ != NOTIFY:
            went_on = rows.went_on(one)
            key += f"@{rows.at}/{went_on}"  # whose it is depends on who held it then
        cause = causes.of(HOT_LOCK, key, one.label)
        cause.went_on = went_on
        cause.add(rows.at, seconds, one, waited_s, object_)
        return
    path = _last_to_go(ends, rows)
    root = rows.nearest(path.root)
    now = rows.now.get(path.root)
    if now is not None and not path.ring:
        handed_on = _handed_on(causes, now)
        if handed_on is not None and handed_on.kind not in quick:
            handed_on.add(rows.at, seconds, one, waited_s)
            handed_on.handed_s += seconds
            return
    cause = _root_cause(causes, observation, one, path, root)
    cause.add(rows.at, seconds, one, waited_s, "" if path.between else object_)
    if path.between and object_:
        cause.objects_behind.add(object_, seconds)
    if not path.between:
        cause.direct.add(one.statement, seconds)
    cause.paths[one.pid] = path
    cause.ring |= path.ring
    if root is not None:
        cause.root = root
        # one that is outside of a transaction has done nothing since its last statement
        idle = root.state == "idle"
        cause.xacts.add(root.query_us if idle else root.xact_us)
        age_s = root.state_age_s if idle else root.xact_age_s
        cause.xact_ages.append(age_s if age_s is not None else 1e9)
    for passed in map(rows.nearest, path.between):
        if passed is not None:
            cause.waiters.setdefault(passed.pid, passed)
    for other in (rows.nearest(end.root) for end in ends if end.root != path.root):
        if other is not None and other.type != "Lock":
            cause.beside.setdefault(rows.at, {})[other.pid] = other


def _last_to_go(ends: Sequence[RootPath], rows: _Rows) -> RootPath:
    """Of all that a session waits for at once, what will most likely hold it the longest.

    A prepared transaction does not end by itself. Then comes the oldest transaction.
    """

    def rank(path: RootPath) -> tuple[float, int]:
        root = rows.nearest(path.root)
        if root is None:
            return 0.0 if path.root == 0 else math.inf, path.root
        return root.xact_us or root.query_us or math.inf, path.root

    return min(ends, key=rank)


def _may_hold(one: SampledSession, path: RootPath, rows: _Rows) -> bool:
    """Whether a root is known to hold the others up.

    Those whom others wait for are looked up a moment after these: one that is outside of a
    transaction by then holds advisory locks only. And who waits for a lock as well, but not for
    whose, may be the first of another queue, so that the holder was not seen.
    """
    now = rows.now.get(path.root)
    if now is not None and now.type == "Lock" and now.label not in _SHORT_LOCKS:
        return False
    root = rows.nearest(path.root)
    first = rows.nearest(path.between[-1]) if path.between else one
    for_advisory = first is not None and first.label == "Lock/advisory"
    return root is None or root.state != "idle" or for_advisory


def _is_ring(path: RootPath, rows: _Rows) -> bool:
    """Whether all of a ring wait for each other at once, and not one after the other."""
    ring = [rows.now[pid] for pid in path.between if pid in rows.now]
    return len(ring) == len(path.between) and all(
        one.blockers and (one.query_age_s or 0.0) >= _SHORT_RING_S for one in ring
    )


def _handed_on(causes: _Causes, root: SampledSession) -> Cause | None:
    """The cause of a root that itself waits for what no session holds."""
    if not root.is_active:
        return None
    if root.label in LOG_EVENTS:
        return causes.of(LOG, LOG)
    if root.label == SYNC_EVENT:
        return causes.of(SYNC, SYNC)
    return None


def _root_cause(
    causes: _Causes,
    observation: Observation,
    one: SampledSession,
    path: RootPath,
    root: SampledSession | None,
) -> Cause:
    if path.root:
        started = root.started_us if root is not None else 0
        return causes.of(LOCK, f"{LOCK}/{path.root}@{started}")
    held = [observation.locks.get(pid) for pid in (*reversed(path.between), one.pid)]
    lock = next((lock for lock in held if lock is not None and lock.gid), None)
    cause = causes.of(LOCK, f"{LOCK}/2pc/{lock.gid if lock is not None else ''}")
    cause.prepared = lock or cause.prepared
    return cause


def _hot(causes: Iterable[Cause], before: Mapping[float, float]) -> list[Cause]:
    """Fold the roots of an object into one cause where none of them holds it for long.

    before: when the sample before one was taken.
    """
    by_object: dict[tuple[str, str], list[Cause]] = defaultdict(list)
    found: list[Cause] = []
    listed = list(causes)
    objects: dict[str, Tally[str]] = defaultdict(Tally)
    for cause in listed:
        objects[_lock_event(cause)].join(cause.objects)
    for cause in listed:
        if cause.kind == HOT_LOCK or (cause.kind == LOCK and cause.prepared is None):
            event = _lock_event(cause)
            # of what was not looked up, it is most likely what the others wait for
            known = cause.object if cause.object != ANY_ROWS else ""
            known = known or _object_then(cause, listed)
            object_ = known or next(iter(objects[event].most()), "")
            by_object[event, object_].append(cause)
        else:
            found.append(cause)
    others: dict[str, Cause] = {}
    for (event, object_), group in by_object.items():
        roots = [cause for cause in group if cause.kind == LOCK]
        known_s = sum(cause.seconds for cause in group if not is_unknown(cause))
        if not _nobody_is_root(roots, known_s):
            found += _with_unknown(roots, group, before, others)
            continue
        hot = Cause(HOT_LOCK, f"{HOT_LOCK}/{event}/{object_}", event, changes_hands=True)
        for cause in group:
            hot.take(cause)
        found.append(hot)
    return [*found, *others.values()]


def _object_then(cause: Cause, causes: Iterable[Cause]) -> str:
    """What most sessions waited for in the sample of waits of which nobody knows more."""
    if not is_unknown(cause):
        return ""
    at, event = cause.first_at, _lock_event(cause)
    roots = [
        one
        for one in causes
        if one.kind == LOCK and one.seconds_at.get(at) and _lock_event(one) == event
    ]
    return max(roots, key=lambda one: one.seconds_at[at]).object if roots else ""


def is_unknown(cause: Cause) -> bool:
    """Whether it is of waits whose blockers were not asked for, of which there are too many."""
    return cause.kind == HOT_LOCK and cause.name not in _SHORT_LOCKS and cause.object != NOTIFY


def _with_unknown(
    roots: list[Cause], group: list[Cause], before: Mapping[float, float], others: dict[str, Cause]
) -> list[Cause]:
    """The causes of an object: waits of which nobody knows more are for a root of that sample.

    That is the one for which most others waited then. Waits of a time at which no root was seen,
    and those that ended while a root stayed, are causes of their own, in `others`.
    """
    found = [cause for cause in group if not is_unknown(cause)]
    seen = {root.key: (root.since, root.last_at) for root in roots}
    known_s = {root.key: dict(root.seconds_at) for root in roots}
    for cause in filter(is_unknown, group):
        at = cause.first_at
        there = [
            one
            for one in roots
            if seen[one.key][0] <= at
            and before[at] <= seen[one.key][1]
            and not (cause.went_on and at < seen[one.key][1])
        ]
        key = cause.key.rpartition("@")[0]
        largest = max(
            there, key=lambda one: (known_s[one.key].get(at, 0.0), one.seconds), default=None
        )
        if largest is None:
            largest = others.setdefault(key, Cause(HOT_LOCK, key, cause.name))
        largest.take(cause)
    return found


def _lock_event(cause: Cause) -> str:
    # a row's lock is waited for as tuple by all but the first, who waits for the transaction
    event = cause.event
    return "Lock/transactionid" if event == "Lock/tuple" else event


def _nobody_is_root(roots: list[Cause], all_s: float) -> bool:
    if not roots or any(cause.ring for cause in roots):
        return False
    if len(roots) > _MANY_ROOTS and all(cause.seconds < _QUARTER * all_s for cause in roots):
        return not _stay(roots)
    # one transaction holds it in all samples, however young it is; or one session does
    of_session = all(_lock_event(cause) == "Lock/advisory" for cause in roots)
    if sum(1 if of_session else len(cause.xacts) for cause in roots) < 2:
        return False
    return all(
        cause.root is not None and cause.xact_ages and max(cause.xact_ages) < _SHORT_S
        for cause in roots
    )


def _stay(roots: list[Cause]) -> bool:
    """Whether most of the time is for roots that hold it side by side: not one after the other."""
    all_s = max(root.last_at for root in roots) - min(root.first_at for root in roots)
    long_s = max(_SHORT_S, all_s / 2)
    staying = [
        root for root in roots if len(root.xacts) == 1 and root.last_at - root.first_at >= long_s
    ]
    return sum(root.seconds for root in staying) >= sum(root.seconds for root in roots) / 2


def _mark_gate(cause: Cause) -> None:
    """Of those in between, a session that waits for a whole relation: an ALTER TABLE, mostly."""
    if cause.kind == LOCK and not cause.ring:
        for_tables = {pid for pid, one in cause.waiters.items() if one.event == "relation"}
        pid = gate(cause.paths, for_tables)
        cause.gate = cause.waiters[pid] if pid is not None else None
