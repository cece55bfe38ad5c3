"""The agent's looks at a real server, and sums of the rows that they bring."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from pgtare.keeping.agent import server_watch
from pgtare.keeping.agent.baseline import counters
from pgtare.keeping.agent.config import Intervals
from pgtare.keeping.agent.rows import Batch
from pgtare.keeping.agent.server_looks import ServerLooks
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.keeping.agent_log import AgentLog
from pgtare.postgres.backend_types import BACKGROUND
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.inventory import InventoryServer
from pgtare.postgres.wait_counters.counter_table import SUMS
from tests.sessions import Connection, eventually

TICK_S = 2
WAITS_KEYS = ("backend_type", "type", "event")
Cells = Counter[tuple[str, ...]]


def role_dsn(cluster: Cluster) -> str:
    return psycopg.conninfo.make_conninfo(cluster.dsn(), user="watcher")


def summed(tables: list[Any], keys: tuple[str, ...]) -> Cells:
    """Rows of a table by key and column, without the time of processors, zeros left out."""
    cells: Cells = Counter()
    for table in tables:
        for row in table.to_pylist():
            if row["type"] != "CPU":
                for column in SUMS:
                    cells[*(str(row[key]) for key in keys), column] += row[column]
    return Counter({cell: value for cell, value in cells.items() if value})


def at_work(waits: Iterable[pa.Table]) -> list[pa.Table]:
    """The rows of `waits` that rows of `statements` add up to: without the server's background."""
    apart = pa.array(BACKGROUND)
    return [table.filter(pc.invert(pc.is_in(table["backend_type"], apart))) for table in waits]


def flat(batch: Batch) -> Cells:
    """The reading that a batch ends at, by key and column."""
    table = counters(batch.readings["waits"])
    cells: Cells = Counter()
    for row in range(len(table)):
        names = [str(table.keys[key][row]) for key in ("backend_type", "type", "event")]
        for number, column in enumerate(SUMS):
            if names[1]:
                cells[*names, column] += int(table.sums[row, number])
    return cells


def grown(first: Cells, last: Cells) -> Cells:
    cells = {cell: last[cell] - first[cell] for cell in first.keys() | last.keys()}
    return Counter({cell: value for cell, value in cells.items() if value})


def load(connection: Connection) -> None:
    """Waits of two kinds by two statements."""
    for _ in range(20):
        connection.execute("SELECT pg_sleep(0.002)")
        connection.execute("SELECT count(*), pg_sleep(0.001) FROM pg_class")


def look(looks: ServerLooks, opened: ServerSession, *, minute: bool = False) -> Batch:
    return looks.counters(opened, TICK_S, TICK_S if minute else None)


def new_looks() -> ServerLooks:
    return ServerLooks("shop", "an agent", lambda part: None, 1)


def epochs(batch: Batch) -> set[int]:
    return {row["epoch"] for table in batch.rows["waits"] for row in table.to_pylist()}


class held_lock:
    """A session that waits for another one's lock, and nothing else, for `with`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __enter__(self) -> None:
        self.holder = self.cluster.connect().__enter__()
        self.holder.execute("SELECT pg_advisory_lock(7)")
        self.waiter = self.cluster.connect().__enter__()
        take = "SELECT pg_advisory_lock(7)"
        self.thread = threading.Thread(target=self.waiter.execute, args=(take,))
        self.thread.start()
        time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self.holder.execute("SELECT pg_advisory_unlock(7)")
        self.thread.join()
        self.holder.close()
        self.waiter.close()


def rows_of(batches: list[Batch], table: str) -> list[dict[str, Any]]:
    """All rows of a table."""
    parts = [part for batch in list(batches) for part in batch.rows.get(table, [])]
    return [row for part in parts for row in part.to_pylist()]


class Watching:
    """A watch of a server in a thread, for `with`; keeps what it brings."""

    def __init__(self, dsn: str, waits_s: float = 1.0) -> None:
        intervals = Intervals(waits=f"{waits_s}s", statements="2s", sessions="0.5s", activity="1s")
        self.batches: list[Batch] = []
        self.watch = server_watch.ServerWatch(
            ServerLooks("shop", "an agent", lambda part: None, 1000),
            InventoryServer(dsn=dsn),
            intervals,
            lambda server, batch: self.batches.append(batch),
            AgentLog(),
            alone=True,
        )

    def __enter__(self) -> Watching:
        self.watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.stop.set()
        self.watch.join(20)
        assert not self.watch.is_alive()

    def found(self, table: str) -> int:
        return len(rows_of(self.batches, table))

    def readings(self) -> list[Cells]:
        """All readings of waits so far."""
        return [flat(batch) for batch in list(self.batches) if "waits" in batch.readings]

    def wait_for_reading(self, more: int = 1, seconds: float = 40) -> None:
        number = len(self.readings())
        eventually(lambda: len(self.readings()) >= number + more, seconds)
