"""A trial changes nothing else that PostgreSQL does."""

import contextlib
import time
from collections.abc import Iterator

import psutil
import psycopg
import pytest

from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from tests.loads import during
from tests.servers import crashes, run_program, weighable
from tests.sessions import Connection, bare_session, eventually, one, setting, until_it_waits
from tests.trials import MARKED, MARKER, flagged, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def lively(each_server: Binaries) -> Iterator[Cluster]:
    """A server with more processes than usual."""
    settings: dict[str, Value] = {
        "logging_collector": True,
        "log_filename": "collected.log",
        "max_prepared_transactions": 4,
        "autovacuum_naptime": "1s",
        "wal_level": "logical",
    }
    with weighable(each_server, settings) as cluster:
        yield cluster


@pytest.fixture
def client(lively: Cluster) -> Iterator[Connection]:
    """A session in a trial of two arms."""
    with trial(lively), bare_session(lively) as connection:
        connection.execute("SELECT 1")
        yield connection


def children(cluster: Cluster) -> dict[int, str]:
    """The server's processes but its sessions: pid and title."""
    titles = {}
    for child in psutil.Process(cluster.postmaster_pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            titles[child.pid] = " ".join(child.cmdline())
    lasting = ("checkpointer", "writer", "logger", "launcher", "io worker")
    return {p: title for p, title in titles.items() if any(word in title for word in lasting)}


def test_auxiliary_processes_outlive_trials(lively: Cluster) -> None:
    before = children(lively)
    assert any("logger" in title for title in before.values())
    for _ in range(3):
        with trial(lively), bare_session(lively) as client:
            client.execute("CREATE TEMP TABLE t AS SELECT generate_series(1, 1000)")
            client.execute("CHECKPOINT")
            lively.reload()
            client.execute("DO $$ BEGIN RAISE LOG 'a line of the trial'; END $$")
            one(client, "SELECT pg_rotate_logfile()")
            client.execute("DO $$ BEGIN RAISE LOG 'and one more'; END $$")
    assert children(lively) == before
    collected = lively.data_directory / "log" / "collected.log"
    eventually(lambda: collected.read_text().count("and one more") >= 3)
    assert not any(word in collected.read_text() for word in ("terminated by signal", "PANIC"))


def test_statement_timeout_and_cancel_request_strike(lively: Cluster, client: Connection) -> None:
    client.execute("SET statement_timeout = '50ms'")
    for _ in range(3):
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            client.execute("SELECT pg_sleep(5)")

    def reset() -> bool:
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            client.execute("RESET statement_timeout")
            return True
        return False

    eventually(reset)
    client.execute("BEGIN")

    def cancel() -> None:
        with bare_session(lively, application_name="pgtare") as operator:
            until_it_waits(operator, client, "Timeout")
        client.cancel_safe()

    with during(cancel), pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
        client.execute("SELECT pg_sleep(60)")
    client.execute("ROLLBACK")
    assert one(client, "SELECT 1") == 1


def test_timeout_that_an_arm_sets_strikes_in_that_arm(lively: Cluster) -> None:
    arms = ({"statement_timeout": "0"}, {"statement_timeout": "30ms"})
    with trial(lively, arms) as running, bare_session(lively) as client:
        for _ in range(20):
            with contextlib.suppress(psycopg.errors.QueryCanceled):
                client.execute("SELECT pg_sleep(0.1)")
        rows = running.observed(client, 20)
    assert flagged(rows, UnitFlag.ABORTED) == [arm == 1 for arm in rows["arm"]]


def test_notifications_reach_an_idle_session(lively: Cluster, client: Connection) -> None:
    client.execute("LISTEN news")
    with bare_session(lively) as sender:
        sender.execute("NOTIFY news, 'one'")
        sender.execute("NOTIFY news, 'two'")
    got = [n.payload for n in client.notifies(timeout=60, stop_after=2)]
    assert got == ["one", "two"]


@pytest.mark.parametrize(
    ("setting", "statement"),
    [("idle_session_timeout", "SELECT 1"), ("idle_in_transaction_session_timeout", "BEGIN")],
)
def test_idle_timeouts_strike(client: Connection, setting: str, statement: str) -> None:
    client.execute(f"SET {setting} = '100ms'; {statement}")
    time.sleep(0.4)
    with pytest.raises(psycopg.Error, match=r"timeout|closed"):
        client.execute("SELECT 1")


def test_parallel_workers_see_the_arms_settings(lively: Cluster) -> None:
    with bare_session(lively) as client:
        forced = "debug_parallel_query" if lively.binaries.major >= 16 else "force_parallel_mode"
        client.execute(f"SET {forced} = on")
        with trial(lively) as running:
            client.execute("SELECT 1")
            query = f"SELECT current_setting('{MARKER}') FROM generate_series(1, 1)"
            plan = [row[0] for row in client.execute(f"EXPLAIN {query}")]
            assert any("Gather" in line for line in plan)
            seen = [one(client, query) for _ in range(10)]
            rows = running.observed(client, 11)[1:]
    assert seen == [MARKED[arm][MARKER] for arm in rows["arm"]]


def test_replication_connection_takes_no_part(lively: Cluster) -> None:
    with trial(lively, database=None) as running:
        with psycopg.connect(lively.dsn(replication="database"), autocommit=True) as walsender:
            for _ in range(5):
                assert walsender.execute("IDENTIFY_SYSTEM").fetchone() is not None
        assert running.trials.status().sessions == 0


def test_logical_slot_and_pg_dump_read_in_a_trial(lively: Cluster, client: Connection) -> None:
    client.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding', true)")
    client.execute("CREATE TABLE decoded (x int)")
    client.execute("INSERT INTO decoded VALUES (42)")
    lines = client.execute("SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)")
    assert any("42" in line for (line,) in lines)
    client.execute("SELECT pg_drop_replication_slot('s')")
    dump = run_program(lively, "pg_dump", "-d", lively.dsn(), "-t", "decoded")
    assert "42" in dump
    client.execute("DROP TABLE decoded")


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_two_phase_commit(client: Connection, ending: str) -> None:
    client.execute("CREATE TABLE IF NOT EXISTS prepared (x int)")
    client.execute("BEGIN")
    client.execute("INSERT INTO prepared VALUES (1)")
    client.execute("PREPARE TRANSACTION 'p'")
    client.execute(f"{ending} PREPARED 'p'")
    count = one(client, "SELECT count(*) FROM prepared")
    client.execute("DROP TABLE prepared")
    assert count == (1 if ending == "COMMIT" else 0)


def test_cursor_that_outlives_its_transaction_and_savepoints(client: Connection) -> None:
    client.execute("BEGIN")
    client.execute("DECLARE c CURSOR WITH HOLD FOR SELECT generate_series(1, 3)")
    client.execute("COMMIT")
    client.execute(
        "DO $$ BEGIN FOR i IN 1..20 LOOP BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN "
        "END; END LOOP; END $$"
    )
    assert [one(client, "FETCH c") for _ in range(3)] == [1, 2, 3]


def test_function_with_settings_of_its_own(client: Connection) -> None:
    client.execute(
        f"CREATE FUNCTION pg_temp.f() RETURNS text LANGUAGE sql SET {MARKER} = '7777kB' "
        f"AS $$ SELECT current_setting('{MARKER}') $$"
    )
    for _ in range(10):
        row = client.execute(f"SELECT pg_temp.f(), current_setting('{MARKER}')").fetchone()
        assert row is not None
        assert row[0] == "7777kB"
        assert row[1] in {"1111kB", "2222kB"}


def test_role_changes_do_not_touch_the_arms(lively: Cluster) -> None:
    """A role without rights must not stop the switching of what only superusers may set."""
    with bare_session(lively) as admin:
        admin.execute("CREATE ROLE weak")
    try:
        arms = ({"log_min_duration_statement": "1h"}, {"log_min_duration_statement": "2h"})
        with trial(lively, arms) as running, bare_session(lively) as client:
            client.execute("SET ROLE weak")
            seen = [setting(client, "log_min_duration_statement")[0] for _ in range(20)]
            rows = running.observed(client, 21)[1:]
            assert not any(flagged(rows, UnitFlag.SWITCH_FAILED))
        assert seen == [["1h", "2h"][arm] for arm in rows["arm"]]
    finally:
        with bare_session(lively) as admin:
            admin.execute("DROP ROLE weak")


def test_nothing_crashed(lively: Cluster) -> None:
    """The last of the file."""
    assert crashes(lively) == []
