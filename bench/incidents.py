"""Incidents on a server with the flight recorder on, and what is known of them afterwards.

Nobody watches: the recorder is on, triggers are set, and a load runs. Then something happens: a
table is locked while its lock is wanted, two sessions lock each other's rows, pg_stat_statements
has to make room for long texts, the disk is slow, or one statement in very many is. Afterwards
`pgtare trace kept` must name the cause, whom it hit, and who held that up, if anybody did; and
`pgtare trace grab` with `pgtare trace profile` must name the cause from what the rings still hold.

The rare statement is one in a million: pgbench sends single selects in pipelines, each with a Sync
of its own, so that the server answers each as a request. After every million of them one sleeps.

The slow disk is a stand-in: a library delays the server's own calls of fsync (slow_fsync/). In the
eviction storm texts are long, so that the file of texts is written anew while everybody waits.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import psycopg
from rich.console import Console
from rich.table import Table
from tests.versions.servers import DEBIAN15, installed

from bench.incident_stage import INCIDENTS, Named, Stage, stage
from pgtare.errors import PgtareError, UsageError

TAKES = "half an hour, with postgresql-15"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=20, help="of each incident on each server")
    parser.add_argument("--one-in", type=int, default=1_000_000, help="statements")
    parser.add_argument("--incidents", nargs="+", choices=[i.__name__ for i in INCIDENTS])
    parser.add_argument("--versions", nargs="+", type=int, default=[18, 15], choices=[15, 18])


def main(args: argparse.Namespace) -> int:
    """Print a table for each server and one of all; 1, if in any run something was not named."""
    if 15 in args.versions and not DEBIAN15.exists():
        raise UsageError(f"there is no {DEBIAN15}: apt-get install postgresql-15, or --versions 18")
    chosen = [i for i in INCIDENTS if not args.incidents or i.__name__ in args.incidents]
    progress = Progress(len(args.versions) * len(chosen) * args.runs)
    found: dict[int, dict[str, list[Named]]] = {}
    try:
        for major in args.versions:
            with stage(installed(major), args.one_in) as on:
                runs(on, chosen, args.runs, found.setdefault(major, {}), progress)
    except KeyboardInterrupt:
        sys.stderr.write("ended early: what follows is what was measured\n")
    shown = Console(width=None if sys.stdout.isatty() else 120)
    for major, of_major in found.items():
        shown.print(table(f"PostgreSQL {major}", of_major))
    shown.print(table("all", together(found.values())))
    every = [one for of_major in found.values() for all_ in of_major.values() for one in all_]
    return 0 if every and all(one.all for one in every) else 1


@dataclass
class Progress:
    """Runs that are over, and how long the others may take."""

    runs: int
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def over(self, what: str) -> None:
        self.done += 1
        left = (time.monotonic() - self.began) / self.done * (self.runs - self.done)
        sys.stderr.write(f"{self.done} of {self.runs}, {left / 60:.0f} min left: {what}\n")


def runs(
    on: Stage,
    incidents: Sequence[Callable[[Stage], Named]],
    times: int,
    found: dict[str, list[Named]],
    progress: Progress,
) -> None:
    """All incidents by turns; adds to `found`, and what was wrong goes to standard error."""
    for run in range(times):
        for happen in incidents:
            on.forget()
            time.sleep(1.5)  # sql_trace.keep_interval
            name = happen.__name__.replace("_", " ")
            try:
                one = happen(on)
            except (RuntimeError, PgtareError, psycopg.Error) as ex:
                one = Named(name, False, False, None, False, f"{type(ex).__name__}: {ex}")
            found.setdefault(name, []).append(one)
            progress.over(f"{name}, run {run + 1}: {'all was named' if one.all else one}")


def together(found: Iterable[dict[str, list[Named]]]) -> dict[str, list[Named]]:
    """The runs of all servers by incident."""
    sums: dict[str, list[Named]] = {}
    for of_major in found:
        for incident, all_ in of_major.items():
            sums.setdefault(incident, []).extend(all_)
    return sums


def table(title: str, found: dict[str, list[Named]]) -> Table:
    """By incident, in how many of how many runs each was named."""
    made = Table("incident", "cause", "victim", "blocker", "grab", "all", title=title)
    for incident, all_ in found.items():
        made.add_row(incident, *row(all_))
    return made


def row(found: Sequence[Named]) -> list[str]:
    """How often each thing was named."""
    blockers = [one.blocker for one in found if one.blocker is not None]

    def of_all(named: Sequence[bool]) -> str:
        return f"{sum(named)} of {len(named)}" if named else "–"

    return [
        of_all([one.cause for one in found]),
        of_all([one.victim for one in found]),
        of_all(blockers),
        of_all([one.grabbed for one in found]),
        of_all([one.all for one in found]),
    ]
