"""Standard output that says when it cannot be written, apart from all other files."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from pgtare.errors import MeasurementError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as ex:
            give_up()
            raise MeasurementError(
                f"what was to be printed could not be written: {ex.strerror}"
            ) from ex


def watch() -> None:
    """From now on what cannot be printed is a MeasurementError; a closed pipe stays what it is."""
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper) or given is not sys.__stdout__:
        return  # closed, or a test's
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(given.fileno(), "wb", closefd=False)),
        encoding=given.encoding, errors=given.errors,
        line_buffering=given.line_buffering or given.write_through,  # PYTHONUNBUFFERED
    )  # fmt: skip


def give_up() -> None:
    """Let go what is still to be printed: Python would complain of it at exit as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
