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
from typing import Literal

from pydantic import Field

import pgtare
from pgtare.errors import PgtareError, UsageError
from pgtare.kit import artefact, files
from pgtare.kit.artefact import ArtefactKind
from pgtare.kit.document import Document, Model, schema_name
from pgtare.postgres.inventory import InventoryServer
from pgtare.weighing.fleet.raw_data import FLEET_FILE, SCHEMA, SERVERS, WHAT
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.measurement import Weighing
from pgtare.weighing.weigh.schema import WeighResult

RESULT_FILE = "result.json"
#: What a server's earlier directory is called while a new one takes its place.
_BEFORE = ".before"
WEIGHING = ArtefactKind(WHAT, FLEET_FILE, SCHEMA)

State = Literal["waiting", "running", "done", "stopped", "lost"]


class FleetServerState(Model):
    """One server of the fleet, and how far its weighing is."""

    name: str = Field(description="its name in the inventory")
    labels: dict[str, str] = Field(description="its labels")
    weight: float = Field(description="how much it matters, relative to the others")
    state: State = Field(
        default="waiting",
        description="`waiting`, `running`, `done`, `stopped` (before its time) or `lost`",
    )
    reason: str = Field(default="", description="why it was stopped or lost")
    started: str | None = Field(default=None, description="when its last trial began")
    ended: str | None = Field(default=None, description="when that ended")
    transactions: int = Field(default=0, description="transactions measured, in all its trials")
    transactions_per_s: float | None = Field(default=None, description="its rate before the trials")


class FleetDesign(Model):
    """What is weighed, and how: enough to go on with it."""

    instruments: list[str] = Field(description="names of instruments, as given")
    arms: list[str] = Field(description="arms of one's own, as given")
    inject_ns: list[int] = Field(description="known delays, for calibration")
    seed: int = Field(description="seed that those of all trials come from")
    duration_s: float = Field(description="how long each server is weighed")
    canary_s: float | None = Field(description="how long a stage before that takes, if given")
    margin_pct: float = Field(description="equivalence margin")
    harm_pct: float = Field(description="harm from which on the guard stops all trials")
    participation: float = Field(description="chance of each session to be drawn, from 0 to 1")
    application: str = Field(description="pattern of the sessions' application_name")
    role: str | None = Field(description="role of the sessions; `null`: any")
    allow: list[str] = Field(description="instruments weighed although they are not safe")
    at_once: int = Field(description="servers weighed side by side, at most")
    lease_s: float = Field(description="how long a trial outlives its client")


class FleetBreach(Model):
    """A harm that the guard saw: it stopped all trials."""

    server: str = Field(description="whose transactions crossed the line")
    what: str = Field(description="what was harmed")
    stage: str = Field(description="stage in which that was")
    after_s: float = Field(description="from the beginning of that stage to the crossing")
    transactions: int = Field(description="transactions with an instrument on until then, all")
    e_value: float = Field(description="the guard's evidence of harm at the crossing")
    stopped_s: float = Field(description="from the crossing until the last trial had ended")


class FleetState(Document):
    """A fleet weighing: the servers, the design, and how far it is."""

    schema_: Literal["pgtare.fleet/1"] = schema_name("pgtare.fleet/1")
    pgtare_version: str = Field(default=pgtare.__version__, description="version of pgtare")
    command: list[str] = Field(description="command line")
    created: str = Field(description="when it began, UTC")
    design: FleetDesign = Field(description="what is weighed, and how")
    stage: str = Field(default="", description="stage reached: `canary`, `few`, `all` or `ended`")
    ended_by: str = Field(
        default="",
        description="`time`, `interrupt`, `breach`, `blind` (an early stage showed the guard too "
        "little), `lost` (no server left), or empty (not yet)",
    )
    breach: FleetBreach | None = Field(
        default=None, description="the harm that ended it, if one did"
    )
    servers: list[FleetServerState] = Field(description="the servers, in the inventory's order")

    def of(self, name: str) -> FleetServerState:
        """A server by its name."""
        return next(server for server in self.servers if server.name == name)


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
        return [name for name in self.kept() if self._usable(name)]

    def _usable(self, name: str) -> bool:
        return self._estimable(name) is not None

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


def check_target(path: Path) -> None:
    """Raise UsageError if `FleetDirectory.create` would refuse it; call it before measuring."""
    artefact.check_new(path, WEIGHING)


def servers_of(inventory: Mapping[str, InventoryServer]) -> list[FleetServerState]:
    """The servers as they are written: without what connects to them."""
    return [
        FleetServerState(name=name, labels=dict(server.labels), weight=server.weight)
        for name, server in inventory.items()
    ]
