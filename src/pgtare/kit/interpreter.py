"""How modules of our own run in another process: never with files of the current directory.

Python finds modules there first, so that anybody's random.py would run in place of its own.
"""

from __future__ import annotations

import sys


def module_command(module: str, *words: str) -> list[str]:
    """The command that runs a module, with the words that it is given."""
    return [sys.executable, "-P", "-m", module, *words]
