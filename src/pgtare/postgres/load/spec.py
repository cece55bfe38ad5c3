"""What load to drive: pgbench's script, protocol, clients and rate, checked beforehand."""

from __future__ import annotations

import math
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pgtare.errors import UsageError

Builtin = Literal["select-only", "simple-update", "tpcb-like"]
Protocol = Literal["simple", "extended", "prepared"]
#: Of a script, in pgbench.
_MOST_WEIGHT = 2**31 - 1


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


def _new_seed() -> int:
    return secrets.randbelow(2**31)


@dataclass(frozen=True)
class Script:
    """A pgbench script file and how often it runs relative to others."""

    path: Path
    weight: int = 1

    @classmethod
    def parse(cls, text: str) -> Script:
        """From `FILE` or `FILE@WEIGHT`. Raises UsageError for a weight that pgbench refuses."""
        path, at, weight = text.rpartition("@")
        if not at:
            return cls(Path(text))
        if not re.fullmatch("[0-9]{1,10}", weight) or int(weight) > _MOST_WEIGHT:
            shown = weight if len(weight) <= 80 else f"{weight[:20]}…"
            raise UsageError(
                f"--script {path}@{shown}: the weight after @ must be a whole number from 0 to "
                f"{_MOST_WEIGHT}"
            )
        return cls(Path(path), int(weight))


@dataclass(frozen=True)
class LoadSpec:
    """One pgbench load. rate: transactions a second over all clients, None for full speed.

    scripts, if given, replace the built-in one. jobs: pgbench's threads, by default as many as
    clients, but no more than cores. seed: pgbench's, so that the same rows are asked for again.
    scale: what :scale is in scripts, pgbench's 1 if None; built-in ones look at the tables.
    Raises UsageError if something cannot be.
    """

    builtin: Builtin = "select-only"
    scripts: tuple[Script, ...] = ()
    protocol: Protocol = "simple"
    clients: int = 1
    jobs: int | None = None
    rate: float | None = None
    seed: int = field(default_factory=_new_seed)
    scale: int | None = None

    def __post_init__(self) -> None:
        if self.clients < 1 or (self.jobs is not None and self.jobs < 1):
            raise UsageError("a load needs at least one client and one job")
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise UsageError("the rate must be over 0 transactions a second")
        for script in self.scripts:
            if not (os.access(script.path, os.R_OK) and script.path.is_file()):
                raise UsageError(f"cannot read pgbench script {script.path}")
        if self.scripts and not any(script.weight for script in self.scripts):
            raise UsageError("every pgbench script has weight 0: nothing would run")

    @property
    def threads(self) -> int:
        """pgbench's -j."""
        return min(self.clients, cores()) if self.jobs is None else min(self.jobs, self.clients)

    def arguments(self) -> list[str]:
        """pgbench's arguments, without duration and connection."""
        # -n: pgbench would otherwise vacuum, and even truncate pgbench_history, in the user's own
        # database.
        arguments = ["-n", "-M", self.protocol, "-c", str(self.clients), "-j", str(self.threads)]
        arguments.append(f"--random-seed={self.seed}")
        if self.rate is not None:
            arguments.append(f"--rate={self.rate:.6g}")
        if not self.scripts:
            return [*arguments, "-b", self.builtin]
        if self.scale is not None:
            arguments += ["-D", f"scale={self.scale}"]
        for script in self.scripts:
            arguments += ["-f", f"{script.path}@{script.weight}"]
        return arguments

    def describe(self) -> dict[str, Any]:
        """For the record of a trial."""
        scripts = [f"{script.path}@{script.weight}" for script in self.scripts]
        return {
            "kind": "pgbench",
            "script": scripts or self.builtin,
            "protocol": self.protocol,
            "clients": self.clients,
            "jobs": self.threads,
            "rate_tps": self.rate,
            "seed": self.seed,
        }


def parse_rate(text: str) -> float:
    """Transactions a second from `500`, `0.5`, `2k` or `500/s`. Raises UsageError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(k?)\s*(?:/s|tps)?\s*", text, re.IGNORECASE)
    rate = float(found[1]) * (1000 if found[2] else 1) if found else 0.0
    if not rate:
        raise UsageError(
            f"--rate {text}: give transactions a second over all clients, over 0, as in --rate "
            "500, or a share of full speed, as in --rate 50%"
        )
    return rate
