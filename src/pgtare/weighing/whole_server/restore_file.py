"""The file that says how to put back what is changed, written before the first change.

Its first two lines are for us: what has been changed, and all that may be. The rest is SQL and
commands for a person. Whoever may still put things back holds a lock on it: a file without one was
left by a command and a guardian that were killed.
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

#: When each was changed, in s since 1970; null: it is as it was. Written over again and again.
_CHANGED, _TIME_LENGTH = "-- changed ", 20
_HEAD = "-- pgtare "


@dataclass(frozen=True)
class RestoreFile:
    """One file. server: what tells the server from others. lock: an open file that holds it.

    changed: since when, in s since 1970, each switch is not as it was, if it is not.
    """

    path: Path
    server: str
    switches: tuple[Switch, ...]
    before: tuple[Before | None, ...]
    lock: int
    changed: list[float | None]

    def note(self, index: int, *, changed: bool) -> None:
        """A switch is about to be changed, or is as it was; synced. Raises MeasurementError.

        A process ends with the guardian, and is not noted.
        """
        is_noted = self.changed[index] is not None
        if changed == is_noted or self.switches[index].kind == "process":
            return
        self.changed[index] = round(time.time(), 3) if changed else None
        try:
            os.pwrite(self.lock, _changed_line(self.changed), 0)
            os.fsync(self.lock)
        except OSError as ex:
            raise files.failure(f"cannot write {self.path}", ex) from ex

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
    changed: list[float | None] = [None for _ in switches]
    unfinished = path.with_suffix(".new")
    try:
        lock = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(lock, "wb", closefd=False) as file:
            file.write(_changed_line(changed) + ("\n".join(lines) + "\n").encode())
        os.fsync(lock)
        unfinished.rename(path)
        files.sync(path.parent)
    except OSError as ex:
        unfinished.unlink(missing_ok=True)
        raise files.failure(f"cannot write {path}", ex) from ex
    return RestoreFile(path, server, tuple(switches), tuple(before), lock, changed)


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
    """Files that nobody holds any more, each locked: of this server, and of what may be it.

    Raises UsageError if a weighing that runs holds one, unless it is surely of another server.
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
            if not of_copy and not configuration.is_same(document["server"], server):
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if of_copy and configuration.told_apart(document["server"], server):
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
                    document["changed"],
                )
        finally:
            os.close(lock)


def _document(lock: int) -> dict[str, Any] | None:
    text = os.pread(lock, 1 << 20, 0).decode(errors="replace")
    changed, first, *_ = [*text.split("\n", 2), ""]
    with contextlib.suppress(ValueError):
        if first.startswith(_HEAD):
            found: dict[str, Any] = json.loads(first.removeprefix(_HEAD))
            return {**found, "changed": json.loads(changed.removeprefix(_CHANGED))}
    return None


def _changed_line(changed: Sequence[float | None]) -> bytes:
    """Always as long."""
    width = len(_CHANGED) + _TIME_LENGTH * (len(changed) + 1)
    return f"{_CHANGED}{json.dumps(changed)}".ljust(width).encode() + b"\n"


def _directory() -> Path:
    return directories.private_place("restore")


def _plain(text: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in text)[:40]
