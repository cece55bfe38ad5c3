"""Progress of anything over two seconds: a bar with the time left, or a line now and then."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

#: Where there is no terminal, a line this often, in s.
_LINE_S = 10.0


class Display:
    """A bar on a terminal, a line every 10 s elsewhere.

    seconds: how long it will take, or None if only the user ends it.
    """

    def __init__(self, console: Console, title: str, seconds: float | None) -> None:
        self._console = console
        self._seconds = seconds
        self._next_line = _LINE_S
        left = (
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f} of {task.total:.0f} s,"),
            TimeRemainingColumn(compact=True),
            TextColumn("left,"),
        )
        self._bar = Progress(
            TextColumn(title),
            *(left if seconds is not None else (TextColumn("{task.completed:.0f} s,"),)),
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

    def tick(self, seconds: float, text: str, hint: str = "") -> None:
        """Called often. `hint` is for who can press a key: only terminals show it."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=seconds, text=text + hint)
        elif seconds >= self._next_line:
            self._next_line += _LINE_S
            of = "" if self._seconds is None else f" of {self._seconds:.0f}"
            self._console.print(f"{seconds:.0f}{of} s, {text}", highlight=False)
