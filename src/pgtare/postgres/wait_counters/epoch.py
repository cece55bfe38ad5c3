"""Which counters belong together: the epoch of a reading, and what to do when it changes."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import NamedTuple

#: A server's clock counts if it is at most this far from ours, over one interval.
_STEP_NS, _STEP_SHARE = 500_000_000, 0.05
#: After this many intervals without a reading, the time in between is an absence.
_ABSENT_INTERVALS = 3


@dataclass(frozen=True)
class Origin:
    """Since when counters count, in µs since 1970.

    memory_us: since when the module has its memory, which a crash makes anew while the server's
    start stays. memory_us, reset_us, resets: None without a module.
    """

    system_identifier: int
    started_us: int
    memory_us: int | None = None
    reset_us: int | None = None
    resets: int | None = None

    @property
    def epoch(self) -> int:
        """A number of it, signed with 64 bits: within one epoch, counters only grow."""
        parts = (
            self.system_identifier,
            self.started_us,
            self.memory_us,
            self.reset_us,
            self.resets,
        )
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    @property
    def began_us(self) -> int:
        """When the counters were last zero, by the server's clock."""
        return max(self.started_us, self.memory_us or 0, self.reset_us or 0)


@dataclass(frozen=True)
class Taken:
    """When a reading was taken. monotonic_ns: by `steady_clock`; None: of another run of it.

    answer_ns: from the question to the answer; it was taken at some moment in between, and the
    agent's own clocks were read at the end.
    """

    server_us: int
    agent_us: int
    monotonic_ns: int | None = None
    answer_ns: int = 0

    @classmethod
    def at(cls, server_s: float, monotonic_ns: int | None, answer_ns: int = 0) -> Taken:
        """By the server's clock, in s since 1970, if nothing is known of ours that may be set."""
        server_us = round(1e6 * server_s)
        return cls(server_us, server_us, monotonic_ns, answer_ns)


class ReadingBaseline(enum.Enum):
    """What a reading is compared with."""

    SAME = "the reading before it"
    ZERO = "zero: the server was restarted"
    RESET = "zero, but waits in progress go on: all counters were reset"
    ANEW = "nothing: the reading is the baseline of the next one"


class WatchGap(NamedTuple):
    """What was lost or not watched: its kind in the table `gaps`, its start, and why."""

    kind: str
    from_us: int
    detail: str


@dataclass(frozen=True)
class Transition:
    """What lies between two readings. before_ns: how long before the counters began."""

    baseline: ReadingBaseline
    covered_ns: int
    before_ns: int = 0
    gap: WatchGap | None = None

    @property
    def gap_ns(self) -> int:
        """How long the gap is: what is lost, or of an absence what the rows cover."""
        return self.covered_ns if self.baseline is ReadingBaseline.SAME else self.before_ns


def between(
    before: tuple[Origin, Taken] | None,
    after: tuple[Origin, Taken],
    interval_s: float,
) -> Transition:
    """What lies between two readings of one server, of which the first may be missing."""
    if before is None:
        return Transition(ReadingBaseline.ANEW, 0)
    (first, then), (last, now) = before, after
    elapsed = elapsed_ns(then, now)
    if first == last:
        absent = elapsed > _ABSENT_INTERVALS * interval_s * 1e9
        detail = "nobody read the server; the rows that end here cover that time"
        gap = WatchGap("absence", then.agent_us, detail) if absent else None
        return Transition(ReadingBaseline.SAME, elapsed, gap=gap)
    same_server = first.system_identifier == last.system_identifier
    if not same_server or last.began_us < then.server_us:
        # of another server, the clock may be another
        lost = max(0, 1000 * (now.agent_us - then.agent_us))
        gap = WatchGap(*_anew(first, last, then.agent_us))
        return Transition(ReadingBaseline.ANEW, 0, lost, gap)
    covered = min(elapsed, 1000 * max(0, now.server_us - last.began_us))
    if (first.started_us, first.memory_us) != (last.started_us, last.memory_us):
        detail = "the server was restarted; what it counted since the last reading is lost"
        gap = WatchGap("restart", then.agent_us, detail)
        return Transition(ReadingBaseline.ZERO, covered, elapsed - covered, gap)
    detail = "all counters were reset; what they counted since the last reading is lost"
    return Transition(
        ReadingBaseline.RESET, covered, elapsed - covered, WatchGap("reset", then.agent_us, detail)
    )


def _anew(first: Origin, last: Origin, since: int) -> tuple[str, int, str]:
    lost = "what was counted since the last reading is lost"
    if first.system_identifier != last.system_identifier:
        return "restart", since, f"the name leads to another server now; {lost}"
    if first.started_us != last.started_us:
        return "restart", since, f"the name leads to another copy of the server now; {lost}"
    return "reset", since, f"counters of single processes were reset; {lost}"


def elapsed_ns(then: Taken, now: Taken) -> int:
    """The time between two readings: by the server's clock, unless that was set meanwhile."""
    by_server = 1000 * (now.server_us - then.server_us)
    if then.monotonic_ns is not None and now.monotonic_ns is not None:
        ours = now.monotonic_ns - then.monotonic_ns
        tolerance = max(_STEP_NS, _STEP_SHARE * ours)
        least, most = ours - now.answer_ns - tolerance, ours + then.answer_ns + tolerance
        return by_server if least <= by_server <= most else ours
    if by_server > 0:
        return by_server
    return max(0, 1000 * (now.agent_us - then.agent_us))
