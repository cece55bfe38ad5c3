"""EXPLAIN (ANALYZE, WAITS) on PostgreSQL 18."""

import re
import threading
import time
from typing import Any

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from tests.loads import during
from tests.servers import serving, with_everything
from tests.sessions import Connection, eventually, one, rows, session, until_it_waits
from tests.waits import waits

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(180),
    pytest.mark.since(18, "EXPLAIN takes options of extensions"),
]

EXPLAIN = "EXPLAIN (ANALYZE, WAITS, FORMAT json) "


def explained(connection: Connection, statement: str) -> dict[str, dict[str, Any]]:
    """The events of an explained statement."""
    ((plan,),) = connection.execute((EXPLAIN + statement).encode()).fetchone()
    return {event["Wait Event"]: event for event in plan["Waits"]}


@pytest.fixture
def connection(waits18: Cluster) -> Any:
    with session(waits18) as found:
        yield found


def test_only_the_statements_own_waits_are_shown(connection: Connection) -> None:
    connection.execute("SELECT pg_sleep(0.2)")
    began = time.monotonic()
    found = explained(connection, "SELECT pg_sleep(0.05), pg_sleep(0.05)")
    took_s = time.monotonic() - began
    assert next(iter(found)) == "PgSleep"
    assert found["PgSleep"]["Waits"] == 2
    assert 100 <= found["PgSleep"]["Time"] <= 1000 * took_s + 10
    assert "ClientRead" not in found
    connection.execute("PREPARE slept AS SELECT pg_sleep(0.01)")
    assert explained(connection, "EXECUTE slept")["PgSleep"]["Waits"] == 1
    lines = [line for (line,) in rows(connection, "EXPLAIN (ANALYZE, WAITS) SELECT pg_sleep(0.01)")]
    at = lines.index("Waits:")
    shown = re.match(r"  Timeout PgSleep: waits=1 time=([0-9]+\.[0-9]{3}) ms", lines[at + 1])
    assert shown, lines
    assert float(shown[1]) >= 10
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="WAITS requires ANALYZE"):
        connection.execute("EXPLAIN (WAITS) SELECT 1")


def test_without_capture_it_captures_for_the_statement_only(connection: Connection) -> None:
    connection.execute("SET wait_event_timing.capture = off")
    pid = connection.info.backend_pid
    assert explained(connection, "SELECT pg_sleep(0.01)")["PgSleep"]["Waits"] == 1
    before = waits(connection, "PgSleep", pid)
    connection.execute("SELECT pg_sleep(0.01)")
    assert waits(connection, "PgSleep", pid) == before
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute((EXPLAIN + "SELECT 1 / (random() * 0)::int").encode())
    capture = "SELECT capture FROM wait_event_timing_sessions() WHERE pid = pg_backend_pid()"
    assert one(connection, capture) == "off"
    assert explained(connection, "SELECT pg_sleep(0.01)")["PgSleep"]["Waits"] == 1


def test_error_caught_within_the_statement_does_no_harm(connection: Connection) -> None:
    connection.execute(
        "CREATE OR REPLACE FUNCTION caught() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
        "PERFORM pg_sleep(0.01); PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN "
        "PERFORM pg_sleep(0.01); END$$"
    )
    assert explained(connection, "SELECT caught()")["PgSleep"]["Waits"] == 2


def test_lock_wait_of_an_update(waits18: Cluster, connection: Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS held (i int PRIMARY KEY)")
    connection.execute("INSERT INTO held VALUES (1) ON CONFLICT DO NOTHING")
    with session(waits18) as holder:
        holder.execute("BEGIN; UPDATE held SET i = 1")
        found: dict[str, dict[str, Any]] = {}
        with (
            session(waits18) as onlooker,
            during(lambda: found.update(explained(connection, "UPDATE held SET i = 1"))),
        ):
            until_it_waits(onlooker, connection, "Lock")
            time.sleep(0.2)
            holder.execute("COMMIT")
    assert found["transactionid"]["Waits"] == 1
    assert found["transactionid"]["Time"] > 100


def test_parallel_workers_are_merged(wheel: Binaries) -> None:
    settings = {"io_method": "sync", "wait_event_timing.capture": "off"}
    with serving(wheel, settings) as cluster, session(cluster) as connection:
        connection.execute("CREATE TABLE t AS SELECT generate_series(1, 300000) AS i")
        connection.execute("VACUUM ANALYZE t")
        connection.execute(
            "SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;"
            "SET parallel_tuple_cost = 0; SET parallel_leader_participation = off"
        )
        (plan,) = connection.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, WAITS, FORMAT json) SELECT count(*) FROM t"
        ).fetchone()
        found = {event["Wait Event"]: event for event in plan[0]["Waits"]}
        assert plan[0]["Workers With Waits"] == 2
        assert found["DataFileRead"]["Waits"] > 10
        assert connection.execute(
            "SELECT capture FROM wait_event_timing_sessions() WHERE pid = pg_backend_pid()"
        ).fetchone() == ("off",)


def level(observer: Connection, connection: Connection) -> str:
    """What is captured in a session."""
    pid = connection.info.backend_pid
    query = "SELECT capture FROM wait_event_timing_sessions() WHERE pid = %s"
    return str(one(observer, query, pid))


@pytest.fixture
def quiet(waits18: Cluster) -> Any:
    """A session that captures nothing, though the server does."""
    with session(waits18, options="-c wait_event_timing.capture=off") as found:
        found.execute("SELECT 1")
        yield found


def test_statement_after_it_in_the_transaction_is_not_captured(
    connection: Connection, quiet: Connection
) -> None:
    """Though its plan is instrumented: auto_explain does that to all."""
    quiet.execute("LOAD 'auto_explain'")
    quiet.execute("SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on")
    quiet.execute("BEGIN")
    quiet.execute("EXPLAIN (ANALYZE, WAITS) SELECT 1")
    quiet.execute("SELECT 1")
    assert level(connection, quiet) == "off"
    quiet.execute("COMMIT")


@pytest.mark.parametrize("inner", ["EXPLAIN SELECT 1", "EXPLAIN (ANALYZE) SELECT 1"])
def test_explain_within_the_statement_takes_nothing_from_it(
    connection: Connection, inner: str
) -> None:
    connection.execute(
        "CREATE OR REPLACE FUNCTION explains() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
        f"EXECUTE '{inner}'; PERFORM pg_sleep(0.01); END$$".encode()
    )
    assert explained(connection, "SELECT explains()")["PgSleep"]["Waits"] == 1


def test_explain_waits_within_the_statement_shows_its_own(quiet: Connection) -> None:
    quiet.execute(
        "CREATE OR REPLACE FUNCTION inner_waits() RETURNS json LANGUAGE plpgsql AS $$"
        "DECLARE plan json; BEGIN PERFORM pg_sleep(0.01); "
        f"EXECUTE '{EXPLAIN} SELECT pg_sleep(0.01), pg_sleep(0.01)' INTO plan; "
        "PERFORM pg_sleep(0.01); CREATE TEMP TABLE shown AS SELECT plan; "
        "RETURN plan; END$$".encode()
    )
    assert explained(quiet, "SELECT inner_waits()")["PgSleep"]["Waits"] == 4
    ((plan,),) = rows(quiet, "SELECT plan FROM shown")
    (slept,) = [event for event in plan[0]["Waits"] if event["Wait Event"] == "PgSleep"]
    assert slept["Waits"] == 2


def test_level_that_is_set_meanwhile_stays(connection: Connection, quiet: Connection) -> None:
    connection.execute("SELECT pg_advisory_lock(4713)")  # the statement goes on until it is free
    statement = "SELECT pg_advisory_xact_lock(4713)"
    explaining = threading.Thread(target=explained, args=(quiet, statement))
    explaining.start()
    try:
        eventually(lambda: level(connection, quiet) == "stats")
        assert one(connection, "SELECT wait_event_timing_set(%s, 'stats')", quiet.info.backend_pid)
    finally:
        connection.execute("SELECT pg_advisory_unlock(4713)")
        explaining.join()
    assert level(connection, quiet) == "stats"
    quiet.execute("SET wait_event_timing.capture = off")
    one(connection, "SELECT wait_event_timing_set(%s, NULL)", quiet.info.backend_pid)
    assert level(connection, quiet) == "off"
    explained(quiet, "SELECT set_config('wait_event_timing.capture', 'stats', false)")
    assert level(connection, quiet) == "stats"


def test_no_setting_asks_for_the_options(wheel: Binaries) -> None:
    """auto_explain of 19 takes options of extensions; these need EXPLAIN around the statement."""
    if wheel.major < 19:
        pytest.skip("auto_explain.log_extension_options came with PostgreSQL 19")
    settings: dict[str, Value] = {"session_preload_libraries": "auto_explain"}
    with with_everything(wheel, settings) as cluster, session(cluster) as client:
        for option in ("waits", "sampling", "sampling 16"):
            refused = f"SET auto_explain.log_extension_options = '{option}'"
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                client.execute(refused.encode())
        client.execute("SELECT 1")
