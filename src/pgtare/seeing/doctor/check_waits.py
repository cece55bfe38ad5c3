"""Checks the waits: only what is never healthy, as a queue for locks, makes a finding."""

from __future__ import annotations

from pgtare.seeing.doctor.model import Finding, Waits, WaitShare

#: Sessions that wait for others' locks, as a share of all active time and in number.
WARNING_LOCKED, CRITICAL_LOCKED = 0.5, 0.9
_FEWEST_SESSIONS = 1.0
_BLOCKERS = (
    "SELECT pid, pg_blocking_pids(pid), now() - query_start AS waits, query FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' ORDER BY query_start;"
)
_SESSIONS = "SELECT pid, state, now() - xact_start AS open, query FROM pg_stat_activity"


def check(waits: Waits) -> list[Finding]:
    """A queue for locks.

    Waits that every healthy server has under load (for disk, log and client) are the profile's.
    """
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
