"""What a measurement of the clocks shows while it runs: the clock, and the time left."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

#: Nothing is shown of what takes less, in s; where there is no terminal, a line this often.
_LEAST_S = 3.0
_LINE_S = 10.0


class Display:
    """A bar on a terminal, a line now and then elsewhere; on standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line = _LINE_S
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tick(self, done: float, planned: float, what: str) -> None:
        """Called about ten times a second."""
        if planned < _LEAST_S:
            return
        if not self._console.is_terminal:
            if done >= self._next_line:
                self._next_line += _LINE_S
                left = max(0.0, planned - done)
                self._console.print(f"reading {what}, {left:.0f} s left", highlight=False)
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("reading {task.fields[what]}"),
                BarColumn(bar_width=24),
                TimeRemainingColumn(compact=True),
                TextColumn("left; Ctrl-C ends it"),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=planned, what=what)
        self._bar.update(self._task, completed=done, what=what)
