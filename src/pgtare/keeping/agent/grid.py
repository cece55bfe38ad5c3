"""When to look: a grid of wall-clock time, staggered by server; slower if the server is slow."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

#: A look that takes more than this share of its interval is made less often.
_SLOW_SHARE = 0.1
#: It takes this many slow looks in a row: a single one may have met a busy moment.
_SLOW_LOOKS = 3
#: How many times longer an interval may become, and after how many quick looks it shrinks again.
SLOWEST, _QUICK_LOOKS = 32, 5


def stagger(server: str) -> float:
    """A share of the interval from 0 to 1, always the same for a name: servers take turns."""
    digest = hashlib.blake2b(server.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass
class LookGrid:
    """The times at which one kind of look is due, of one server.

    interval_s: as configured. phase_s: how much later than the round time of day. slowest: how
    many times longer the interval may become.
    """

    interval_s: float
    phase_s: float = 0.0
    slowest: int = SLOWEST
    factor: int = field(default=1, init=False)
    _quick: int = field(default=0, init=False)
    _slow: int = field(default=0, init=False)

    @property
    def step_s(self) -> float:
        """The time between two looks now."""
        return self.interval_s * self.factor

    def wait_s(self, wall_s: float, since_last_s: float | None = None) -> float:
        """How long to wait for the next look, more than 0 and at most a step and a half.

        wall_s: the time now. since_last_s: since the last look, by a clock that nobody sets. Only
        the time of day now decides, so a clock that is set back delays no look.
        """
        phase_s = self.phase_s
        next_s = (math.floor((wall_s - phase_s) / self.step_s) + 1) * self.step_s + phase_s
        wait = next_s - wall_s
        if wait <= 0:  # by rounding: now is the round time
            wait += self.step_s
        # a timer that fired a moment early must not fire twice
        if since_last_s is not None and since_last_s + wait < self.step_s / 2:
            wait += self.step_s
        return wait

    def looked(self, took_s: float, *, gave_up: bool = False) -> bool:
        """Note how long a look took. Returns whether the pace changed."""
        before = self.factor
        slow = gave_up or took_s > _SLOW_SHARE * self.step_s
        self._slow = self._slow + 1 if slow else 0
        if gave_up or self._slow >= _SLOW_LOOKS:
            self._quick = self._slow = 0
            self.factor = min(self.slowest, 2 * self.factor)
        elif self.factor > 1:
            # it would be slow again at twice the pace
            self._quick = self._quick + 1 if took_s < _SLOW_SHARE * self.step_s / 4 else 0
            if self._quick >= _QUICK_LOOKS:
                self._quick = 0
                self.factor //= 2
        return self.factor != before
