"""The JSON documents of `pgtare status` and of `pgtare stop`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, renamed, schema_name
from pgtare.weighing.trials import Status


class TrialStatus(Document):
    """The trial that runs, or the last one that ran."""

    schema_: Literal["pgtare.status/1"] = schema_name("pgtare.status/1")
    running: bool = Field(description="whether a trial runs")
    trial: int = Field(description="its number since the server started; 0: there was none")
    owner_pid: int | None = Field(description="process that began it")
    started: datetime | None = Field(description="when it began")
    ended: datetime | None = Field(description="when it ended")
    left_s: float = Field(description="how long it may still run")
    end_reason: str | None = Field(description="what ended it")
    sessions: int = Field(description="sessions that took part")
    sessions_now: int = Field(description="sessions that take part now")
    sessions_no_ring: int = Field(description="sessions that found no room for observations")
    sessions_lacking_settings: int = Field(description="sessions that lack a setting of an arm")
    observations: int = Field(description="observations kept")
    lost: int = Field(description="observations lost because a ring was full")
    negative_clock: int = Field(description="times that the clock stepped back")
    failed_arms: list[int] = Field(description="arms whose settings could not be put in force")


class TrialStopped(Document):
    """What `pgtare stop` did."""

    schema_: Literal["pgtare.stopped/1"] = schema_name("pgtare.stopped/1")
    stopped: bool = Field(description="whether a trial was running, which has been stopped")


def status(found: Status) -> TrialStatus:
    """The document of a trial's status."""
    return TrialStatus.model_validate(renamed(vars(found), seconds_left="left_s"))
