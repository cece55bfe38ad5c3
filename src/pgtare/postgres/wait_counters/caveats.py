"""What a reader must know before believing the counters: sessions and waits that they lack."""

from __future__ import annotations

from collections.abc import Iterable

from pgtare.kit import numbers
from pgtare.postgres.wait_counters.model import Client, Losses, Snapshot

#: Above this share of sessions that are not captured, nothing is said of shares of time.
_UNSEEN = 0.05

#: In clock_reason, of a counter that the kernel has given up (server/common/module_settings.h).
_GIVEN_UP = "no longer trusted"
_HOW = (
    "switch it on with ALTER SYSTEM SET wait_event_timing.capture = 'stats' and a reload, if "
    "the module is loaded (shared_preload_libraries)"
)
PARTIAL = (
    "only part of the server can be seen: waits by event are those of all sessions, but statements "
    "and processes are those of this user only, and it is not known which sessions are not "
    "captured; GRANT pg_read_all_stats to this user shows all"
)
#: What counters may lack, by the name in `Losses`: in words, and what is counted of it.
_LOST = {
    "missed": ("seen but not counted (missed): {}", "wait", "waits"),
    "statements_missed": ("in no statement's sums (statements_missed): {}", "wait", "waits"),
    "statements_evicted": (
        "made way for others in the table of statements (statements_evicted): {}; so times of "
        "statements are too low: raise wait_event_timing.statements_max",
        "pair of statement and event",
        "pairs of statement and event",
    ),
    "overflows": ("counted under Other (overflows): {}", "wait", "waits"),
    "skipped": (
        "left out of a reading (skipped), as a process was stopped in the midst of a change: {}",
        "process or part of the table of statements",
        "processes or parts of the table of statements",
    ),
}


def between(before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """What the difference of two snapshots lacks, one sentence each."""
    grown = Losses(
        **{
            name: max(0, getattr(after.losses, name) - getattr(before.losses, name))
            for name in _LOST
        }
    )
    clients = (
        max(before.clients, after.clients, key=_uncaptured)
        if (before.clients is not None and after.clients is not None)
        else None
    )
    return (*of_clock(after.clock_reason), *of_clients(clients), *of_losses(grown))


def of_clock(reason: str | None) -> tuple[str, ...]:
    """Whether the kernel has given up the clock that waits are timed by; reason: clock_reason."""
    if reason is None or _GIVEN_UP not in reason:
        return ()
    return (
        f"times may be wrong, as the clock that waits are timed by was {reason}; take another with "
        "ALTER SYSTEM SET wait_event_timing.clock = 'monotonic' and a reload",
    )


def of_clients(clients: tuple[Client, ...] | None) -> tuple[str, ...]:
    """Which sessions are not in the counters."""
    if clients is None:
        return (PARTIAL,)
    missing = _uncaptured(clients)
    if not missing:
        return ()
    sessions = numbers.counted(len(clients), "client session")
    return (f"{missing} of {sessions} {'is' if missing == 1 else 'are'} not captured: {_HOW}",)


def of_losses(losses: Losses) -> tuple[str, ...]:
    """Which waits are not in the counters."""
    return tuple(
        said.format(numbers.counted(count, one, many))
        for name, (said, one, many) in _LOST.items()
        if (count := getattr(losses, name))
    )


def hides_much(*looks: tuple[Client, ...] | None) -> bool:
    """Whether too many sessions are not captured, so that shares of time would mislead."""
    return any(clients and _uncaptured(clients) > _UNSEEN * len(clients) for clients in looks)


def _uncaptured(clients: Iterable[Client]) -> int:
    return sum(not client.captured for client in clients)
