"""Tells apart servers that a watchpoint's stray trap ended, and those that died of anything else.

On a virtual machine a trap can reach the kernel without its reason, once in some 100,000, which
ends the watched process by SIGTRAP, and with it the server.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

from pgtare.postgres.settings import Value

#: For a server that is watched: one that dies is not in the midst of recovery when it is stopped.
SETTINGS: dict[str, Value] = {"restart_after_crash": False}

# as the postmaster's log has it
_ENDED_BY = "was terminated by signal "
_BY_TRAP = f"{_ENDED_BY}5:"
_TOLD_SECONDS = 5.0  # the client may hear of the end before the postmaster does


class StrayTrap(Exception):
    """The watched server was ended by the watching, not by what it did: repeat everything."""


@contextlib.contextmanager
def stray_traps_reported(logs: Sequence[Path]) -> Iterator[None]:
    """StrayTrap for a connection lost as a trap ended a server; any other loss stays as it is."""
    try:
        yield
    except psycopg.OperationalError as ex:
        if _ended_by_trap(logs):
            raise StrayTrap("a stray trap ended the server") from ex
        raise


def _ended_by_trap(logs: Sequence[Path]) -> bool:
    deadline = time.monotonic() + _TOLD_SECONDS
    while True:
        texts = [log.read_text(errors="replace") for log in logs]
        if any(_ENDED_BY in text for text in texts) or time.monotonic() > deadline:
            return any(_BY_TRAP in text for text in texts)
        time.sleep(0.05)
