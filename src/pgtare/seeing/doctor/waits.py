"""Where the sessions' time went between two looks, and whether they queue for locks.

Waits that every healthy server has under load (for disk, log and client) make no finding.
"""

from __future__ import annotations

from pgtare.seeing.doctor.model import FEWEST_HITS, Finding, Waits, WaitShare
from pgtare.seeing.doctor.observed import ActivitySamples, CountedWaits, Look

#: Sessions that wait for others' locks, as a share of all active time and in number.
WARNING_LOCKED, CRITICAL_LOCKED = 0.5, 0.9
_FEWEST_SESSIONS = 1.0
_BLOCKERS = (
    "SELECT pid, pg_blocking_pids(pid), now() - query_start AS waits, query FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' ORDER BY query_start;"
)
_SESSIONS = "SELECT pid, state, now() - xact_start AS open, query FROM pg_stat_activity"


def profile(first: Look, last: Look, samples: ActivitySamples) -> Waits | None:
    """The waits of sessions at work; None if other sessions cannot be seen."""
    if not samples.looks:
        return None
    on_cpu = samples.seen[""] / samples.looks
    hits = samples.seen.total()
    exact = rest = None
    before, after = first.waits, last.waits
    if before is not None and after is not None and before.reset == after.reset:
        exact, rest = _counted(before, after)
    known = rest is not None or hits >= FEWEST_HITS  # else counted waits would seem to be all
    if exact is None:
        events = {e: n / samples.looks for e, n in samples.seen.items() if e}
    else:
        events = exact
        # Sampled, it is too low: while our session looks, it keeps others from a processor.
        on_cpu = on_cpu if rest is None else rest
    active = on_cpu + sum(events.values())
    return Waits(
        exact=exact is not None,
        on_cpu_exact=rest is not None,
        samples=samples.looks,
        hits=hits,
        active=active,
        on_cpu=on_cpu,
        events=[
            WaitShare(
                event=event,
                active=n,
                share=n / active if active and known else None,
                share_lo=samples.least_share(event) if exact is None and known else None,
            )
            for event, n in sorted(events.items(), key=lambda item: -item[1])
        ],
    )


def _counted(before: CountedWaits, after: CountedWaits) -> tuple[dict[str, float], float | None]:
    """On average, sessions that waited, by event, and those that did not.

    The latter were on a processor, or ready for one; None if not all of their time was counted.
    """
    ms = 1000 * (after.taken - before.taken).total_seconds()
    grown = {event: total - before.ms.get(event, 0.0) for event, total in after.ms.items()}
    rest = None
    if before.rest_ms is not None and after.rest_ms is not None:
        rest = max(0.0, after.rest_ms - before.rest_ms) / ms
    return {event: spent / ms for event, spent in grown.items() if spent > 0}, rest


def check(waits: Waits) -> list[Finding]:
    """A queue for locks."""
    locked = [w for w in waits.events if w.event.startswith("Lock/")]
    sessions = sum(w.active for w in locked)
    share = sum(w.share or 0.0 for w in locked)
    if share < WARNING_LOCKED or sessions < _FEWEST_SESSIONS:
        return []
    severe = share >= CRITICAL_LOCKED and sessions >= 2 * _FEWEST_SESSIONS
    least = "" if waits.exact else "at least "
    holders = "SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity"
    return [
        Finding(
            check="locks",
            level="critical" if severe else "warning",
            title=f"{least}{sessions:.1f} sessions on average wait for locks that others hold",
            seen=[
                f"{w.event}: {least}{w.active:.1f} sessions, {100 * (w.share or 0):.0f} % of "
                f"active time{_sampled(w)}"
                for w in locked[:3]
            ],
            why="these sessions wait until another transaction ends",
            remedy=[
                _BLOCKERS,
                f"{_SESSIONS} WHERE pid IN ({holders});"
                "  -- the sessions that hold them; pg_terminate_backend(pid) ends one",
            ],
            sure="certain" if waits.exact else "likely",
            because="counted by wait_event_timing"
            if waits.exact
            else f"a lower bound from {waits.samples} samples of pg_stat_activity",
            figures={"sessions": sessions, "share": share},
        )
    ]


def _sampled(wait: WaitShare) -> str:
    return "" if wait.share_lo is None else f", sampled; at least {100 * wait.share_lo:.0f} %"
