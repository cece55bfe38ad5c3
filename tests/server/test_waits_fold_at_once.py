"""Folding each wait where it ends: a switch of builds for one benchmark, of no other build."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from bench.lwlock_storm import AT_ONCE, MODULE, module_with_switch

from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from tests.server.waits_tools import CAPTURING, Connection, names, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

READS = 10
# In one statement: read so many blocks past the buffers, and look what has been counted by then.
COUNT = f"""
CREATE FUNCTION counted_after_reading() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    before bigint; after bigint;
BEGIN
    SELECT coalesce(sum(waits), 0) INTO before FROM {MODULE}.pg_stat_wait_event_timing
     WHERE pid = pg_backend_pid() AND wait_event = 'DataFileRead';
    PERFORM pg_prewarm('big', 'read', 'main', 0, {READS} - 1);
    SELECT coalesce(sum(waits), 0) INTO after FROM {MODULE}.pg_stat_wait_event_timing
     WHERE pid = pg_backend_pid() AND wait_event = 'DataFileRead';
    RETURN after - before;
END $$
"""


def counted(connection: Connection) -> int:
    """Waits that a statement's own view has by its end, the catalogue being cached."""
    connection.execute("SELECT counted_after_reading()")
    row = connection.execute("SELECT counted_after_reading()").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow
def test_the_switch_decides_when_a_wait_is_counted(wheel: Binaries, tmp_path: Path) -> None:
    library, create_sql = module_with_switch(wheel, tmp_path)
    settings = {**CAPTURING, "shared_buffers": "32MB"}
    with Cluster(wheel, settings, [library]) as cluster, cluster.connect() as connection:
        connection.execute(create_sql.encode())
        connection.execute("CREATE EXTENSION pg_prewarm")
        connection.execute(
            "CREATE TABLE big AS SELECT repeat('x', 500) FROM generate_series(1, 500)"
        )
        connection.execute(COUNT.encode())
        assert counted(names(connection)) == 0  # fewer than are kept until the answer
        connection.execute(f"SET {AT_ONCE} = on")
        assert counted(connection) == READS


def test_other_builds_have_no_such_setting(waits18: Cluster) -> None:
    with session(waits18) as connection, pytest.raises(psycopg.errors.Error) as caught:
        connection.execute(f"SET {AT_ONCE} = on")
    assert "invalid configuration parameter name" in str(caught.value)
