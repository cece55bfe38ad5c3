"""The file that says how to put back what is changed, written before the first change.

Its first lines are for us: what has been changed, which command is under way, and all that may be
changed. The rest is SQL and commands for a person. Whoever may still put things back holds a lock
on it: a file without one was left by a command and a guardian that were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.kit import files
from pgtare.postgres import directories
from pgtare.weighing.switches import Switch
from pgtare.weighing.whole_server import configuration
from pgtare.weighing.whole_server.configuration import Before

#: When each was changed, in s since 1970; null: it is as it was. Written over again and again.
_CHANGED, _TIME_LENGTH = "-- changed ", 20
#: The session of a command, and when it began; nothing: there is none. Of one length, too.
_RUNNING, _RUNNING_LENGTH = "-- running", 60
_HEAD = "-- pgtare "
#: What files are called that we have made.
_NAME = re.compile(r"(.*)-\d+-\d+\.txt")
#: After so long nobody is writing a file that is not whole, in s.
_UNFINISHED_S = 60.0


@dataclass(frozen=True)
class RestoreFile:
    """One file. server: what tells the server from others. lock: an open file that holds it.

    directory: in which commands run. changed: since when, in s since 1970, each switch is not as it
    was, if it is not.
    """

    path: Path
    server: str
    switches: tuple[Switch, ...]
    before: tuple[Before | None, ...]
    directory: str
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

    @property
    def running(self) -> RunningNote:
        """Which command is under way."""
        return RunningNote(self.lock, len(self.switches))

    def remove(self) -> None:
        """All has been put back."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class RunningNote:
    """Which command is under way, in the file: whoever takes over waits for its end.

    file: open for writing. switches: how many there are.
    """

    file: int
    switches: int

    def begins(self) -> None:
        """Called by the command's own process: no moment is left out in which we may be killed."""
        self._write(f" {os.getpid()} {time.time():.3f}")

    def is_over(self) -> None:
        """There is none any more."""
        self._write("")

    def read(self) -> tuple[int, float] | None:
        """Its session, and when it began, in s since 1970."""
        with contextlib.suppress(OSError, ValueError):
            line = os.pread(self.file, _RUNNING_LENGTH, self._at).decode(errors="replace")
            _, session, began_s = line.removeprefix(_RUNNING).rjust(1).split(" ", 2)
            return int(session), float(began_s)
        return None

    @property
    def _at(self) -> int:
        return len(_changed_line([None] * self.switches))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # to switch matters more
            os.pwrite(self.file, _running_line(text), self._at)


def make(server: str, switches: Sequence[Switch], before: Sequence[Before | None]) -> RestoreFile:
    """Write a file, whole or not at all, and sync it. Raises MeasurementError if that fails."""
    path = _directory() / f"{_plain(server)}-{os.getpid()}-{time.time_ns()}.txt"
    directory = working_directory()
    document = {
        "server": server,
        "directory": directory,
        "switches": [switch.as_json() for switch in switches],
        "before": [vars(one) if one is not None else None for one in before],
    }
    lines = [_HEAD + json.dumps(document), *by_hand(switches, before, directory)]
    changed: list[float | None] = [None for _ in switches]
    unfinished = path.with_suffix(".new")
    try:
        lock = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(lock, "wb", closefd=False) as file:
            file.write(
                _changed_line(changed) + _running_line("") + ("\n".join(lines) + "\n").encode()
            )
        os.fsync(lock)
        unfinished.rename(path)
        files.sync(path.parent)
    except OSError as ex:
        unfinished.unlink(missing_ok=True)
        raise files.failure(f"cannot write {path}", ex) from ex
    return RestoreFile(path, server, tuple(switches), tuple(before), directory, lock, changed)


def working_directory() -> str:
    """Where commands run; / if it has gone."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return "/"


def by_hand(
    switches: Sequence[Switch], before: Sequence[Before | None], directory: str
) -> list[str]:
    """How a person puts things back: SQL for psql, and commands for a shell in a directory."""
    found = []
    for switch, was in zip(switches, before, strict=True):
        if was is not None:
            found.append(f"in psql: {configuration.statements(switch.setting, was.entry)}")
        elif switch.kind == "commands":
            command, state = switch.as_it_was
            found.append(f"in a shell, which switches {switch.name} {state}:")
            found.append(f"    cd {shlex.quote(directory)}")
            found += [f"    {line}" for line in command.splitlines()]
            if switch.shown:
                found.append(f"    # {switch.setting} was {switch.shown}")
    return found


def left_over(server: str) -> Iterator[RestoreFile]:
    """Files that nobody holds any more, each locked: of this server, and of what may be it.

    Raises UsageError if a weighing that runs holds one, unless it is surely of another server, and
    if one cannot be read.
    """
    _remove_unfinished()
    for path in sorted(_directory().glob("*.txt")):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if not _may_be_of(path, server):
                continue
            file = _read(path, lock)
            of = server if file is None else file.server
            of_copy = configuration.is_copy(of, server)
            if not of_copy and not configuration.is_same(of, server):
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if of_copy and configuration.told_apart(of, server):
                    continue
                raise UsageError(
                    "another weighing switches this server, or its guardian still tries to put "
                    f"back what it changed: wait for it. If it cannot, do what {path} says, end it "
                    f"(fuser -k {shlex.quote(str(path))}) and remove that file"
                ) from None
            if not path.exists():
                continue
            if file is None:
                raise UsageError(
                    f"a weighing that was killed has left {path}, which is damaged or of another "
                    "version of pgtare: do what it says if that is not done yet, then remove it"
                )
            yield file
        finally:
            os.close(lock)


def _remove_unfinished() -> None:
    """Files that were never whole: nothing was changed by then."""
    for path in _directory().glob("*.new"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNFINISHED_S:
                path.unlink()


def _may_be_of(path: Path, server: str) -> bool:
    """Whether a file is one of ours, and not surely of a server with another system identifier."""
    found = _NAME.fullmatch(path.name)
    mine = _plain(server).partition("-")[0]
    its = found[1].partition("-")[0] if found else ""
    return found is not None and (its == mine or not its or not mine)


def _read(path: Path, lock: int) -> RestoreFile | None:
    """None if it is damaged, or of another version."""
    lines = os.pread(lock, 1 << 20, 0).decode(errors="replace").split("\n")
    with contextlib.suppress(ValueError, TypeError, KeyError):
        changed = json.loads(_after(_CHANGED, lines[0]))
        document = json.loads(_after(_HEAD, "".join(lines[2:3])))
        switches = tuple(Switch(**one) for one in document["switches"])
        before = tuple(Before(**one) if one else None for one in document["before"])
        known = all(one is None or isinstance(one, float) for one in changed)
        if known and len(switches) == len(before) == len(changed):
            directory = str(document["directory"])
            return RestoreFile(path, document["server"], switches, before, directory, lock, changed)
    return None


def _after(prefix: str, line: str) -> str:
    if not line.startswith(prefix):
        raise ValueError(prefix)
    return line.removeprefix(prefix)


def _changed_line(changed: Sequence[float | None]) -> bytes:
    """Always as long."""
    width = len(_CHANGED) + _TIME_LENGTH * (len(changed) + 1)
    return f"{_CHANGED}{json.dumps(changed)}".ljust(width).encode() + b"\n"


def _running_line(text: str) -> bytes:
    return f"{_RUNNING}{text}".ljust(_RUNNING_LENGTH).encode() + b"\n"


def _directory() -> Path:
    return directories.private_place("restore")


def _plain(text: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in text)[:40]
