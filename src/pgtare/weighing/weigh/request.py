"""What a user asks of the scale, checked before anything is started."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pgtare.errors import UsageError
from pgtare.estimate.trial.design import Unit
from pgtare.kit.option_values import LONGEST_S
from pgtare.postgres.load import LoadSpec
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.switches import Switch, check_names, named


def new_seed() -> int:
    """A seed that survives every JSON reader (53 bits)."""
    return secrets.randbits(53)


@dataclass(frozen=True)
class ServerAddress:
    """A server that is an arm: what it is called, and where it is."""

    name: str
    dsn: str = field(repr=False)  # it may hold a password

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """From `NAME: DSN`. Raises UsageError."""
        what = "a connection string, as in --server 'new: host=db2 dbname=app'"
        return cls(*named("--server", text, what))


@dataclass(frozen=True)
class Request:
    """One weighing. margin and precision are shares of the base arm's body.

    load None: weigh on the traffic that is there already. Raises UsageError for what cannot be.
    """

    chosen: tuple[Chosen, ...]
    inject_ns: tuple[int, ...] = ()
    duration_s: float = 60.0
    precision: float | None = None
    margin: float = 0.005
    seed: int = field(default_factory=new_seed)
    cpu: bool = True
    base: Literal["off", "current"] = "off"
    unit: Unit = "run"
    slice_ms: tuple[float, float] | None = None  # bounds of a slice's length; None: by the rate
    # the load
    load: LoadSpec | None = None
    headroom: float | None = None
    scale: int = 10
    # the server
    pg_config: Path | None = None
    dsn: str | None = None
    role: str | None = None
    application: str = "*"
    participation: float = 1.0
    allow: frozenset[str] = frozenset()
    assume_yes: bool = False
    at_most: float | None = None  # the limit of each instrument's cost, a share of the base's body
    budget: float | None = None  # that of all of them together
    # from outside, by a driver
    outside: bool = False
    sql: str | None = None  # a pgbench script as text
    prepared: bool = False  # statements are prepared once
    writes: bool = False
    servers: tuple[ServerAddress, ...] = ()  # that are compared, the first of them the base
    switches: tuple[Switch, ...] = ()  # of the whole server, each on in windows of its own
    window_s: float = 15.0

    @property
    def decides(self) -> bool:
        """Whether limits are set, so that effects are looked at while the trial runs."""
        return self.at_most is not None or self.budget is not None

    def __post_init__(self) -> None:
        if not 0 < self.duration_s <= LONGEST_S:
            raise UsageError("--duration must be over 0 seconds and at most a week")
        for option, limit in (("--at-most", self.at_most), ("--budget", self.budget)):
            if limit is not None and not self.chosen and not self.servers and not self.switches:
                raise UsageError(f"{option} is a limit of instruments: name one")
            if limit is not None and self.unit != "run":
                raise UsageError(f"{option} decides by runs: leave out --unit {self.unit}")
        if not 0 <= self.seed < 1 << 64:
            raise UsageError("--seed must lie between 0 and 2^64 - 1")
        if self.dsn is not None and self.pg_config and self.load is None:
            raise UsageError(
                "--pg-config makes a server of pgtare's own, --dsn takes one that runs: choose one"
            )
        if self.sql is not None and self.load is not None and self.load.scripts:
            raise UsageError("--sql and --script are two loads: choose one")
        if self.outside and self.inject_ns:
            raise UsageError("--inject-ns needs the server module, which --outside does without")
        if self.sql is not None and any("\ud800" <= sign <= "\udfff" for sign in self.sql):
            raise UsageError("--sql is not UTF-8 text")
        if self.outside and (self.role or self.application != "*" or self.participation < 1):
            raise UsageError(
                "--role, --application and --participation choose among the server's own sessions, "
                "which are not weighed from outside"
            )
        if self.outside and self.slice_ms is not None:
            raise UsageError("--slice-ms is for --unit slice or both, which need the server module")
        if self.outside and self.unit != "run":
            raise UsageError(
                f"--unit {self.unit} needs the server module: from outside, one session is weighed"
            )
        if self.switches:
            self._check_switches()
        if self.servers:
            self._check_servers()
        elif self.load is None and self.dsn is None:
            raise UsageError("--load none weighs on a server's own traffic: name it with --dsn")
        if self.slice_ms is not None and self.unit == "run":
            raise UsageError("--slice-ms is for --unit slice or both")
        if self.unit == "both" and len(self.chosen) + len(self.inject_ns) != 1:
            raise UsageError(
                "--unit both compares one instrument with the base: name one, or use --unit slice"
            )

    def _check_servers(self) -> None:
        names = [server.name for server in self.servers]
        if len(names) < 2:
            raise UsageError("--server compares servers: name at least two")
        if len(names) > MOST_SERVERS:
            raise UsageError(f"--server: {MOST_SERVERS} at most are compared at a time")
        check_names("--server", names)
        others = {
            "instruments and --arm": bool(self.chosen),
            "--dsn": self.dsn is not None,
            "--budget": self.budget is not None,
            "--base": self.base != "off",
            "--inject-ns": bool(self.inject_ns),
            "--pg-config": bool(self.pg_config),
            "--allow": bool(self.allow),
        }
        _refuse(others, "--server compares whole servers")

    def _check_switches(self) -> None:
        check_names("--switch and --reload", [switch.name for switch in self.switches])
        if self.dsn is None:
            raise UsageError("--switch and --reload are for a running server: name it with --dsn")
        others = {
            "instruments and --arm": bool(self.chosen),
            "--server": bool(self.servers),
            "--at-most and --budget": self.decides,
            "--precision": self.precision is not None,
            "--base": self.base != "off",
        }
        _refuse(others, "--switch and --reload weigh by windows of the whole server")


def _refuse(others: Mapping[str, bool], why: str) -> None:
    """Raise UsageError if one of other options is given."""
    for what, given in others.items():
        if given:
            raise UsageError(f"{why}: leave out {what}")


#: More servers take more time than anybody has.
MOST_SERVERS = 8
_BOUNDS_MS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*-\s*(\d+(?:\.\d+)?)\s*(?:ms)?\s*")


def slice_bounds(text: str) -> tuple[float, float]:
    """Shortest and longest slice in ms from `15-45`. Raises UsageError."""
    found = _BOUNDS_MS.fullmatch(text)
    lo, hi = (float(found[1]), float(found[2])) if found else (0.0, 0.0)
    if not 1 <= lo <= hi <= 1000:
        raise UsageError(
            f"--slice-ms {text}: give the shortest and the longest slice in milliseconds, from 1 "
            "to 1000, as in --slice-ms 15-45"
        )
    return lo, hi
