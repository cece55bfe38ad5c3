"""Where the raw data of a fleet are: PREFIX/servers/NAME/, in a directory or in a bucket.

Each of these is what `pgtare weigh --out` leaves. A local directory is read in place. From a bucket
one server's files at a time are copied to a temporary directory, and removed again.
"""

from __future__ import annotations

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import artefact
from pgtare.weighing.weigh import store

SERVERS = "servers"
#: What describes the fleet: the inventory, and how far the weighing of each server is.
FLEET_FILE = "fleet.json"
WHAT = "fleet weighing"
_LAYOUT = "the raw data of a server are expected in PREFIX/servers/NAME/"


@dataclass(frozen=True)
class LeftOut:
    """A server that is not in the figures, and why, in words that follow its name."""

    server: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """The servers of a prefix, in the order of their names, and what cannot be read."""

    servers: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


class RawData(ABC):
    """The raw data of a fleet. It can be sent to another process."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @abstractmethod
    def names(self) -> list[str]:
        """What is in PREFIX/servers. Raises UsageError if that is not there."""

    @abstractmethod
    def files(self, server: str) -> list[str]:
        """The names of a server's files."""

    @abstractmethod
    def text(self) -> str | None:
        """The text of PREFIX/fleet.json; None if there is none."""

    @abstractmethod
    def fetched(
        self, server: str, names: Sequence[str] = store.FILES
    ) -> contextlib.AbstractContextManager[Path]:
        """A local directory that holds these files of a server."""

    def place(self, server: str) -> str:
        """What messages call a server's directory."""
        return f"{self.prefix.rstrip('/')}/{SERVERS}/{server}"

    def listing(self) -> Listing:
        """Which servers there are. One whose files are not all there is left out.

        Raises UsageError if there is no directory of servers, or nothing in it.
        """
        found, left_out = [], []
        for name in sorted(self.names()):
            if name.startswith("."):
                reason = "a directory that was being written when the weighing was cut off"
                left_out.append(LeftOut(name, reason))
                continue
            present = self.files(name)
            missing = [file for file in store.FILES if file not in present]
            if missing:
                left_out.append(LeftOut(name, _incomplete(missing)))
            else:
                found.append(name)
        if not found and not left_out:
            raise UsageError(f"{self.prefix} holds no {WHAT}: {SERVERS}/ in it is empty; {_LAYOUT}")
        return Listing(tuple(found), tuple(left_out))


class LocalData(RawData):
    """In a directory of this machine, or one that it has mounted."""

    @property
    def _servers(self) -> Path:
        return Path(self.prefix) / SERVERS

    def names(self) -> list[str]:
        try:
            return [one.name for one in os.scandir(self._servers) if one.is_dir()]
        except (FileNotFoundError, NotADirectoryError) as ex:
            if not Path(self.prefix).exists():
                raise artefact.not_there(Path(self.prefix), WHAT) from ex
            raise UsageError(
                f"{self.prefix} holds no {WHAT}: it has no directory {SERVERS}/; {_LAYOUT}"
            ) from ex
        except OSError as ex:
            raise artefact.unreadable(self._servers, ex) from ex

    def files(self, server: str) -> list[str]:
        try:
            return os.listdir(self._servers / server)
        except OSError as ex:
            raise artefact.unreadable(self._servers / server, ex) from ex

    def text(self) -> str | None:
        path = Path(self.prefix) / FLEET_FILE
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as ex:
            raise artefact.unreadable(path, ex) from ex
        except ValueError as ex:
            raise artefact.damaged(path, "it is not a JSON document") from ex

    @contextlib.contextmanager
    def fetched(self, server: str, names: Sequence[str] = store.FILES) -> Iterator[Path]:
        directory = self._servers / server
        if not directory.is_dir():
            raise MeasurementError(
                f"{directory} is not there on {socket.gethostname()}: every machine that takes "
                "part must have the raw data under the same path"
            )
        yield directory


def _incomplete(missing: Sequence[str]) -> str:
    listed = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
    return (
        f"incomplete: {listed} {'is' if len(missing) == 1 else 'are'} missing; its weighing did "
        "not end, or not all of it was copied"
    )
