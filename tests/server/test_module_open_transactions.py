"""Transactions still open when their trial or their session ends, and those that fail."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.postgres.cluster import Cluster
from tests.loads import during
from tests.sessions import Connection, bare_session, eventually, executed_s, one
from tests.trials import Running, flagged, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@contextlib.contextmanager
def doomed(cluster: Cluster) -> Iterator[Connection]:
    """A session that the server may end."""
    with contextlib.suppress(psycopg.OperationalError), bare_session(cluster) as client:
        yield client


@contextlib.contextmanager
def under_way(client: Connection, statement: str) -> Iterator[threading.Thread]:
    """A statement that runs meanwhile; the client may lose its session over it."""

    def work() -> None:
        with contextlib.suppress(psycopg.Error):
            client.execute(statement.encode())

    with during(work) as thread:
        yield thread


def opened(running: Running, session_: Connection) -> Observations:
    rows = running.drained()
    own: Observations = rows[rows["pid"] == session_.info.backend_pid]
    return own


def asleep(server: Cluster, client: Connection) -> None:
    """Wait until its statement sleeps."""
    with bare_session(server, application_name="pgtare") as operator:
        eventually(
            lambda: (
                one(
                    operator,
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE pid = %s AND wait_event = 'PgSleep'",
                    client.info.backend_pid,
                )
                == 1
            )
        )


def test_transaction_under_way_at_the_end_of_the_trial(server: Cluster) -> None:
    with trial(server) as running, bare_session(server) as client:
        for _ in range(4):
            client.execute("SELECT 1")
        running.observed(client, 4)
        began = time.monotonic()
        with under_way(client, "SELECT pg_sleep(60)"):
            asleep(server, client)
            time.sleep(0.3)
            assert len(opened(running, client)) == 4  # not while the trial runs
            running.trials.stop()
            took_s = time.monotonic() - began
            rows = opened(running, client)
            client.cancel_safe()
            last = rows[-1]
            assert flagged(rows, UnitFlag.OPEN) == [False] * 4 + [True]
            assert (last["unit"], last["requests"]) == (4, 1)
            assert 0.3 < last["service_ns"] / 1e9 <= took_s + 0.01
            assert last["client_ns"] < 0.3e9
            assert last["cpu_ns"] == -1
        client.execute("SELECT 1")
        assert len(opened(running, client)) == 5  # nothing is reported twice


def test_an_open_unit_carries_its_place_in_the_block(server: Cluster) -> None:
    with trial(server) as running, bare_session(server) as client:
        for _ in range(7):
            client.execute("SELECT 1")
        running.observed(client, 7)
        client.execute("BEGIN")
        running.trials.stop()
        rows = opened(running, client)
        client.execute("COMMIT")
    with trial(server) as running, bare_session(server) as client:
        for _ in range(8):
            client.execute("SELECT 1")
        running.observed(client, 8)
        whole = opened(running, client)
    for name in ("arm", "block", "position", "unit", "backend"):
        assert list(rows[name]) == list(whole[name])


@pytest.mark.parametrize("deadline", [False, True])
def test_idle_in_transaction_at_the_end_of_the_trial(server: Cluster, deadline: bool) -> None:
    # long enough for a busy machine to begin the transaction in it
    seconds = 10.0 if deadline else 60.0
    with trial(server, seconds=seconds) as running, bare_session(server) as client:
        took_s = executed_s(client, "BEGIN") + executed_s(client, "SELECT pg_sleep(0.2)")
        time.sleep(0.6)
        if deadline:
            eventually(lambda: not running.trials.status().running)
        else:
            running.trials.stop()
        (row,) = opened(running, client)
        assert row["flags"] & UnitFlag.OPEN
        assert row["requests"] == 2
        # a loaded machine adds to the one, or takes from the other what its client slept early
        assert 0.2 < row["service_ns"] / 1e9 < took_s + 0.3
        assert row["client_ns"] > 0.3e9


def test_transaction_that_ends_before_the_last_drain_is_whole(server: Cluster) -> None:
    with trial(server) as running, bare_session(server) as client:
        client.execute("BEGIN")
        running.trials.stop()
        client.execute("COMMIT")
        client.execute("SELECT 1")
        assert flagged(opened(running, client), UnitFlag.OPEN) == [False]


def test_idle_session_has_nothing_open(server: Cluster) -> None:
    with trial(server) as running:
        with bare_session(server) as client, bare_session(server) as other:
            client.execute("SELECT 1")
            other.execute("SELECT 1")
            running.observed(client, 1)
        rows = running.drained()
        running.trials.stop()
        assert len(rows) == len(running.drained()) == 2
    assert not any(flagged(rows, UnitFlag.OPEN))


@pytest.mark.parametrize("how", ["terminated", "disconnected", "disconnected politely"])
def test_session_that_ends_in_a_transaction(server: Cluster, how: str) -> None:
    with trial(server) as running, doomed(server) as client:
        client.execute("SELECT 1")
        began = time.monotonic()
        client.execute("BEGIN")
        client.execute("SELECT pg_sleep(0.1)")
        pid = client.info.backend_pid
        if how == "terminated":
            with bare_session(server, application_name="pgtare") as operator:
                assert one(operator, "SELECT pg_terminate_backend(%s, 60000)", pid) is True
        elif how == "disconnected":
            with socket.socket(fileno=client.fileno()) as raw:
                raw.shutdown(socket.SHUT_RDWR)
                raw.detach()
        else:
            client.pgconn.finish()
        eventually(lambda: len(running.drained()) == 2)
        took_s = time.monotonic() - began
        row = running.drained()[-1]
        assert row["pid"] == pid
        assert row["flags"] & UnitFlag.OPEN
        assert row["unit"] == 1
        assert 0.1 < row["service_ns"] / 1e9 <= took_s
        assert bool(row["flags"] & UnitFlag.ABORTED) == (how == "terminated")


def test_statement_under_way_when_its_session_is_terminated(server: Cluster) -> None:
    with trial(server) as running, doomed(server) as client:
        pid = client.info.backend_pid
        with under_way(client, "SELECT pg_sleep(60)"):
            asleep(server, client)
            with bare_session(server, application_name="pgtare") as operator:
                assert one(operator, "SELECT pg_terminate_backend(%s, 60000)", pid) is True
        eventually(lambda: len(running.drained()) == 1)
        (row,) = running.drained()
        assert row["flags"] & UnitFlag.OPEN
        assert row["flags"] & UnitFlag.ABORTED


def test_new_trial_hears_nothing_of_what_the_last_one_left_open(server: Cluster) -> None:
    with bare_session(server) as client:
        with trial(server):
            client.execute("SELECT 1")
            client.execute("BEGIN")
        with trial(server) as running:
            client.execute("SELECT 1")
            client.execute("COMMIT")
            client.execute("SELECT 1")  # takes part from here on
            client.execute("SELECT 1")
            running.observed(client, 1)
            running.trials.stop()
            assert len(opened(running, client)) == 1


# Transactions that fail


@pytest.mark.parametrize(
    ("statements", "failed"),
    [
        ("SELECT 1/0", True),
        ("no such statement", True),
        ("SELECT 1;SELECT 1/0", True),
        ("BEGIN; SELECT 1/0; ROLLBACK", True),
        ("BEGIN; SELECT 1/0; COMMIT", True),
        ("BEGIN; SELECT 1/0; ROLLBACK AND CHAIN; SELECT 1; COMMIT", True),
        ("BEGIN; SAVEPOINT a; SELECT 1/0; ROLLBACK", True),
        ("BEGIN; INSERT INTO failing VALUES (1); COMMIT", True),  # found as it commits
        ("SET LOCAL statement_timeout = 1; SELECT 1", False),
        ("BEGIN; SET LOCAL statement_timeout = 20; SELECT pg_sleep(5); ROLLBACK", True),
        ("BEGIN; SAVEPOINT a; SELECT 1/0; ROLLBACK TO a; COMMIT", False),
        ("DO $$BEGIN PERFORM 1/0; EXCEPTION WHEN OTHERS THEN NULL;END$$", False),
        ("BEGIN; SELECT 1; ROLLBACK", False),
        ("ROLLBACK", False),
        ("SELECT 1", False),
    ],
)
def test_units_whose_transaction_failed_are_flagged(
    server: Cluster, failing: None, statements: str, failed: bool
) -> None:
    with trial(server) as running, bare_session(server) as client:
        client.execute("SELECT 1")
        for statement in statements.split("; ") if "$$" not in statements else [statements]:
            with contextlib.suppress(psycopg.Error):
                client.execute(statement.encode())
        client.execute("SELECT 1")
        eventually(lambda: len(opened(running, client)) >= 3)
        rows = opened(running, client)
    assert flagged(rows, UnitFlag.ABORTED)[1:-1].count(True) == failed
    assert flagged(rows, UnitFlag.ABORTED)[0] is flagged(rows, UnitFlag.ABORTED)[-1] is False


def test_serialization_failure_is_flagged(server: Cluster, failing: None) -> None:
    """Found as the second of two commits."""
    with trial(server) as running, bare_session(server) as one_, bare_session(server) as other:
        for client in (one_, other):
            client.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
            client.execute("SELECT count(*) FROM serial")
            client.execute("INSERT INTO serial VALUES (1)")
        one_.execute("COMMIT")
        with pytest.raises(psycopg.errors.SerializationFailure):
            other.execute("COMMIT")
        assert flagged(running.observed(one_, 1), UnitFlag.ABORTED) == [False]
        assert flagged(running.observed(other, 1), UnitFlag.ABORTED) == [True]


@pytest.fixture
def failing(server: Cluster) -> Iterator[None]:
    with bare_session(server, application_name="pgtare") as admin:
        admin.execute("CREATE TABLE failing (x int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        admin.execute("INSERT INTO failing VALUES (1)")
        admin.execute("CREATE TABLE serial (x int)")
        yield
        admin.execute("DROP TABLE failing, serial")
