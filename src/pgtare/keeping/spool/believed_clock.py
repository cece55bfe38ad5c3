"""The clock that upkeep uses: the system's, but a jump forward counts only after a while.

A clock that is wrong by years for some minutes, as after the start of a machine, must not age what
a spool holds.
"""

from __future__ import annotations

_US = 1_000_000
#: A jump of less than this counts at once, s.
_TOLERATED_S = 600


class BelievedClock:
    """The system's clock, in µs since 1970; it follows a jump forward gradually.

    begin_us: the time that is known, if one is. wait_s, step_s: as long as the system's clock is
    ahead, this one follows it by at most step_s after each wait_s.
    """

    def __init__(self, begin_us: int | None, wait_s: float, step_s: float) -> None:
        self._us, self._wait_s, self._step_s = begin_us, wait_s, step_s
        self._read_at_s: float | None = None
        self._ahead_since_s: float | None = None

    def read(self, now_us: int, monotonic_s: float) -> int:
        """The time now. monotonic_s: of a clock that is never set."""
        us = now_us if self._us is None else self._us
        if self._read_at_s is not None:
            us += int(max(monotonic_s - self._read_at_s, 0) * _US)
        self._read_at_s = monotonic_s
        if now_us <= us + _TOLERATED_S * _US:
            us, self._ahead_since_s = now_us, None
        elif self._ahead_since_s is None:
            self._ahead_since_s = monotonic_s
        elif monotonic_s - self._ahead_since_s >= self._wait_s:
            us, self._ahead_since_s = int(min(now_us, us + self._step_s * _US)), monotonic_s
        self._us = us
        return us
