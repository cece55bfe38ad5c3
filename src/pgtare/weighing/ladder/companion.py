"""A program that runs during a variant's load: a recorder, an agent, whatever watches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgtare.errors import MeasurementError
from pgtare.kit.interpreter import module_command
from pgtare.postgres.load.process import Child

#: What ourselves are called in a study file.
_OURSELVES = "pgtare"
_PATIENCE_S = 30.0


@contextlib.contextmanager
def running(command: Sequence[str], dsn: str, folder: Path) -> Iterator[list[int]]:
    """Run it while the block lasts; gives the process ids. Empty commands run nothing.

    {dsn} and {folder} in its words are the server, and a place for files that is gone afterwards.
    It is ended by SIGINT. Raises MeasurementError if it cannot be run, or did not run to the end
    of the block.
    """
    if not command:
        yield []
        return
    words = [word.replace("{dsn}", dsn).replace("{folder}", str(folder)) for word in command]
    # ourselves by the interpreter that runs us, whatever PATH finds
    ours = words[0] == _OURSELVES
    try:
        child = Child(module_command(*words) if ours else words, os.environ)
    except OSError as ex:
        raise MeasurementError(f"cannot run the companion {words[0]}: {ex.strerror}") from ex
    try:
        yield [child.pid]
        if child.status is not None:
            child.wait()  # for the last of what it has said
            last = next((line for line in reversed(child.stderr) if line.strip()), "")
            raise MeasurementError(
                f"the companion {words[0]} ended early with status {child.status}: {last}"
            )
    finally:
        child.stop(_PATIENCE_S)
