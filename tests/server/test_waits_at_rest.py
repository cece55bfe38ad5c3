"""What counts as load: statements that wait for their client; not pauses of the background."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.wait_counters.rates import profile
from pgtare.postgres.wait_counters.reader import open_reader
from tests.commands import in_process
from tests.servers import stopped_at_once, tracing
from tests.sessions import Connection, eventually, one, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

_UNDER_WAY = """
SELECT count(*) FROM pg_stat_wait_event_timing_current
WHERE wait_event = %s AND idle = %s AND backend_type = %s
"""


def under_way(observer: Connection, event: str, kind: str = "client backend", *, idle: bool) -> int:
    """Processes of a kind that are in a wait of this event."""
    found: int = one(observer, _UNDER_WAY, event, idle, kind)
    return found


@contextlib.contextmanager
def copying(cluster: Cluster) -> Iterator[None]:
    """A session in COPY FROM STDIN whose client sends nothing."""
    with session(cluster) as connection:
        connection.execute("CREATE TEMP TABLE copied (a int)")
        with connection.cursor().copy("COPY copied FROM STDIN") as copy:
            yield
            copy.write("1\n")


@contextlib.contextmanager
def unread(cluster: Cluster) -> Iterator[None]:
    """A session whose client does not read what it asked for."""
    with session(cluster) as connection:
        connection.pgconn.send_query(b"SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
        yield
        connection.cancel_safe()
        while connection.pgconn.get_result() is not None:
            pass


def test_a_statement_that_waits_for_another_server_is_active(
    timed: Cluster, observer: Connection
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, session(timed) as connection:
        where = f"host=127.0.0.1 port={silent.getsockname()[1]}"
        subscribe = f"CREATE SUBSCRIPTION s CONNECTION '{where}' PUBLICATION p"
        connection.pgconn.send_query(subscribe.encode())
        eventually(lambda: under_way(observer, "LibpqwalreceiverConnect", idle=False))
        assert under_way(observer, "LibpqwalreceiverConnect", idle=True) == 0
        connection.cancel_safe()
        while connection.pgconn.get_result() is not None:
            pass


def test_a_statement_that_waits_for_its_client_is_active(
    timed: Cluster, observer: Connection
) -> None:
    with copying(timed), unread(timed), session(timed):
        eventually(lambda: under_way(observer, "ClientRead", idle=False))
        eventually(lambda: under_way(observer, "ClientWrite", idle=False))
        assert under_way(observer, "ClientRead", idle=True) >= 1  # that of the idle session
        top = in_process(
            "waits", "top", "--dsn", timed.dsn(), "--interval", "1s", "--iterations", "1", "--json"
        )
        (found,) = [json.loads(line) for line in top.stdout.splitlines()]
        active = {event["event"]["name"]: event["active"] for event in found["events"]}
        # who looks can be without a processor between its clock and the sessions'; one that is
        # forgotten is a whole one less
        assert active["ClientRead"] > 0.7
        assert active["ClientWrite"] > 0.7
        assert 1.4 < found["active"] < 2.8

        doctor = json.loads(
            in_process("doctor", "--dsn", timed.dsn(), "--interval", "1s", "--json").stdout
        )
        assert doctor["waits"]["active"] > 1.4


def test_a_pause_of_the_checkpointer_is_no_load(timed: Cluster, observer: Connection) -> None:
    observer.execute(
        "CREATE TABLE written AS SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g"
    )
    spread = "SELECT pg_backup_start('spread', false)"
    with session(timed) as other:
        backup = threading.Thread(target=other.execute, args=(spread,), daemon=True)
        backup.start()
        try:
            eventually(
                lambda: under_way(observer, "CheckpointWriteDelay", "checkpointer", idle=True)
            )
        finally:
            observer.execute("CHECKPOINT")
            backup.join(30)
    observer.execute("DROP TABLE written")
    assert rows(
        observer,
        "SELECT DISTINCT idle FROM pg_stat_wait_event_timing WHERE wait_event = %s",
        "CheckpointWriteDelay",
    ) == [(True,)]


def test_a_paced_vacuum_is_load_if_a_client_waits_for_it(
    timed: Cluster, observer: Connection
) -> None:
    observer.execute("CREATE TABLE paced AS SELECT g FROM generate_series(1, 50000) g")
    observer.execute("ALTER SYSTEM SET autovacuum_naptime = '1s'")
    observer.execute("SELECT pg_reload_conf()")
    slow = "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
    with session(timed) as client:
        client.execute("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
        vacuum = threading.Thread(target=_vacuum, args=(client,), daemon=True)
        vacuum.start()
        try:
            eventually(lambda: under_way(observer, "VacuumDelay", idle=False))
        finally:
            client.cancel_safe()
            vacuum.join(30)
    try:
        observer.execute(
            f"ALTER TABLE paced SET ({slow}, autovacuum_vacuum_threshold = 1)".encode()
        )
        observer.execute("DELETE FROM paced WHERE g < 49000")
        eventually(lambda: under_way(observer, "VacuumDelay", "autovacuum worker", idle=True), 60)
    finally:
        observer.execute("DROP TABLE paced")
        observer.execute("ALTER SYSTEM RESET autovacuum_naptime")
        observer.execute("SELECT pg_reload_conf()")


def _vacuum(connection: Connection) -> None:
    with contextlib.suppress(Exception):  # it is cancelled
        connection.execute("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) paced")


def test_workers_that_wait_for_their_turn_are_no_load(wheel: Binaries, tmp_path: Path) -> None:
    """The keeper and the writer of sql_trace, as other extensions' workers, wait for a latch."""
    settings = {
        "wait_event_timing.capture": "stats",
        "sql_trace.recorder": True,
        "sql_trace.keep_directory": str(tmp_path),
    }
    with (
        stopped_at_once(tracing(wheel, settings)) as cluster,
        session(cluster) as observer,
    ):
        eventually(lambda: under_way(observer, "Extension", "background worker", idle=True))
        assert under_way(observer, "Extension", "background worker", idle=False) == 0
        with open_reader(cluster.dsn()) as reader:
            first = reader.snapshot()
            one(observer, "SELECT pg_sleep(1)")
            found = profile(first, reader.snapshot(), None, idle=True, background=True)
        label = "Extension/Extension"
        assert {rate.event.idle for rate in found.events if rate.event.label == label} == {True}
