"""Where the sessions' time went between two looks, and whether they queue for locks.

Waits that every healthy server has under load (for disk, log and client) make no finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgtare.kit import numbers
from pgtare.observing.doctor.model import FEWEST_HITS, Finding, Waits, WaitShare
from pgtare.observing.doctor.observed import ActivitySamples, Look, QueueHolder

#: Sessions that wait for others' locks, as a share of all active time and in number.
WARNING_LOCKED, CRITICAL_LOCKED = 0.5, 0.9
_FEWEST_SESSIONS = 1.0
_BLOCKERS = (
    "SELECT pid, pg_blocking_pids(pid), now() - query_start AS waits, query FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' ORDER BY query_start;"
)
_HOLDERS = (
    "SELECT pid, state, now() - xact_start AS open, query FROM pg_stat_activity WHERE pid IN"
    " (SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity);"
    "  -- the sessions that hold them"
)
_ADVISORY = "Lock/advisory"


def profile(first: Look, last: Look, samples: ActivitySamples) -> Waits | None:
    """The waits of sessions at work; None if other sessions cannot be seen."""
    if not samples.looks:
        return None
    hits = samples.seen.total()
    sampled_on_cpu = samples.seen[""] / samples.looks
    counted = last.waits.since(first.waits) if first.waits and last.waits else None
    if counted is None:
        events = {e: n / samples.looks for e, n in samples.seen.items() if e}
        active, on_cpu = sampled_on_cpu + sum(events.values()), sampled_on_cpu
    else:
        # Sampled, it is too low: while our session looks, it keeps others from a processor.
        counted = replace(counted, sampled_on_cpu=sampled_on_cpu)
        waited = {e: ms for e, ms in counted.waited_ms.items() if ms and not e.idle}
        events = {e.label: counted.average(ms) for e, ms in waited.items()}
        active, on_cpu = counted.active, counted.on_cpu or 0.0
    on_cpu_exact = counted is not None and counted.sessions is not None
    known = on_cpu_exact or hits >= FEWEST_HITS  # else counted waits would seem to be all
    return Waits(
        exact=counted is not None,
        on_cpu_exact=on_cpu_exact,
        samples=samples.looks,
        hits=hits,
        active=active,
        on_cpu=on_cpu,
        events=[
            WaitShare(
                event=event,
                active=n,
                share=n / active if active and known else None,
                share_lo=samples.least_share(event) if counted is None and known else None,
            )
            for event, n in sorted(events.items(), key=lambda item: -item[1])
        ],
    )


def check(waits: Waits, holders: Sequence[QueueHolder] = ()) -> list[Finding]:
    """A queue for locks; apart from it, one for an advisory lock that elects a leader."""
    locked = [w for w in waits.events if w.event.startswith("Lock/")]
    elected = any(holder.elected for holder in holders)
    candidates = [w for w in locked if elected and w.event == _ADVISORY]
    # candidates wait by design: what others wait for is a share of the rest
    rest = 1.0 - min(sum(w.share or 0.0 for w in candidates), 0.99)
    found = [
        _queue(waits, [w for w in locked if w not in candidates], holders, rest),
        _election(waits, candidates, holders),
    ]
    return [finding for finding in found if finding is not None]


def _figures(locked: Sequence[WaitShare], rest: float = 1.0) -> dict[str, float] | None:
    """How many sessions wait, and their share of active time, or of what rests of it.

    None if that is no queue.
    """
    sessions, share = sum(w.active for w in locked), sum(w.share or 0.0 for w in locked) / rest
    if share < WARNING_LOCKED or sessions < _FEWEST_SESSIONS:
        return None
    return {"sessions": sessions, "share": share}


def _queue(
    waits: Waits, locked: Sequence[WaitShare], holders: Sequence[QueueHolder], rest: float
) -> Finding | None:
    figures = _figures(locked, rest)
    if figures is None:
        return None
    sessions = figures["sessions"]
    severe = figures["share"] >= CRITICAL_LOCKED and sessions >= 2 * _FEWEST_SESSIONS
    prepared = [holder for holder in holders if holder.gid is not None]
    others = not prepared or any(holder.pid and not holder.elected for holder in holders)
    why = "these sessions wait until another transaction ends"
    if prepared:
        why += "; a prepared one has no session: it ends, with its locks, only by these commands"
    return Finding(
        check="locks",
        level="critical" if severe else "warning",
        title=f"{_least(waits)}{sessions:.1f} sessions on average wait for locks that others hold",
        seen=[
            *_seen(waits, locked),
            *(
                f"prepared transaction {one.gid} in database {one.database}, since "
                f"{one.prepared:%Y-%m-%d %H:%M:%S} UTC: "
                f"{numbers.counted(one.waiters, 'session waits', 'sessions wait')} for it"
                for one in prepared
            ),
        ],
        why=why,
        remedy=[
            *(
                f"ROLLBACK PREPARED {one.gid};  -- in database {one.database}; or COMMIT PREPARED, "
                "if that is what its transaction manager decided"
                for one in prepared
            ),
            _BLOCKERS,
            *([f"{_HOLDERS}; pg_terminate_backend(pid) ends one"] if others else ()),
        ],
        sure="certain" if waits.exact else "likely",
        because="counted by wait_event_timing"
        if waits.exact
        else f"a lower bound from {waits.samples} samples of pg_stat_activity",
        figures=figures,
    )


def _election(
    waits: Waits, candidates: Sequence[WaitShare], holders: Sequence[QueueHolder]
) -> Finding | None:
    """A lock that a session keeps, as a leader does, is waited for by design."""
    figures = _figures(candidates)
    if figures is None:
        return None
    leaders = [holder for holder in holders if holder.elected]
    return Finding(
        check="locks",
        level="warning",
        title=f"{_least(waits)}{figures['sessions']:.1f} sessions on average wait for an advisory "
        "lock that a session keeps",
        seen=[
            *_seen(waits, candidates),
            *(
                f"process {one.pid} has kept it longer than a transaction: "
                f"{numbers.counted(one.waiters, 'session waits', 'sessions wait')} for it"
                for one in leaders
            ),
        ],
        why="a lock of a session, not of a transaction, often elects a leader: then the sessions "
        "that wait are candidates, and wait by design until the leader goes away",
        remedy=[
            "-- none if this is an election; candidates that try pg_try_advisory_lock() now and "
            "then occupy no session that waits",
            f"{_HOLDERS}, of which one is the leader",
        ],
        sure="possible",
        because="the lock was seen to outlast its holder's transactions; what it is for was not",
        figures=figures,
    )


def _least(waits: Waits) -> str:
    return "" if waits.exact else "at least "


def _seen(waits: Waits, locked: Sequence[WaitShare]) -> list[str]:
    return [
        f"{w.event}: {_least(waits)}{w.active:.1f} sessions, {100 * (w.share or 0):.0f} % of "
        f"active time{_sampled(w)}"
        for w in locked[:3]
    ]


def _sampled(wait: WaitShare) -> str:
    return "" if wait.share_lo is None else f", sampled; at least {100 * wait.share_lo:.0f} %"
