"""`fleet.json`: the servers of a fleet weighing, its design, and how far each server is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

import pgtare
from pgtare.kit import numbers
from pgtare.kit.artefact import ArtefactKind
from pgtare.kit.document import Document, Model, schema_name

FLEET_FILE = "fleet.json"
WEIGHING = ArtefactKind("fleet weighing", FLEET_FILE, "pgtare.fleet/1")

State = Literal["waiting", "running", "done", "stopped", "lost"]


class FleetServerState(Model):
    """One server of the fleet, and how far its weighing is."""

    name: str = Field(description="its name in the inventory")
    labels: dict[str, str] = Field(description="its labels")
    state: State = Field(
        default="waiting",
        description="`waiting`, `running`, `done`, `stopped` (before its time) or `lost`",
    )
    reason: str = Field(default="", description="why it was stopped or lost")
    started: str | None = Field(default=None, description="when its last trial began")
    ended: str | None = Field(default=None, description="when that ended")
    transactions: int = Field(default=0, description="transactions measured, in all its trials")
    transactions_per_s: float | None = Field(default=None, description="its rate before the trials")

    def words(self) -> str:
        """The state with its reason, and after how many transactions a server was lost."""
        after = ""
        if self.state == "lost" and self.transactions:
            counted = numbers.counted(self.transactions, "transaction")
            after = f" after {counted} in all its trials"
        return f"{self.state}{after}{f': {self.reason}' if self.reason else ''}"


class FleetDesign(Model):
    """What is weighed, and how: enough to go on with it."""

    instruments: list[str] = Field(description="names of instruments, as given")
    arms: list[str] = Field(description="arms of one's own, as given")
    inject_ns: list[int] = Field(description="known delays, for calibration")
    seed: int = Field(description="seed that those of all trials come from")
    duration_s: float = Field(description="how long each server is weighed")
    canary_s: float | None = Field(description="how long a stage before that takes, if given")
    margin_pct: float = Field(gt=0, lt=100, description="equivalence margin")
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
        description="`time`, `interrupt`, `breach`, `blind` (an early stage lost a server, or "
        "showed the guard too little), `lost` (no server left), or empty (not yet)",
    )
    breach: FleetBreach | None = Field(
        default=None, description="the harm that ended it, if one did"
    )
    servers: list[FleetServerState] = Field(description="the servers, in the inventory's order")

    def of(self, name: str) -> FleetServerState:
        """A server by its name."""
        return next(server for server in self.servers if server.name == name)
