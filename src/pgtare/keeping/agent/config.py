"""What the agent watches and how often: agent.toml, or one connection string."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from pgtare.errors import UsageError
from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.kit import numbers
from pgtare.kit.option_values import address, seconds, size
from pgtare.postgres.inventory import ConfigModel, InventoryServer, ServersConfig, read_config

#: The name of a server that is given by its connection string alone.
ONLY_SERVER = "server"
_AGE, _AGE_UNIT_S = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([hd])\s*"), {"h": 3600.0, "d": 86400.0}
_OLDEST_S = 3650 * _AGE_UNIT_S["d"]
#: A spool that may be smaller would drop what was just read.
_LEAST_BYTES = 64 << 20
_SHORTEST_S = {"waits": 1.0, "statements": 2.0, "sessions": 0.1, "activity": 1.0, "findings": 60.0}


def _quoted(value: Any, parse: Callable[[str, str], float], what: str) -> float:
    """The value of a text. Raises ValueError with the message of `parse`, without an option."""
    if not isinstance(value, str):
        raise ValueError(f"write {what}")
    try:
        return parse("", value)
    except UsageError as ex:
        raise ValueError(str(ex).partition(": ")[2]) from ex


class Intervals(ConfigModel):
    """How often each look is made, in s."""

    waits: float = Field(default=10.0, description="waits by type of process and event")
    statements: float = Field(default=60.0, description="waits by statement and event")
    sessions: float = Field(default=1.0, description="what sessions do just now")
    activity: float = Field(default=60.0, description="transactions, blocks, settings")
    findings: float = Field(default=60.0, description="settings, and what observes the server")

    @field_validator("*", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        return _quoted(value, seconds, "a time in quotes, as in '10s' or '1m'")

    @field_validator("*", mode="after")
    @classmethod
    def _long_enough(cls, value: float, info: Any) -> float:
        if value < _SHORTEST_S[info.field_name]:
            raise ValueError(f"give {_SHORTEST_S[info.field_name]:g}s or more")
        return value


_LIMITS = SpoolLimits()


class SpoolAges(ConfigModel):
    """How long rows are kept, in s."""

    ticks: float = Field(default=_LIMITS.kept_s["ticks"], description="as they were read")
    sessions: float = Field(default=_LIMITS.kept_s["sessions"], description="sampled sessions")
    minutes: float = Field(default=_LIMITS.kept_s["minutes"], description="summed up by the minute")
    hours: float = Field(default=_LIMITS.kept_s["hours"], description="summed up by the hour")

    @field_validator("*", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        found = _AGE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError("write an age in quotes, as in '12h' or '30d'")
        age = float(found[1]) * _AGE_UNIT_S[found[2]]
        if not _AGE_UNIT_S["h"] <= age <= _OLDEST_S:
            raise ValueError("give 1h or more, and at most 3650d")
        return age


class SpoolConfig(ConfigModel):
    """Where the spool is, and how much it may keep."""

    directory: Path | None = None
    most_bytes: int = Field(default=_LIMITS.most_bytes, description="all its files")
    reserve_bytes: int = Field(default=_LIMITS.reserve_bytes, description="left free for others")
    keep: SpoolAges = SpoolAges()

    @field_validator("most_bytes", "reserve_bytes", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        return _quoted(value, size, "a size in quotes, as in '20G' or '500M'")

    @field_validator("most_bytes", mode="after")
    @classmethod
    def _enough(cls, value: int) -> int:
        if value < _LEAST_BYTES:
            raise ValueError(f"give {numbers.volume(_LEAST_BYTES)} or more")
        return value

    @property
    def limits(self) -> SpoolLimits:
        """What the spool keeps to."""
        kept_s: dict[Any, float] = self.keep.model_dump()
        return replace(
            _LIMITS, most_bytes=self.most_bytes, reserve_bytes=self.reserve_bytes, kept_s=kept_s
        )


class MetricsSettings(ConfigModel):
    """Whether metrics are shown to others, and where."""

    listen: str | None = None

    @field_validator("listen")
    @classmethod
    def _usable(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                address("", value)
            except UsageError as ex:
                raise ValueError("give an address and a port, as in '127.0.0.1:9187'") from ex
        return value


class StoreSettings(ConfigModel):
    """A ClickHouse server that gets all rows as well."""

    url: str


class AgentConfig(ServersConfig):
    """Everything that agent.toml may say."""

    spool: SpoolConfig = SpoolConfig()
    most_statements: int = Field(default=200, ge=1, le=10_000)
    intervals: Intervals = Intervals()
    metrics: MetricsSettings = MetricsSettings()
    store: StoreSettings | None = None


def of_dsn(dsn: str) -> AgentConfig:
    """The configuration for one server. Raises UsageError if its string cannot be read."""
    try:
        return AgentConfig(servers={ONLY_SERVER: InventoryServer(dsn=dsn)})
    except ValidationError as ex:
        raise UsageError(str(ex.errors()[0]["ctx"]["error"])) from ex


def read(path: Path) -> AgentConfig:
    """The configuration in a file. Raises UsageError with the place of what is wrong."""
    return read_config(path, AgentConfig, "docs/agent.md")
