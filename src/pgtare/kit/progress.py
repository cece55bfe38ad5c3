"""Progress of anything over two seconds: a bar with the time left, or a line now and then."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

#: If there is no terminal, a line this often, in s.
_LINE_S = 10.0
BAR_WIDTH = 24


class Frame:
    """A bar of these columns on a terminal, a line every `line_s` from `first_s` on elsewhere.

    total: of the bar, in s; None if only the user ends it. fields: the columns' first values.
    """

    def __init__(
        self,
        console: Console,
        *columns: ProgressColumn,
        total: float | None,
        line_s: float = _LINE_S,
        first_s: float = _LINE_S,
        **fields: Any,
    ) -> None:
        self._console = console
        self._line_s, self._next_line_s = line_s, first_s
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=total, **fields)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def _show(self, seconds: float, line: str, **fields: Any) -> None:
        """fields: what the bar shows; line: what is printed instead, without a terminal, if due."""
        if self._console.is_terminal:
            self._bar.update(self._task, **fields)
        elif seconds >= self._next_line_s:
            while self._line_s and self._next_line_s <= seconds:
                self._next_line_s += self._line_s
            self._console.print(line, highlight=False, markup=False)


class Display(Frame):
    """The progress of something that ends by the clock.

    seconds: how long it will take, or None if only the user ends it.
    """

    def __init__(self, console: Console, title: str, seconds: float | None) -> None:
        self._of = "" if seconds is None else f" of {seconds:.0f}"
        left = (
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.completed:.0f} of {task.total:.0f} s,"),
            TimeRemainingColumn(compact=True),
            TextColumn("left,"),
        )
        super().__init__(
            console,
            TextColumn("{task.fields[title]}", markup=False),  # neither markup nor a format
            *(left if seconds is not None else (TextColumn("{task.completed:.0f} s,"),)),
            TextColumn("{task.fields[text]}", markup=False),
            total=seconds,
            title=title,
            text="",
        )

    def tick(self, seconds: float, text: str, hint: str = "") -> None:
        """Called often. `hint` is for users who can press a key: only terminals show it."""
        line = f"{seconds:.0f}{self._of} s, {text}"
        self._show(seconds, line, completed=seconds, text=text + hint)


class Counted(Frame):
    """The progress of a known number of things, as "servers", of which each takes a while."""

    def __init__(self, console: Console, title: str, total: int, things: str) -> None:
        self._of, self._title = f"of {total:,} {things}", title
        self._began = time.monotonic()
        super().__init__(
            console,
            TextColumn("{task.fields[title]}", markup=False),
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.fields[text]}", markup=False),
            total=total,
            title=title,
            text="",
        )

    def tick(self, done: int) -> None:
        """Called often. done: how many."""
        line = f"{done:,} {self._of}"
        seconds = time.monotonic() - self._began
        self._show(seconds, f"{self._title}: {line}", completed=done, text=line)


class Steps(Frame):
    """The progress of a few steps of unknown length: which one runs, and for how long they have.

    Without a terminal a line for each.
    """

    def __init__(self, console: Console) -> None:
        text = TextColumn("{task.fields[text]}", markup=False)
        super().__init__(console, text, TimeElapsedColumn(), total=None, line_s=0, text="")

    def begin(self, text: str) -> None:
        """Say which step begins."""
        self._show(self._next_line_s, text, text=text)
