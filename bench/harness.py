"""What the benchmarks share: a server with a load, a trial of that load, a line with the time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.postgres.binaries import Binaries, from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import PgbenchLoad, initialise
from pgtare.weighing.trials import Population, Trials
from pgtare.weighing.weigh import recording


@dataclass(frozen=True)
class Server:
    """A running server with a pgbench database."""

    binaries: Binaries
    dsn: str


@contextlib.contextmanager
def server(
    libraries: Sequence[str], settings: Mapping[str, str], *, scale: int = 10
) -> Iterator[Server]:
    """The embedded PostgreSQL 18, with these libraries preloaded."""
    found = from_wheel()
    with Cluster(found, settings, libraries) as cluster:
        yield Server(found, initialise(found, cluster.dsn(), scale).dsn)


def record(
    conn: psycopg.Connection[Any], design: Design, load: PgbenchLoad, seconds: float
) -> Observations:
    """What a trial of this design observed of the load's sessions. Ctrl-C ends the benchmark."""
    got = recording.record(
        Trials(conn),
        design,
        Population(conn.info.dbname, application=load.application_name, sessions=5),
        seconds,
        cpu=False,
        load=load,
        look=None,
        tick=lambda seconds, rows: None,
    )
    if got.stopped_by == "interrupt":
        raise KeyboardInterrupt
    return got.observations


def say(text: str) -> None:
    """Print with the time, as a benchmark takes minutes."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
