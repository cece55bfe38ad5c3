"""A server whose readings of the clock are counted, process by process."""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from pgtare.seeing.clock.plan import Plan, parse_plan
from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from tests.preloaded import preloaded

SLOTS = 1 << 16
#: Few buffers, so that tables are read anew each time.
SETTINGS = {
    "autovacuum": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "shared_buffers": "1MB",
}


@dataclass(frozen=True)
class Counted:
    """The server, a session, and the counts."""

    cluster: Cluster
    conn: psycopg.Connection[tuple[Any, ...]]
    counts: mmap.mmap

    def reads(self, *, everywhere: bool) -> int:
        """Readings so far, of the session or of all processes."""
        values = struct.unpack(f"{SLOTS}Q", self.counts[:])
        return sum(values) if everywhere else values[self.conn.info.backend_pid % SLOTS]

    def explain(self, query: str, options: str, *, everywhere: bool = False) -> tuple[Plan, int]:
        """Execute in a transaction that is undone: the plan, and readings of the clock."""
        self.conn.execute("BEGIN")
        before = self.reads(everywhere=everywhere)
        row = self.conn.execute(
            f"EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON, {options}) {query}".encode()
        ).fetchone()
        after = self.reads(everywhere=everywhere)
        self.conn.execute("ROLLBACK")
        assert row is not None
        return parse_plan(row[0]), after - before


@contextlib.contextmanager
def counting(binaries: Binaries) -> Iterator[Counted]:
    """A server whose processes count."""
    # readings of the processor's counter are no calls that could be counted
    settings = SETTINGS | ({"timing_clock_source": "system"} if binaries.major >= 19 else {})
    with (
        preloaded(binaries, "count_clock.c", "PGTARE_CLOCK_COUNTS", 8 * SLOTS) as (used, counts),
        Cluster(used, settings) as cluster,
        cluster.connect() as conn,
    ):
        yield Counted(cluster, conn, counts)
