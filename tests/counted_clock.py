"""A server whose readings of the clock are counted, process by process."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from pgtare.seeing.clock.plan import Plan, parse_plan
from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster

SLOTS = 1 << 16
#: Few buffers, so that tables are read anew each time.
SETTINGS = {
    "autovacuum": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "shared_buffers": "1MB",
}
SOURCE = Path(__file__).with_name("count_clock.c")


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
    directory = Path(tempfile.mkdtemp(prefix="pgtare-test-", dir="/var/tmp"))
    try:
        directory.chmod(0o755)
        library, counts = directory / "count_clock.so", directory / "counts"
        subprocess.run(
            [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", SOURCE, "-o", library],
            check=True,
        )
        # readings of the processor's counter are no calls that could be counted
        settings = SETTINGS | ({"timing_clock_source": "system"} if binaries.major >= 19 else {})
        counts.write_bytes(bytes(8 * SLOTS))
        counts.chmod(0o666)
        with (
            Cluster(_preloading(binaries, directory, library, counts), settings) as cluster,
            cluster.connect() as conn,
            open(counts, "r+b") as file,
            mmap.mmap(file.fileno(), 0) as mapped,
        ):
            yield Counted(cluster, conn, mapped)
    finally:
        shutil.rmtree(directory)


def _preloading(binaries: Binaries, directory: Path, library: Path, counts: Path) -> Binaries:
    programs = directory / "bin"
    programs.mkdir(mode=0o755)
    wrapper = programs / "postgres"
    wrapper.write_text(
        f"#!/bin/sh\nPGTARE_CLOCK_COUNTS={counts} LD_PRELOAD={library}"
        f' exec {binaries.postgres} "$@"\n'
    )
    wrapper.chmod(0o755)
    (programs / "initdb").symlink_to(binaries.initdb)
    return replace(binaries, bindir=programs)
