"""A private server with a load that changes, so that a page has something to show."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import psycopg

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load.database import BenchDatabase, initialise
from pgtare.postgres.load.pgbench import PgbenchLoad
from pgtare.postgres.load.spec import LoadSpec
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value

#: How long each kind of load lasts, s.
PHASE_S = 45.0
_HELD = "UPDATE pgbench_branches SET bbalance = bbalance WHERE bid = 1"


#: Each with whether one session holds a row that others need.
_PHASES = (
    (LoadSpec(builtin="select-only", clients=2, rate=400), False),
    (LoadSpec(builtin="tpcb-like", clients=8, rate=200), False),
    (LoadSpec(builtin="select-only", clients=4, rate=2000), False),
    (LoadSpec(builtin="tpcb-like", clients=5, rate=100), True),
    (LoadSpec(builtin="simple-update", clients=4, rate=300), False),
)


@contextlib.contextmanager
def demo_server(binaries: Binaries) -> Iterator[DemoLoad]:
    """The server, with the module and pg_stat_statements; it is removed when the block ends."""
    module = loadable(binaries, "wait_event_timing")
    settings: dict[str, Value] = {"wait_event_timing.capture": "stats", "compute_query_id": True}
    with Cluster(binaries, settings, [module.library, "pg_stat_statements"]) as cluster:
        database = initialise(binaries, cluster.dsn())
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute(module.create_sql.encode())
            connection.execute("CREATE EXTENSION pg_stat_statements")
        load = DemoLoad(binaries, database)
        try:
            yield load
        finally:
            load.stop()


class DemoLoad:
    """pgbench in phases; `step` begins the next one when it is due."""

    def __init__(self, binaries: Binaries, database: BenchDatabase) -> None:
        self.dsn = database.dsn
        self._pgbench = binaries.pgbench
        self._number = -1
        self._until_s = 0.0
        self._running = contextlib.ExitStack()

    def step(self) -> None:
        """Begin the next phase if it is due. Raises MeasurementError if pgbench fails."""
        now = time.monotonic()
        if now < self._until_s:
            return
        self.stop()
        self._number += 1
        spec, locked = _PHASES[self._number % len(_PHASES)]
        if locked:
            holder = self._running.enter_context(
                psycopg.connect(self.dsn, application_name="nightly-job")
            )
            holder.execute(_HELD)
        self._running.enter_context(PgbenchLoad(self._pgbench, self.dsn, spec))
        self._until_s = now + PHASE_S

    def stop(self) -> None:
        """End the load, then the session that holds the row."""
        running, self._running = self._running, contextlib.ExitStack()
        running.close()
