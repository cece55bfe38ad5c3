"""What `pgtare agent check` prints as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pgtare.keeping.agent.config import SpoolConfig
from pgtare.kit.document import Document, Model, schema_name


class ServerCheck(Model):
    """What an agent would see of a server."""

    server: str = Field(description="its name")
    version: str = Field(default="", description="version of PostgreSQL; empty: no connection")
    role: str = Field(
        default="", description="the role that the agent would use; empty: no connection"
    )
    waits: str = Field(default="none", description="exact, sampled, or none")
    statements: str = Field(default="none", description="exact, approximate, or none")
    problem: str | None = Field(default=None, description="why it cannot be watched; null: it can")
    notes: list[str] = Field(default=[], description="what is missing, each with its remedy")


class SpoolPlan(Model):
    """Where an agent would keep what it reads, and how much of it."""

    directory: str | None = Field(description="the directory; null: the file names none")
    most_bytes: int = Field(description="size of all its files at most, bytes")
    reserve_bytes: int = Field(description="room on its disk that is left free for others, bytes")
    kept_s: dict[str, float] = Field(
        description="age at which rows go: ticks, sessions, minutes and hours, s"
    )


class StoreSeen(Model):
    """What an agent would see of the store that it sends its rows to."""

    address: str = Field(description="its address; empty: it is not valid")
    version: str = Field(default="", description="version of ClickHouse; empty: no answer")
    user: str = Field(default="", description="the user that the agent would be; empty: no answer")
    faults: list[str] = Field(default=[], description="what keeps the agent from sending rows")
    notes: list[str] = Field(default=[], description="what else should be known")


class AgentCheck(Document):
    """What an agent would see of each server, and of its store."""

    schema_: Literal["pgtare.agent.check/1"] = schema_name("pgtare.agent.check/1")
    servers: list[ServerCheck] = Field(description="the servers, in the order of the file")
    spool: SpoolPlan = Field(description="the spool, by the configuration")
    store: StoreSeen | None = Field(description="the store; null: the configuration names none")


def spool_plan(found: SpoolConfig) -> SpoolPlan:
    """What a configuration says of the spool."""
    return SpoolPlan(
        directory=None if found.directory is None else str(found.directory),
        most_bytes=found.most_bytes,
        reserve_bytes=found.reserve_bytes,
        kept_s={str(age): seconds for age, seconds in found.limits.kept_s.items()},
    )
