"""Whether a value that somebody wrote is the one that a server shows, however it is spelled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pgtare.errors import UsageError
from pgtare.weighing.outside.session import without_own

_SHOWN = """
SELECT vartype, context, coalesce(enumvals, '{}'), setting, coalesce(unit, '')
FROM pg_catalog.pg_settings WHERE lower(name) = %s
"""
#: What a server takes for another of its words, and shows so.
_ALIASES = frozenset({("wal_compression", "on")})
_ON, _OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
_NUMBER = re.compile(r"([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*([A-Za-z]*)", re.IGNORECASE)
#: In bytes, and in microseconds.
_BYTES = {"B": 1.0, "kB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40}
_TIMES = {"us": 1.0, "ms": 1e3, "s": 1e6, "min": 6e7, "h": 3.6e9, "d": 8.64e10}


@dataclass(frozen=True)
class SettingNow:
    """A setting as the server has it. Its number is in `unit`, such as 8kB."""

    name: str
    kind: str
    context: str
    names: Sequence[str]
    value: str
    unit: str

    @property
    def is_for_new_sessions(self) -> bool:
        """Whether sessions that are there keep the value they began with."""
        return self.context in ("backend", "superuser-backend")

    @property
    def needs_restart(self) -> bool:
        """Whether a reload changes nothing."""
        return self.context in ("postmaster", "internal")

    @property
    def shown(self) -> str:
        """The value with its unit."""
        is_size = self.unit.isalpha() and self.value not in ("0", "-1")
        return f"{self.value}{self.unit}" if is_size else self.value

    def allowed(self) -> list[str]:
        """Its values, if they are words."""
        if self.kind == "bool":
            return ["off", "on"]
        return sorted(name for name in self.names if (self.name, name) not in _ALIASES)

    def has(self, text: str) -> bool:
        """Whether a value is one of its kind."""
        try:
            self.is_value(text)
        except ValueError:
            return False
        return True

    def is_value(self, text: str) -> bool:
        """Whether the value is this one. Raises ValueError if it is not one of its kind."""
        written = text.strip().lower()
        if self.kind == "bool":
            if written not in (*_ON, *_OFF):
                raise ValueError(text)
            return (written in _ON) == (self.value == "on")
        if self.kind == "enum":
            if written not in self.allowed():
                raise ValueError(text)
            return written == self.value.lower()
        if self.kind == "integer":  # which the server rounds
            return round(_number(text, self.unit)) == round(_number(self.value, self.unit))
        if self.kind == "real":
            return _number(text, self.unit) == _number(self.value, self.unit)
        return _parts(text) == _parts(self.value)


def setting_now(conn: psycopg.Connection[Any], name: str, of: str) -> SettingNow:
    """What the server has, whatever our session has for itself. of: what it is asked for.

    name: in lower case. Raises UsageError if it has no such setting.
    """
    with without_own(conn, name):
        row = conn.execute(_SHOWN, (name,)).fetchone()
    if row is None:
        raise UsageError(f"{of}: the server has no setting {name}")
    return SettingNow(name, *row)


def _parts(text: str) -> list[str]:
    """Of a list, in no order and in small letters: OFF must not run on a value that is so."""
    return sorted(part.strip().lower() for part in text.split(","))


def _number(text: str, unit: str) -> float:
    """In the setting's own unit. Raises ValueError."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    value = float(found[1])
    if not found[2]:
        return value
    of = re.fullmatch(r"(\d*)([A-Za-z]+)", unit)
    for units in (_BYTES, _TIMES):
        if of is not None and found[2] in units and of[2] in units:
            return value * units[found[2]] / (int(of[1] or 1) * units[of[2]])
    raise ValueError(text)
