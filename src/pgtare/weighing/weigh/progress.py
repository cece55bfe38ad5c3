"""What a weighing shows while it runs: time left, and how narrow the intervals are."""

from __future__ import annotations

import math

from rich.console import Console

from pgtare.estimate.trial.results import Live
from pgtare.kit import progress

#: After so long without any transaction the display says that no session takes part.
_PATIENCE_S = 2.0


class Display(progress.Display):
    """The progress of a trial; on standard error.

    nobody: what to say if no session takes part in the first seconds.
    """

    def __init__(self, console: Console, seconds: float, nobody: str = "") -> None:
        super().__init__(console, "weighing", seconds)
        self._width = ""
        self._stages, self._nobody = Stages(console), nobody
        self._at_first = "waiting for a session to take part" if nobody else "starting"

    def count(self, seconds: float, rows: int) -> None:
        """Called often, with the transactions so far."""
        if not rows and self._nobody and seconds >= _PATIENCE_S:
            self._stages.say(self._nobody)
            self._nobody = ""
        done = f"{rows:,} transactions{self._width}"
        self.tick(seconds, done if rows else self._at_first)

    def look(self, live: Live) -> None:
        """Called with each estimate."""
        widths = [arm.half_width_pct for arm in live.arms if math.isfinite(arm.half_width_pct)]
        if widths:
            self._width = f", intervals within ±{max(widths):.2f} %"


class Stages:
    """One line for each step before and after the measurement."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """Tell what begins now."""
        self._console.print(f"pgtare: {text}", highlight=False, markup=False)
