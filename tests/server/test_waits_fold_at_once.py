"""Folding each wait where it ends: a switch of builds for one benchmark, of no other build."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from bench.lwlock_storm import AT_ONCE, module_with_switch

from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from tests.servers import CAPTURING
from tests.sessions import Connection, session, set_search_path
from tests.waits import waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

READS = 10
#: Wait so many times, then compute for a while; then the answer.
STATEMENT = f"""
DO $$
DECLARE until timestamptz;
BEGIN
    PERFORM pg_prewarm('big', 'read', 'main', 0, {READS} - 1);
    until := clock_timestamp() + interval '1 second';
    WHILE clock_timestamp() < until LOOP END LOOP;
END $$
"""


def counted(watched: Connection, watching: Connection) -> tuple[int, int]:
    """Waits that another session sees while the statement computes, and after its end."""
    pid = watched.info.backend_pid
    watched.execute(STATEMENT.encode())  # its catalogue reads are done
    before = waits(watching, "DataFileRead", pid)[0]
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(watched.execute, STATEMENT.encode())
        time.sleep(0.5)
        during = waits(watching, "DataFileRead", pid)[0]
        running.result()
    return during - before, waits(watching, "DataFileRead", pid)[0] - before


@pytest.mark.slow
def test_the_switch_decides_when_a_wait_is_counted(wheel: Binaries, tmp_path: Path) -> None:
    library, create_sql = module_with_switch(wheel, tmp_path)
    settings = {**CAPTURING, "shared_buffers": "32MB"}
    with (
        Cluster(wheel, settings, [library]) as cluster,
        cluster.connect() as watched,
        cluster.connect() as watching,
    ):
        watched.execute(create_sql.encode())
        watched.execute("CREATE EXTENSION pg_prewarm")
        watched.execute("CREATE TABLE big AS SELECT repeat('x', 500) FROM generate_series(1, 500)")
        set_search_path(watching)
        assert counted(watched, watching) == (0, READS)  # kept until the answer
        watched.execute(f"SET {AT_ONCE} = on".encode())
        assert counted(watched, watching) == (READS, READS)


def test_other_builds_have_no_such_setting(waits18: Cluster) -> None:
    with session(waits18) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(f"SET {AT_ONCE} = on".encode())
    assert "invalid configuration parameter name" in str(caught.value)
