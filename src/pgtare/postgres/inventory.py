"""The servers of a fleet by name: `fleet.toml`, whose `[servers.NAME]` agent.toml has as well."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import psycopg
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pgtare.errors import UsageError
from pgtare.postgres.own_session import unreadable

#: A name is a directory's and a label's value, too.
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
#: How the TOML reader puts it that a table or a key is there twice.
_TWICE = re.compile(r"twice|overwrite", re.IGNORECASE)

Config = TypeVar("Config", bound=BaseModel)


class ConfigModel(BaseModel):
    """A part of a configuration file. What it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class InventoryServer(ConfigModel):
    """One server: how it is reached, what it is for, and how much it matters.

    weight: relative to the others. The lightest server is the canary of `pgtare fleet weigh`.
    """

    dsn: str
    labels: dict[str, str] = {}
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @field_validator("dsn")
    @classmethod
    def _readable(cls, value: str) -> str:
        try:
            psycopg.conninfo.conninfo_to_dict(value)
        except psycopg.ProgrammingError as ex:
            raise ValueError(unreadable(ex, value)) from ex
        return value


class ServersConfig(ConfigModel):
    """A configuration with servers by name."""

    servers: dict[str, InventoryServer] = Field(min_length=1)

    @field_validator("servers")
    @classmethod
    def _plain_names(cls, value: dict[str, InventoryServer]) -> dict[str, InventoryServer]:
        for name in value:
            if not re.match(_NAME, name):
                raise ValueError(
                    f"{name!r} is no name for a server: use letters, digits, '.', '_' and '-', at "
                    "most 63"
                )
        return value


class Inventory(ServersConfig):
    """A fleet. Raises ValueError if two names are one server."""

    @field_validator("servers")
    @classmethod
    def _each_once(cls, value: dict[str, InventoryServer]) -> dict[str, InventoryServer]:
        seen: dict[tuple[str, ...], str] = {}
        for name, server in value.items():
            where = _where(server.dsn)
            if where in seen:
                raise ValueError(
                    f"{seen[where]} and {name} are one server, by host and port: a fleet has each "
                    "server once"
                )
            seen[where] = name
        return value


def _where(dsn: str) -> tuple[str, ...]:
    """Which server a connection string means, as far as it says."""
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    host = parts.get("hostaddr") or parts.get("host")
    if parts.get("service") and host is None:
        return ("service", str(parts["service"]))
    return ("host", str(host or ""), str(parts.get("port") or "5432"))


def read(path: Path) -> Inventory:
    """The fleet in a file. Raises UsageError with the place of what is wrong."""
    return read_config(path, Inventory, "docs/fleet.md")


def read_config(path: Path, model: type[Config], page: str) -> Config:
    """A configuration file. page: of the docs, that lists what it may say.

    Raises UsageError with the first thing that is wrong. Values may be secrets and are not shown.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"{path} is not UTF-8 text: save it as UTF-8") from ex
    except tomllib.TOMLDecodeError as ex:
        if _TWICE.search(str(ex)):
            raise UsageError(f"{path} says something twice: {ex}; remove one of the two") from ex
        raise UsageError(f"{path} is not TOML: {ex}") from ex
    try:
        return model.model_validate(document)
    except ValidationError as ex:
        raise UsageError(f"{path}: {_first(ex, page)}") from ex


def _first(ex: ValidationError, page: str) -> str:
    error: Mapping[str, object] = ex.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in ex.errors()[0]["loc"])
    if place == "servers" and error["type"] in ("missing", "too_short"):
        return "it names no server: add a section [servers.NAME] with dsn = '…'"
    if error["type"] == "missing":
        return f"{place} is missing"
    if error["type"] == "extra_forbidden":
        return f"{place} is not known: {page} lists what there is"
    words = str(error["msg"]).removeprefix("Value error, ")
    return f"{place}: {words[:1].lower()}{words[1:]}"
