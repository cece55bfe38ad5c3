"""What a trace costs a transaction, by load, level and server: `make bench-trace-cost`.

Each row is a trial of `pgtare weigh`: sessions with the trace at a level next to sessions with the
modules loaded and the trace off. By transactions, levels change all the time; by slices, a level
lasts for some ms, as it does if a trace is left on. Costs are those of a transaction's body, with
95 % intervals; next to them is what it takes of processor time, and the goal: met or missed if the
interval says so, else open.

`--before DIRECTORY` names a checkout of an earlier commit in which `make setup` has run. Its trials
alternate with this one's, and its rows stand above.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: Arms of a trial, as weigh calls them, by the levels that a reader knows.
LEVELS = {"sql_trace": 1, "sql_trace/values": 4, "sql_trace_waits/all": 12}
HERE = Path(__file__).resolve().parents[1]
DEBIAN = Path("/usr/lib/postgresql/15/bin/pg_config")
UNITS = ("transaction", "slice")


@dataclass(frozen=True)
class Goal:
    """The most that a level may cost: in µs of the body, in % of it, in % of processor time."""

    us: float | None = None
    pct: float | None = None
    cpu_pct: float | None = None


@dataclass(frozen=True)
class Load:
    """Options of weigh that make a load, and the goals: up to level 4, and of level 12 by unit."""

    title: str
    options: tuple[str, ...]
    calls: Goal
    waits: Mapping[str, Goal]
    script: str = ""

    def goal(self, level: int, unit: str) -> Goal:
        return self.waits[unit] if level == 12 else self.calls


def _always(goal: Goal) -> dict[str, Goal]:
    return dict.fromkeys(UNITS, goal)


LOADS = (
    Load("prepared select", ("--load", "select-only", "--protocol", "prepared"), Goal(us=0.4),
         {"transaction": Goal(us=0.8), "slice": Goal(us=0.6)}),
    Load("simple select", ("--load", "select-only"), Goal(us=0.8), _always(Goal(us=1.2))),
    Load("tpcb-like", ("--load", "tpcb-like"), Goal(cpu_pct=3), _always(Goal(cpu_pct=4))),
    Load("over 1 ms", ("--protocol", "prepared"), Goal(pct=0.5), _always(Goal(pct=1)),
         script="SELECT sum(abalance) FROM pgbench_accounts WHERE aid <= 15000;\n"),
)  # fmt: skip


def main() -> None:
    """Print a table, row by row as trials end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="of each trial")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--units", nargs="+", choices=UNITS, default=list(UNITS))
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    seconds, clients, units, before = vars(parser.parse_args()).values()
    checkouts = {"before": before.resolve(), "now": HERE} if before else {"now": HERE}
    servers = {"18": (), "15": ("--pg-config", str(DEBIAN))}
    if not DEBIAN.exists():
        sys.stderr.write(f"there is no {DEBIAN}: 15 is left out\n")
        del servers["15"]
    shown = Table("load", "server", "clients", "by", "code", "level", "body µs", "95 % interval",
                  "body %", "CPU %", "goal", "",
                  title="What a trace costs a transaction")  # fmt: skip
    for load in LOADS:
        for server, options in servers.items():
            for n in clients:
                for unit in units:
                    for code, checkout in checkouts.items():
                        said = f"{load.title}, {server}, {n} clients, by {unit}, {code}"
                        sys.stderr.write(f"{said}\n")
                        more = (*options, "--clients", str(n))
                        document = weigh(load, more, unit, seconds, checkout)
                        for row in rows(load, unit, document):
                            shown.add_row(load.title, server, str(n), unit, code, *row)
    Console(width=None if sys.stdout.isatty() else 150).print(shown)


def weigh(
    load: Load, options: tuple[str, ...], unit: str, seconds: int, checkout: Path
) -> dict[str, Any]:
    """The JSON document of one trial."""
    python = sys.executable if checkout == HERE else str(checkout / ".venv" / "bin" / "python")
    with tempfile.TemporaryDirectory() as directory:
        command = [python, "-m", "pgtare", "weigh", *LEVELS, *load.options, *options]
        if load.script:
            script = Path(directory, "load.sql")
            script.write_text(load.script)
            command += ["--script", str(script)]
        command += ["--unit", unit, "--duration", str(seconds), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=checkout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(load: Load, unit: str, document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Of each level: its cost, and whether it reaches the goal."""
    arms = {arm["name"]: arm for arm in document["arms"]}
    cpu_us = document["baseline"]["cpu_us"]
    for name, level in LEVELS.items():
        effect, goal = arms[name]["effect"], load.goal(level, unit)
        us, pct = effect["body_us"], effect["body_pct"]
        cpu_pct = {end: 100 * effect["cpu_us"][end] / cpu_us for end in ("estimate", "lo", "hi")}
        asked = [(goal.us, us, "µs"), (goal.pct, pct, "%"), (goal.cpu_pct, cpu_pct, "% CPU")]
        wanted = [(most, found, words) for most, found, words in asked if most is not None]
        yield (
            str(level),
            f"{us['estimate']:+.2f}",
            f"{us['lo']:+.2f} to {us['hi']:+.2f}",
            f"{pct['estimate']:+.2f}",
            f"{cpu_pct['estimate']:+.2f}",
            ", ".join(f"≤ {most:g} {words}" for most, _, words in wanted),
            "missed"
            if any(found["lo"] > most for most, found, _ in wanted)
            else "met"
            if all(found["hi"] <= most for most, found, _ in wanted)
            else "open",
        )


if __name__ == "__main__":
    main()
