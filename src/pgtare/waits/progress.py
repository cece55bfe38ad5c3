"""What a recording shows while it runs: time left, records kept and lost."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pgtare.waits.record import Progress as Now

#: Where there is no terminal, a line this often, in s.
_LINE_S = 10.0


class Display:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, seconds: float | None) -> None:
        self._console = console
        self._seconds = seconds
        self._next_line = _LINE_S
        left = (BarColumn(bar_width=24), TimeRemainingColumn(compact=True), TextColumn("left,"))
        self._bar = Progress(
            TextColumn("recording"),
            *(left if seconds is not None else ()),
            TextColumn("{task.fields[text]}"),
            console=console,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._seconds, text="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def tick(self, now: Now) -> None:
        """Called after each look at the rings."""
        text = (
            f"{now.seconds:.0f} s: {now.records:,} records of {now.sessions} sessions, "
            f"{now.lost:,} lost"
        )
        if self._console.is_terminal:
            self._bar.update(self._task, completed=now.seconds, text=text + "; Ctrl-C ends it")
        elif now.seconds >= self._next_line:
            self._next_line += _LINE_S
            self._console.print(text, highlight=False)
