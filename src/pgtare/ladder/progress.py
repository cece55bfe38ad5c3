"""What a study shows while it runs: which run, and the time left. Never a figure of the result."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

#: Where there is no terminal, a line this often, in s.
_LINE_S = 20.0


def span(seconds: float) -> str:
    """A length of time: 45 s, 12 min, 7.2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Display:
    """A bar on a terminal, a line now and then elsewhere; on standard error."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._planned = max(seconds, 1.0)
        self._began = time.monotonic()
        self._next_line = self._began
        self._bar = Progress(
            TextColumn("{task.fields[what]},"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]} left"),
            console=console,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._planned, what="starting", left="?")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Tell something worth a line of its own."""
        self._console.print(f"pgtare: {text}", highlight=False, markup=False)

    def step(self, what: str, planned_left: float) -> None:
        """Called before each step, with the seconds which the rest was planned to take."""
        done = self._planned - planned_left
        spent = time.monotonic() - self._began
        # The plan knows no machine: once some of it is done, what is left goes on as it did.
        pace = spent / done if done > 0.05 * self._planned else 1.0
        left = span(planned_left * max(pace, 0.2))
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, what=what, left=left)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_S
            self.say(f"{what}, {left} left")
