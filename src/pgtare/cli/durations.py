"""The option `--duration` of commands that otherwise run until a signal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated

import typer

from pgtare.kit.option_values import seconds

Duration = Annotated[
    str | None, typer.Option(help="End after this time, as 90s or 1h; else at a signal.")
]


def duration_s(text: str | None) -> float | None:
    """The seconds of a --duration; None if there is none. Raises UsageError."""
    return None if text is None else seconds("--duration", text)


def stop_after(lasting_s: float | None, stop: Callable[[], None]) -> None:
    """Call `stop` once that time has passed, by a thread that ends with the process."""
    if lasting_s is None:
        return
    timer = threading.Timer(lasting_s, stop)
    timer.daemon = True
    timer.start()
