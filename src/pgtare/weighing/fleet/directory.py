"""The directory of a fleet weighing: `fleet.json`, and what each server gave in `servers/NAME`.

The directory appears by one rename, with `fleet.json`, which is written whole at every step, so a
weighing that was killed can go on. The directory of a server is that of `pgtare weigh --out`, and
appears by one rename. No connection string is ever written.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pgtare.errors import PgtareError, UsageError
from pgtare.kit import artefact, files
from pgtare.postgres.inventory import InventoryServer
from pgtare.weighing.fleet.raw_data import SERVERS
from pgtare.weighing.fleet.state import FLEET_FILE, WEIGHING, FleetServerState, FleetState
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.measurement import Weighing
from pgtare.weighing.weigh.schema import WeighResult

RESULT_FILE = "result.json"
#: What a server's earlier directory is called while a new one takes its place.
_BEFORE = ".before"


class FleetDirectory:
    """A place for a fleet weighing; all its methods are for one thread."""

    def __init__(self, path: Path, state: FleetState) -> None:
        self.path, self.state = path, state
        self._claim: int | None = None

    @classmethod
    def create(cls, path: Path, state: FleetState) -> FleetDirectory:
        """A new one, by one rename. Raises UsageError if there is something already."""
        with artefact.new_directory(path, WEIGHING, f"{path} cannot be made") as staged:
            (staged / SERVERS).mkdir(mode=0o700)
            cls(staged, state).save()
        made = cls(path, state)
        made._claim = _claimed(path)
        return made

    @classmethod
    def open(cls, path: Path) -> FleetDirectory:
        """One that is there. Raises UsageError if it is none, PgtareError if it is damaged."""
        document = WEIGHING.open(path)
        return cls(path, artefact.parsed(FleetState, document, path / FLEET_FILE))

    @classmethod
    def resume(cls, path: Path) -> FleetDirectory:
        """As `open`, to go on: for one process at a time, until `release` or its end."""
        WEIGHING.open(path)
        claim = _claimed(path)
        try:
            opened = cls.open(path)
        except BaseException:
            os.close(claim)
            raise
        opened._claim = claim
        opened._put_back()
        return opened

    def release(self) -> None:
        """Let another process go on."""
        if self._claim is not None:
            os.close(self._claim)
        self._claim = None

    def _put_back(self) -> None:
        """What a server gave before, if a kill came before the new was in its place."""
        for before in (self.path / SERVERS).glob(f".*{_BEFORE}"):
            target = before.with_name(before.name[1 : -len(_BEFORE)])
            if not target.exists():
                before.rename(target)

    def save(self) -> None:
        """Write `fleet.json`, whole."""
        files.write_text(self.path / FLEET_FILE, self.state.to_json() + "\n")

    def keep(self, name: str, weighing: Weighing) -> bool:
        """Write what a server gave, whole or not at all, in the place of what it gave before.

        A trial in which the server was lost does not take the place of one that can be estimated,
        nor does an interrupted one take that of a whole one, or of one that saw as much; returns
        whether it was written.
        """
        if not self._better(weighing.result, name):
            return False
        target = self.path / SERVERS / name
        written, before = target.with_name(f".{name}.new"), target.with_name(f".{name}{_BEFORE}")
        shutil.rmtree(written, ignore_errors=True)
        store.save(written, weighing.design, weighing.observations, weighing.result)
        shutil.rmtree(before, ignore_errors=True)
        if target.exists():
            target.rename(before)
        written.rename(target)
        shutil.rmtree(before, ignore_errors=True)
        return True

    def kept(self) -> list[str]:
        """The servers that gave something."""
        return sorted(path.name for path in (self.path / SERVERS).iterdir() if path.name[0] != ".")

    def usable(self) -> list[str]:
        """Those of them that can be estimated: not damaged, nor lost in the trial that is kept."""
        return [name for name in self.kept() if self._estimable(name) is not None]

    def _estimable(self, name: str) -> WeighResult | None:
        try:
            result = store.load_result(self.path / SERVERS / name / store.RESULT_FILE)
        except PgtareError:  # the report says more
            return None
        return None if result.design.stopped_by == "server" else result

    def _better(self, found: WeighResult, name: str) -> bool:
        """Whether a result is of more use than the one that is kept."""
        kept, ended = self._estimable(name), found.design.stopped_by
        if kept is None or ended == "time":
            return True
        if ended == "server" or kept.design.stopped_by == "time":
            return False
        return _transactions(found) > _transactions(kept)

    def write_result(self, text: str) -> None:
        """Write `result.json`, whole; it is the last that is written."""
        files.write_text(self.path / RESULT_FILE, text + "\n")


def _transactions(result: WeighResult) -> int:
    return sum(arm.n + arm.excluded for arm in result.arms)


def _claimed(path: Path) -> int:
    """A lock on the directory itself. Raises UsageError if another process has it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as ex:
        os.close(fd)
        raise UsageError(f"another pgtare is weighing into {path}: wait for its end") from ex
    return fd


def servers_of(inventory: Mapping[str, InventoryServer]) -> list[FleetServerState]:
    """The servers as they are written: without what connects to them."""
    return [
        FleetServerState(name=name, labels=dict(server.labels))
        for name, server in inventory.items()
    ]
