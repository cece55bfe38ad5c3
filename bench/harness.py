"""What the benchmarks share: a server with a load's database, and trials recorded on it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.estimate.trial.observations import Observations
from pgtare.load import LoadSpec, PgbenchLoad, find_pgbench, initialise
from pgtare.server import own_session
from pgtare.server.binaries import Binaries, from_wheel
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable
from pgtare.weighing.trials import Population, Trials
from pgtare.weighing.weigh import recording


@dataclass(frozen=True)
class Server:
    """A running server with a pgbench database."""

    binaries: Binaries
    dsn: str


@contextlib.contextmanager
def server(
    libraries: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    *,
    module: bool = True,
    scale: int = 10,
) -> Iterator[Server]:
    """The embedded PostgreSQL 18, with pgtare and these libraries preloaded."""
    found = from_wheel()
    pgtare = loadable(found)
    rings = {"pgtare.ring_memory": "128MB"} if module else {}
    preload = [*([pgtare.library] if module else []), *libraries]
    with Cluster(found, {**rings, **(settings or {})}, preload) as cluster:
        database = initialise(found, cluster.dsn(), scale)
        if module:
            with own_session.connect(database.dsn) as conn:
                conn.execute(pgtare.create_sql.encode())
        yield Server(found, database.dsn)


@contextlib.contextmanager
def options(settings: dict[str, str]) -> Iterator[None]:
    """Settings for the sessions of a load that starts inside."""
    os.environ["PGOPTIONS"] = " ".join(f"-c {name}={value}" for name, value in settings.items())
    try:
        yield
    finally:
        del os.environ["PGOPTIONS"]


@contextlib.contextmanager
def load(target: Server, clients: int) -> Iterator[PgbenchLoad]:
    """pgbench -S at full speed, ready and warm."""
    spec = LoadSpec(clients=clients)
    with PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as running:
        running.wait_ready()
        yield running


def two_arms(settings: dict[str, str], base: dict[str, str], seed: int) -> Design:
    """Base against one arm."""
    arms = (Arm("base", "base", base), Arm("arm", "instrument", settings))
    return Design(arms, block_layout(2), seed)


def observe(
    trials: Trials,
    design: Design,
    population: Population,
    seconds: float,
    *,
    cpu: bool,
    load: PgbenchLoad | None,
) -> recording.TrialRecording:
    """Run a trial of that length, which nothing ends earlier."""
    return recording.record(
        trials,
        design,
        population,
        seconds,
        cpu=cpu,
        load=load,
        look=lambda seconds, data: False,
        tick=lambda seconds, rows: None,
    )


def record(
    target: Server, running: PgbenchLoad, design: Design, seconds: float, *, cpu: bool = False
) -> Observations:
    """The observations of a trial; cpu: with processor time, which costs two system calls each."""
    with own_session.connect(target.dsn) as conn:
        population = Population(
            conn.info.dbname,
            application=running.application_name,
            sessions=running.spec.clients + 4,
        )
        got = observe(Trials(conn), design, population, seconds, cpu=cpu, load=running)
    if got.stopped_by == "interrupt":
        raise KeyboardInterrupt
    return got.observations


def say(text: str) -> None:
    """Print with the time, as a benchmark takes minutes."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
