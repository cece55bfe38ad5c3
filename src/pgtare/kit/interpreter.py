"""How modules of our own run in another process: never with files of the current directory.

Python finds modules there first, so that anybody's random.py would run in place of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_SAFE_PATH = "PYTHONSAFEPATH"


def module_command(module: str, *words: str) -> list[str]:
    """The command that runs a module, with the words that it is given."""
    return [sys.executable, "-P", "-m", module, *words]


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Around whatever has multiprocessing start processes: their command is not ours to write."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before
