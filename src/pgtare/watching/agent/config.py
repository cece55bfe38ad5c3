"""What the agent watches and how often: agent.toml, or one connection string."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pgtare.errors import UsageError
from pgtare.kit.option_values import address, seconds

#: The name of a server that is given by its connection string alone.
ONLY_SERVER = "server"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_SHORTEST_S = {"waits": 1.0, "statements": 2.0, "sessions": 0.1, "activity": 1.0, "findings": 60.0}


class _ConfigModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Intervals(_ConfigModel):
    """How often each look is made, in s."""

    waits: float = Field(default=10.0, description="waits by type of process and event")
    statements: float = Field(default=60.0, description="waits by statement and event")
    sessions: float = Field(default=1.0, description="what sessions do just now")
    activity: float = Field(default=60.0, description="transactions, blocks, settings")
    findings: float = Field(default=3600.0, description="what `pgtare doctor` finds")

    @field_validator("*", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError("write a time in quotes, as in '10s' or '1m'")
        try:
            return seconds("", value)
        except UsageError as ex:
            raise ValueError(str(ex).partition(": ")[2]) from ex

    @field_validator("*", mode="after")
    @classmethod
    def _long_enough(cls, value: float, info: Any) -> float:
        if value < _SHORTEST_S[info.field_name]:
            raise ValueError(f"give {_SHORTEST_S[info.field_name]:g}s or more")
        return value


class WatchedServer(_ConfigModel):
    """One server: how it is reached, and what it is for."""

    dsn: str
    labels: dict[str, str] = {}


class MetricsSettings(_ConfigModel):
    """Whether and how metrics are served to Prometheus. most_series: time series of a server."""

    listen: str | None = None
    all_buckets: bool = False
    most_series: int = Field(default=5000, ge=100, le=1_000_000)

    @field_validator("listen")
    @classmethod
    def _usable(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                address("", value)
            except UsageError as ex:
                raise ValueError("give an address and a port, as in '127.0.0.1:9187'") from ex
        return value


class AgentConfig(_ConfigModel):
    """Everything that agent.toml may say."""

    spool: Path | None = None
    most_statements: int = Field(default=200, ge=1, le=10_000)
    intervals: Intervals = Intervals()
    metrics: MetricsSettings = MetricsSettings()
    servers: dict[str, WatchedServer] = Field(min_length=1)

    @field_validator("servers")
    @classmethod
    def _plain_names(cls, value: dict[str, WatchedServer]) -> dict[str, WatchedServer]:
        import re

        for name in value:
            if not re.match(_NAME, name):
                raise ValueError(
                    f"{name!r} is no name for a server: use letters, digits, '.', '_' and '-', at "
                    "most 63"
                )
        return value


def of_dsn(dsn: str) -> AgentConfig:
    """The configuration for one server."""
    return AgentConfig(servers={ONLY_SERVER: WatchedServer(dsn=dsn)})


def read(path: Path) -> AgentConfig:
    """The configuration in a file. Raises UsageError with the place of what is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"{path} is not UTF-8 text: save it as UTF-8") from ex
    except tomllib.TOMLDecodeError as ex:
        raise UsageError(f"{path} is not TOML: {ex}") from ex
    try:
        return AgentConfig.model_validate(document)
    except ValidationError as ex:
        raise UsageError(f"{path}: {_first(ex)}") from ex


def _first(ex: ValidationError) -> str:
    """The first thing that is wrong, in one sentence; values may be secrets and are not shown."""
    error = ex.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        if place == "servers":
            return "it names no server: add a section [servers.NAME] with dsn = '…'"
        return f"{place} is missing"
    if error["type"] == "extra_forbidden":
        return f"{place} is not known: docs/agent.md lists what there is"
    if error["type"] == "too_short":
        return "it names no server: add a section [servers.NAME] with dsn = '…'"
    words = str(error["msg"]).removeprefix("Value error, ")
    return f"{place}: {words[:1].lower()}{words[1:]}"
