"""What the agent watches and how often: agent.toml, or one connection string."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pgtare.errors import UsageError
from pgtare.kit import numbers
from pgtare.kit.option_values import address, seconds, size
from pgtare.watching.spool.limits import SpoolLimits
from pgtare.watching.spool.tables import Age

#: The name of a server that is given by its connection string alone.
ONLY_SERVER = "server"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_AGE, _AGE_UNIT_S = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([hd])\s*"), {"h": 3600.0, "d": 86400.0}
_OLDEST_S = 3650 * _AGE_UNIT_S["d"]
#: A spool that may be smaller would drop what was just read.
_LEAST_BYTES = 64 << 20
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


_LIMITS = SpoolLimits()


class SpoolAges(_ConfigModel):
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


class SpoolConfig(_ConfigModel):
    """Where the spool is, and how much it may keep."""

    directory: Path | None = None
    most_bytes: int = Field(default=_LIMITS.most_bytes, description="all its files")
    reserve_bytes: int = Field(default=_LIMITS.reserve_bytes, description="left free for others")
    keep: SpoolAges = SpoolAges()

    @field_validator("most_bytes", "reserve_bytes", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError("write a size in quotes, as in '20G' or '500M'")
        try:
            return size("", value)
        except UsageError as ex:
            raise ValueError(str(ex).partition(": ")[2]) from ex

    @field_validator("most_bytes", mode="after")
    @classmethod
    def _enough(cls, value: int) -> int:
        if value < _LEAST_BYTES:
            raise ValueError(f"give {numbers.volume(_LEAST_BYTES)} or more")
        return value

    @property
    def limits(self) -> SpoolLimits:
        """What the spool keeps to."""
        kept_s: dict[Age, float] = {
            "ticks": self.keep.ticks,
            "sessions": self.keep.sessions,
            "minutes": self.keep.minutes,
            "hours": self.keep.hours,
        }
        return replace(
            _LIMITS, most_bytes=self.most_bytes, reserve_bytes=self.reserve_bytes, kept_s=kept_s
        )


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


class StoreSettings(_ConfigModel):
    """A ClickHouse server that gets all rows as well. every: how often, s; at least a commit."""

    url: str
    user: str | None = None
    password_file: Path | None = None
    tls: bool | None = None
    ca_file: Path | None = None
    every: float = Field(default=60.0, description="how often rows are sent")

    @field_validator("every", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError("write a time in quotes, as in '60s'")
        try:
            found = seconds("", value)
        except UsageError as ex:
            raise ValueError(str(ex).partition(": ")[2]) from ex
        if not 10 <= found <= 600:
            raise ValueError("give 10s to 10m")
        return found


class AgentConfig(_ConfigModel):
    """Everything that agent.toml may say."""

    spool: SpoolConfig = SpoolConfig()
    most_statements: int = Field(default=200, ge=1, le=10_000)
    intervals: Intervals = Intervals()
    metrics: MetricsSettings = MetricsSettings()
    store: StoreSettings | None = None
    servers: dict[str, WatchedServer] = Field(min_length=1)

    @field_validator("spool", mode="before")
    @classmethod
    def _directory_alone(cls, value: Any) -> Any:
        return {"directory": value} if isinstance(value, str | Path) else value

    @field_validator("servers")
    @classmethod
    def _plain_names(cls, value: dict[str, WatchedServer]) -> dict[str, WatchedServer]:
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
