"""Standard output that says when it cannot be written, apart from all other files."""

from __future__ import annotations

import codecs
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
            raise MeasurementError(f"could not write to standard output: {ex.strerror}") from ex


def watch() -> None:
    """From now on what cannot be printed is a MeasurementError; a closed pipe stays what it is."""
    if isinstance(sys.stderr, io.TextIOWrapper) and not holds_all(sys.stderr.encoding):
        sys.stderr.reconfigure(errors=_SIMPLER)
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper) or given is not sys.__stdout__:
        return  # closed, or a test's
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(given.fileno(), "wb", closefd=False)),
        encoding=given.encoding,
        errors=given.errors if holds_all(given.encoding) else _SIMPLER,
        line_buffering=given.line_buffering or given.write_through,  # PYTHONUNBUFFERED
    )


def holds_all(encoding: str) -> bool:
    """Whether every character can be written in an encoding."""
    return codecs.lookup(encoding).name.startswith("utf")


def _simpler(ex: UnicodeError) -> tuple[str, int]:
    if not isinstance(ex, UnicodeEncodeError):
        raise ex
    return "".join(_PLAIN.get(c, "?") for c in ex.object[ex.start : ex.end]), ex.end


#: What is written instead in an encoding that lacks a character; each as wide as that is.
_PLAIN = dict(zip("µ−–—…’‘“”×·█▏▎▍▌▋▊▉─│•≤≥α±", "u---.''\"\"x.########-|*<>a~", strict=True))
_SIMPLER = "pgtare.simpler"
codecs.register_error(_SIMPLER, _simpler)


def give_up() -> None:
    """Let go what is still to be printed: Python would complain of it at exit as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
