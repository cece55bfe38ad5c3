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
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import psycopg
from rich.console import Console
from rich.table import Table

from bench.incident_stage import INCIDENTS, Named, Stage, stage
from pgtare.errors import PgtareError
from pgtare.kit.files import write_text
from pgtare.load import LoadSpec, PgbenchLoad, Script, find_pgbench
from pgtare.server.binaries import from_pg_config, from_wheel
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable
from pgtare.server.settings import Value

STUDIES = Path(__file__).parent.parent / "studies"
DEBIAN = Path("/usr/lib/postgresql/15/bin/pg_config")


def evictions_as_published() -> bool:
    """128 statements for 100 places of pg_stat_statements, and what one command says of them.

    Returns whether it names the lock of pg_stat_statements before all other waits.
    """
    found = from_wheel()
    modules = [loadable(found, name) for name in ("wait_event_timing", "sql_trace")]
    libraries = ["pg_stat_statements", *(module.library for module in modules)]
    settings: dict[str, Value] = {
        "pg_stat_statements.max": 100,
        "sql_trace.recorder": True,
        "sql_trace.recorder_memory": "64MB",
    }
    scripts = jinja2.Environment(
        loader=jinja2.FileSystemLoader(STUDIES / "scripts"), autoescape=True
    )
    values = {"scenarios": 16, "statements": 8}
    with (
        tempfile.TemporaryDirectory(prefix="pgtare-incidents-") as directory,
        Cluster(found, settings, preload=libraries) as cluster,
    ):
        with cluster.connect() as admin:
            admin.execute("CREATE EXTENSION pg_stat_statements")
            for module in modules:
                admin.execute(module.create_sql.encode())
            admin.execute(scripts.get_template("pgss_tables.sql.j2").render(values).encode())
        path = Path(directory, "scenario.sql")
        path.write_text(scripts.get_template("pgss_scenario.sql.j2").render(values))
        spec = LoadSpec(scripts=(Script(path),), clients=16)
        with PgbenchLoad(find_pgbench(found), cluster.dsn(), spec) as running:
            running.wait_ready()
            time.sleep(5)
            # it is over, and the sessions are there as those of a pool would be
            assert running.pid is not None
            os.kill(running.pid, signal.SIGSTOP)
            command = [sys.executable, "-m", "pgtare", "trace", "grab", "incident"]
            done = subprocess.run(
                [*command, "--dsn", cluster.dsn()],
                check=False,
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            os.kill(running.pid, signal.SIGCONT)
    print(done.stdout, end="")
    return done.returncode == 0 and first_wait(done.stdout) == "LWLock/pg_stat_statements"


def first_wait(said: str) -> str | None:
    """The wait that `grab` names first of where the time went; None: it names none."""
    went = re.search(r"^where the time went.*?: (.*)$", said, re.MULTILINE)
    waits = re.findall(r"\b[A-Za-z]+/[A-Za-z_]+", went[1]) if went else []
    return next((wait for wait in waits if not wait.startswith("Client/")), None)


def main() -> int:
    """Print a table for each server and one of all; 1, if in any run something was not named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each incident on each server")
    parser.add_argument("--one-in", type=int, default=1_000_000, help="statements")
    parser.add_argument("--incidents", nargs="+", choices=[i.__name__ for i in INCIDENTS])
    parser.add_argument(
        "--evictions", action="store_true", help="only evictions as published, and one command"
    )
    parser.add_argument("--versions", nargs="+", type=int, default=[18, 15], choices=[15, 18])
    parser.add_argument("--output", type=Path, default=Path("incidents.json"), help="JSON")
    args = parser.parse_args()
    if args.evictions:
        return 0 if evictions_as_published() else 1
    if 15 in args.versions and not DEBIAN.exists():
        parser.error(f"there is no {DEBIAN}: apt-get install postgresql-15, or --versions 18")
    chosen = [i for i in INCIDENTS if not args.incidents or i.__name__ in args.incidents]
    progress = Progress(len(args.versions) * len(chosen) * args.runs)
    found: dict[int, dict[str, list[Named]]] = {}
    try:
        for major in args.versions:
            binaries = from_wheel() if major == 18 else from_pg_config(DEBIAN)
            with stage(binaries, args.one_in) as on:
                runs(on, chosen, args.runs, found.setdefault(major, {}), progress)
    except KeyboardInterrupt:
        sys.stderr.write("ended early: what follows is what was measured\n")
    shown = Console(width=None if sys.stdout.isatty() else 120)
    for major, of_major in found.items():
        shown.print(table(f"PostgreSQL {major}", of_major))
    shown.print(table("all", together(found.values())))
    write_text(args.output, json.dumps(document(found, args.one_in), indent=1) + "\n")
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


def document(found: dict[int, dict[str, list[Named]]], one_in: int) -> dict[str, Any]:
    """Every run, for JSON."""
    return {
        "schema": "pgtare.bench.incidents/1",
        "one_in": one_in,
        "runs": [
            {"server": major, **dataclasses.asdict(one), "all": one.all}
            for major, of_major in found.items()
            for all_ in of_major.values()
            for one in all_
        ],
    }


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


if __name__ == "__main__":
    sys.exit(main())
