"""The file that says how to put back what is changed, written before the first change.

Its first line is for us; the rest is SQL and commands for a person. Whoever may still put things
back holds a lock on it: a file without one was left by a command and a guardian that were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgtare.errors import UsageError
from pgtare.kit import files
from pgtare.postgres import directories
from pgtare.weighing.switches import Switch
from pgtare.weighing.whole_server import configuration
from pgtare.weighing.whole_server.configuration import Before

_HEAD = "-- pgtare "


@dataclass(frozen=True)
class RestoreFile:
    """One file. server: what tells the server from others. lock: an open file that holds it."""

    path: Path
    server: str
    switches: tuple[Switch, ...]
    before: tuple[Before | None, ...]
    lock: int

    def remove(self) -> None:
        """All has been put back."""
        self.path.unlink(missing_ok=True)


def make(server: str, switches: Sequence[Switch], before: Sequence[Before | None]) -> RestoreFile:
    """Write a file, whole or not at all, and sync it. Raises MeasurementError if that fails."""
    path = _directory() / f"{_plain(server)}-{os.getpid()}-{time.time_ns()}.txt"
    document = {
        "server": server,
        "switches": [switch.as_json() for switch in switches],
        "before": [vars(one) if one is not None else None for one in before],
    }
    lines = [_HEAD + json.dumps(document), *by_hand(switches, before)]
    unfinished = path.with_suffix(".new")
    try:
        lock = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(lock, "wb", closefd=False) as file:
            file.write(("\n".join(lines) + "\n").encode())
        os.fsync(lock)
        unfinished.rename(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as ex:
        unfinished.unlink(missing_ok=True)
        raise files.failure(f"cannot write {path}", ex) from ex
    return RestoreFile(path, server, tuple(switches), tuple(before), lock)


def by_hand(switches: Sequence[Switch], before: Sequence[Before | None]) -> list[str]:
    """How a person puts things back: SQL for psql, and commands for a shell."""
    found = []
    for switch, was in zip(switches, before, strict=True):
        if was is not None:
            found.append(f"in psql: {configuration.statements(switch.setting, was.entry)}")
        elif switch.kind == "commands":
            found.append(f"in a shell, which switches {switch.name} on:")
            found += [f"    {line}" for line in switch.on.splitlines()]
    return found


def left_over(server: str) -> Iterator[RestoreFile]:
    """Files that nobody holds any more, each locked: of this server, and of its copies.

    A copy may be this server before its files were given another owner. Raises UsageError if a
    weighing of this server that runs holds one.
    """
    for path in sorted(_directory().glob("*.txt")):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            document = _document(lock)
            if document is None:
                continue
            of_copy = configuration.is_copy(document["server"], server)
            if document["server"] != server and not of_copy:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if of_copy:
                    continue
                raise UsageError(
                    "another weighing switches this server, or its guardian still tries to put "
                    f"back what it changed: wait for it. If it cannot, do what {path} says, end it "
                    f"(fuser -k {shlex.quote(str(path))}) and remove that file"
                ) from None
            if path.exists():
                yield RestoreFile(
                    path,
                    document["server"],
                    tuple(Switch(**one) for one in document["switches"]),
                    tuple(Before(**one) if one else None for one in document["before"]),
                    lock,
                )
        finally:
            os.close(lock)


def _document(lock: int) -> dict[str, Any] | None:
    text = os.pread(lock, 1 << 20, 0).decode(errors="replace")
    first = text.partition("\n")[0]
    with contextlib.suppress(ValueError):
        if first.startswith(_HEAD):
            found: dict[str, Any] = json.loads(first.removeprefix(_HEAD))
            return found
    return None


def _directory() -> Path:
    return directories.private_place("restore")


def _plain(text: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in text)[:40]
