"""What a study shows while it runs: which run, and the time left. Never a figure of the result."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn

from pgtare.kit import progress

#: If there is no terminal, a line this often, in s.
_LINE_S = 20.0


def span(seconds: float) -> str:
    """A length of time: 45 s, 12 min, 7.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Display(progress.Frame):
    """A bar on a terminal, a line now and then elsewhere; on standard error."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._planned = max(seconds, 1.0)
        self._began = time.monotonic()
        #: When the first step began, and how much was planned before it.
        self._first: tuple[float, float] | None = None
        super().__init__(
            console,
            TextColumn("{task.fields[what]},"),
            BarColumn(bar_width=progress.BAR_WIDTH),
            TextColumn("{task.fields[left]} left"),
            total=self._planned,
            line_s=_LINE_S,
            first_s=0.0,
            what="starting",
            left="?",
        )

    def say(self, text: str) -> None:
        """Tell something worth a line of its own."""
        self._console.print(f"pgtare: {text}", highlight=False, markup=False)

    def step(self, what: str, planned_left: float) -> None:
        """Called before each step, with the seconds which the rest was planned to take."""
        now, done = time.monotonic(), self._planned - planned_left
        if self._first is None:
            self._first = (now, done)
        # The plan knows no machine: once some of it is done, what is left goes on as it did.
        spent, of_plan = now - self._first[0], done - self._first[1]
        pace = spent / of_plan if of_plan > 0.05 * self._planned else 1.0
        left = span(planned_left * max(pace, 0.2))
        line = f"pgtare: {what}, {left} left"
        self._show(now - self._began, line, completed=done, what=what, left=left)
