"""What a weighing shows while it runs: time left, and how narrow the intervals are."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pgtare.estimate.results import Live

#: Where there is no terminal, a line this often, in s.
_LINE_S = 10.0


class Display:
    """A progress bar on a terminal, a line now and then elsewhere; on standard error."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._seconds = seconds
        self._width = ""
        self._next_line = _LINE_S
        self._bar = Progress(
            TextColumn("weighing"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f} of {task.total:.0f} s,"),
            TimeRemainingColumn(compact=True),
            TextColumn("left, {task.fields[rows]:,} transactions{task.fields[width]}"),
            console=console,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._seconds, rows=0, width="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def tick(self, seconds: float, rows: int) -> None:
        """Called often."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=seconds, rows=rows, width=self._width)
        elif seconds >= self._next_line:
            self._next_line += _LINE_S
            self._console.print(
                f"{seconds:.0f} of {self._seconds:.0f} s, {rows} transactions{self._width}",
                highlight=False,
            )

    def look(self, live: Live) -> None:
        """Called with each estimate."""
        widths = [
            arm.half_width_pct for arm in live.arms if arm.half_width_pct == arm.half_width_pct
        ]
        if widths:
            self._width = f", intervals within ±{max(widths):.2f} %"


class Stages:
    """One line for each step before and after the measurement."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """Tell what begins now."""
        self._console.print(f"pgtare: {text}", highlight=False, markup=False)
