"""The server module's units: each transaction once, its service time apart from its client's."""

import contextlib
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import psutil
import psycopg
import pytest
from bench.truth.loads import certificate

from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.pgbouncer import pooler
from tests.preloaded import preloaded
from tests.servers import weighable
from tests.sessions import Connection, bare_session, eventually, executed_s, one
from tests.trials import MARKED, MARKER, Running, flagged, share, trial
from tests.wire_protocol import BIND_EXECUTE_SYNC, PARSE_SELECT, Wire, query_message

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

NAP_NS = 50_000_000
#: Takes some tenths of a second of a processor.
BUSY = "SELECT count(*) FROM generate_series(1, 1500000) i WHERE md5(i::text) > 'f'"


@pytest.fixture
def running(server: Cluster) -> Iterator[Running]:
    with trial(server) as it:
        yield it


@pytest.fixture
def client(server: Cluster, running: Running) -> Iterator[Connection]:
    """A session that takes part from its first transaction on."""
    with bare_session(server) as connection:
        yield connection


def test_simple_statements_are_a_unit_each(running: Running, client: Connection) -> None:
    """Every arrival is seen in a forked child; units lie apart by their times at least."""
    for _ in range(500):
        client.execute("SELECT 1")
    rows = running.observed(client, 500)
    assert (rows["requests"] == 1).all()
    assert share(rows, UnitFlag.NO_ARRIVAL) == 0
    ends = rows["start_ns"] + rows["service_ns"] + rows["client_ns"]
    assert (rows["start_ns"][1:] >= ends[:-1]).all()


def assert_each_ran_under_its_arm(rows: Observations, values: list[str]) -> None:
    assert [MARKED[arm][MARKER] for arm in rows["arm"]] == values
    assert share(rows, UnitFlag.APP_CHANGED) == 0


@pytest.mark.parametrize("reset", [b"DISCARD ALL", b"RESET ALL"])
def test_a_reset_is_no_unit_and_the_arm_is_applied_again(
    running: Running, client: Connection, reset: bytes
) -> None:
    values = []
    for _ in range(100):
        values.append(one(client, f"SHOW {MARKER}"))
        client.execute(reset)
    assert_each_ran_under_its_arm(running.observed(client, 100), values)


def test_a_pooler_that_resets_after_each_transaction_loses_none(
    server: Cluster, running: Running
) -> None:
    # one session: while it resets, a transaction would go to another one, whose rows come apart
    always = (
        "server_reset_query = DISCARD ALL\nserver_reset_query_always = 1\nmax_db_connections = 1\n"
    )
    with (
        pooler(server, "transaction", always) as through,
        psycopg.connect(through.dsn, autocommit=True, prepare_threshold=None) as client,
    ):
        values = [one(client, f"SHOW {MARKER}") for _ in range(100)]
        eventually(lambda: len(running.drained()) >= 100)
    assert_each_ran_under_its_arm(running.drained()[-100:], values)


@pytest.mark.parametrize(
    ("statements", "requests", "aborted"),
    [
        (["SELECT 1; SELECT 2; SELECT 3"], [1], [False]),
        (["DO $$ BEGIN FOR i IN 1..10 LOOP PERFORM 1; END LOOP; END $$"], [1], [False]),
        (["DO $$ BEGIN FOR i IN 1..5 LOOP COMMIT; END LOOP; END $$"], [1], [False]),
        (["BEGIN", "SELECT 1", "SELECT 2", "COMMIT"], [4], [False]),
        (["BEGIN", "SELECT 1", "ROLLBACK"], [3], [False]),
        (["BEGIN", *["SELECT no_such_column"] * 3, "ROLLBACK"], [5], [True]),
        (["", " ; "], [1, 1], [False] * 2),
        (["SELECT repeat('x', 8000000)"], [1], [False]),
    ],
    ids=lambda value: ";".join(map(str, value)),
)
def test_what_is_a_unit(
    running: Running,
    client: Connection,
    statements: list[str],
    requests: list[int],
    aborted: list[bool],
) -> None:
    for statement in statements:
        with contextlib.suppress(psycopg.Error):
            client.execute(statement.encode())
    rows = running.observed(client, len(requests))
    assert list(rows["requests"]) == requests
    assert flagged(rows, UnitFlag.ABORTED) == aborted


@pytest.mark.slow
def test_what_wakes_the_client_is_not_the_sessions_time(wheel: Binaries) -> None:
    """In send() a session may wait for its own client, if that runs on the same processor."""
    with (
        preloaded(wheel, "slow_send.c", "PGTARE_SLOW_SEND", 8) as (binaries, longer),
        weighable(binaries) as cluster,
        trial(cluster) as running,
        bare_session(cluster) as client,
    ):
        client.execute("SELECT 1")
        longer[:] = struct.pack("q", 10 * NAP_NS)
        for statement in ("SELECT 2", "BEGIN", "COMMIT", "SELECT repeat('x', 12000)"):
            client.execute(statement.encode())
        longer[:] = bytes(8)
        rows = running.observed(client, 4)[-3:]
    assert list(rows["requests"]) == [1, 2, 1]
    assert (rows["service_ns"] < 10 * NAP_NS).all()
    assert (rows["client_ns"] > [10 * NAP_NS, 20 * NAP_NS, 20 * NAP_NS]).all()


def test_waiting_until_a_client_reads_is_not_the_sessions_time(
    running: Running, client: Connection
) -> None:
    """It asks for more than fits into the sockets, and reads nothing for a while."""
    client.execute("SELECT 1")
    client.pgconn.send_query(b"SELECT repeat('x', 4000000)")
    client.pgconn.flush()
    time.sleep(2)
    while client.pgconn.get_result() is not None:
        pass
    row = running.observed(client, 2)[1]
    assert row["client_ns"] > 1e9
    assert row["service_ns"] < 1e9


@pytest.mark.parametrize("prepare", [False, True])
def test_extended_statements_are_a_unit_each(
    running: Running, client: Connection, prepare: bool
) -> None:
    client.prepare_threshold = 5 if prepare else None
    for i in range(100):
        client.execute("SELECT %s::int", (i,), prepare=prepare)
    running.observed(client, 100 + prepare)  # it is prepared by a request of its own


def test_each_sync_of_a_pipeline_is_a_unit(running: Running, client: Connection) -> None:
    with client.pipeline() as pipeline:
        for _ in range(50):
            client.execute("SELECT 1")
            client.execute("SELECT 2")
            pipeline.sync()
    # leaving the block sends one more Sync
    running.observed(client, 51)


def test_units_of_one_packet_but_the_first_have_no_arrival(
    running: Running, client: Connection
) -> None:
    with Wire(client) as wire:
        wire.send(*[query_message("SELECT 1")] * 20)
        wire.read_until_ready(20)
    rows = running.observed(client, 20)
    assert flagged(rows, UnitFlag.NO_ARRIVAL) == [False] + [True] * 19


def test_service_time_of_buffered_units_does_not_overlap(
    running: Running, client: Connection
) -> None:
    with Wire(client) as wire:
        began = time.monotonic()
        wire.send(*[query_message("SELECT pg_sleep(0.05)")] * 4)
        wire.read_until_ready(4)
        took_s = time.monotonic() - began
    rows = running.observed(client, 4)
    assert (rows["service_ns"] >= NAP_NS).all()
    # were each counted from the arrival of all, it would be ten naps of four
    assert rows["service_ns"].sum() <= 1e9 * took_s + 2 * NAP_NS


def test_a_reload_read_before_a_buffered_unit_flags_it(
    server: Cluster, running: Running, client: Connection
) -> None:
    wait = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {client.info.backend_pid}"
    with Wire(client) as wire, bare_session(server, application_name="pgtare") as operator:
        operator.execute("SELECT pg_advisory_lock(71)")
        wire.send(query_message("SELECT pg_advisory_lock(71)"), query_message("SELECT 1"))
        eventually(lambda: one(operator, wait) == "advisory")
        server.reload()
        operator.execute("SELECT pg_advisory_unlock(71)")
        wire.read_until_ready(2)
    rows = running.observed(client, 2)
    assert flagged(rows, UnitFlag.RELOADED) == [False, True]


@pytest.mark.parametrize("packets", [1, 2])
def test_a_request_whose_end_comes_late_waits_for_its_client(
    running: Running, client: Connection, packets: int
) -> None:
    """Its first message comes along with the request before, or by itself."""
    with Wire(client) as wire:
        if packets == 1:
            wire.send(query_message("SELECT 1"), PARSE_SELECT)
            wire.read_until_ready()
        else:
            wire.send(query_message("SELECT 1"))
            wire.read_until_ready()
            wire.send(PARSE_SELECT)
        time.sleep(0.6)
        wire.send(BIND_EXECUTE_SYNC)
        wire.read_until_ready()
    rows = running.observed(client, 2)
    # the server may be late to begin a wait for its client
    assert rows["service_ns"][1] < 6 * NAP_NS <= rows["client_ns"][1]


def test_think_time_within_a_transaction_is_the_clients(
    running: Running, client: Connection
) -> None:
    began = time.monotonic()
    client.execute("BEGIN")
    for _ in range(4):
        time.sleep(0.15)
        client.execute("SELECT 1")
    client.execute("COMMIT")
    took_s = time.monotonic() - began
    row = running.observed(client, 1)[0]
    # the server may be late to begin a wait for its client, and when it has answered
    assert 6 * NAP_NS <= row["client_ns"] <= 1e9 * took_s + 6 * NAP_NS
    assert row["service_ns"] < 6 * NAP_NS


def test_think_time_between_transactions_is_nobodys(running: Running, client: Connection) -> None:
    client.execute("SELECT 1")
    time.sleep(0.2)
    client.execute("SELECT 1")
    rows = running.observed(client, 2)
    assert rows["client_ns"].sum() < 4 * NAP_NS
    assert rows["service_ns"][1] < 4 * NAP_NS
    assert rows["start_ns"][1] - rows["start_ns"][0] >= 4 * NAP_NS


def test_slow_client_of_copy_in_is_not_service_time(running: Running, client: Connection) -> None:
    client.execute("CREATE TEMP TABLE t (x int)")
    with client.cursor().copy("COPY t FROM STDIN") as copy:
        for i in range(4):
            copy.write_row((i,))
            client.pgconn.flush()
            time.sleep(0.15)
    with client.cursor().copy("COPY (SELECT generate_series(1, 10000)) TO STDOUT") as copy:
        assert sum(1 for _ in copy.rows()) == 10_000
    rows = running.observed(client, 3)
    assert flagged(rows, UnitFlag.COPY) == [False, True, True]
    row = rows[1]
    # the server may be late to begin a wait for its client
    assert row["client_ns"] >= 6 * NAP_NS
    assert row["service_ns"] < 6 * NAP_NS


def test_work_between_the_waits_of_copy_in_is_service_time(
    running: Running, client: Connection
) -> None:
    client.execute("CREATE TEMP TABLE t (x int)")
    client.execute(
        "CREATE FUNCTION pg_temp.nap() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$"
    )
    client.execute(
        "CREATE TRIGGER nap BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION pg_temp.nap()"
    )
    with client.cursor().copy("COPY t FROM STDIN") as copy:
        for i in range(3):
            copy.write_row((i,))
            client.pgconn.flush()
            time.sleep(0.1)
    row = running.observed(client, 4)[3]
    assert row["service_ns"] >= 3 * NAP_NS
    assert row["client_ns"] >= NAP_NS


@pytest.mark.parametrize("protocol", ["simple", "extended"])
def test_error_is_a_unit_and_flagged(running: Running, client: Connection, protocol: str) -> None:
    for divisor in (1, 0, 1):
        try:
            if protocol == "simple":
                client.execute(f"SELECT 1 / {divisor}")
            else:
                client.execute("SELECT 1 / %s::int", (divisor,))
        except psycopg.errors.DivisionByZero:
            pass
    assert flagged(running.observed(client, 3), UnitFlag.ABORTED) == [False, True, False]


def test_large_request_is_one_unit(running: Running, client: Connection) -> None:
    assert len(one(client, "SELECT %s::text", "y" * 3_000_000)) == 3_000_000
    rows = running.observed(client, 1)
    assert not rows["flags"][0] & UnitFlag.NO_ARRIVAL


def test_connection_that_ends_leaves_no_unit_behind(server: Cluster, running: Running) -> None:
    with bare_session(server) as client:
        client.execute("SELECT 1")
    with bare_session(server) as other:
        for _ in range(3):
            other.execute("SELECT 1")
        running.observed(other, 3)
    assert len(running.drained()) == 4


def test_cpu_time_of_a_busy_function(running: Running, client: Connection) -> None:
    """Processor time of the unit, as the kernel's own account of the process has it."""

    process = psutil.Process(client.info.backend_pid)
    before = process.cpu_times()
    client.execute(BUSY)
    after = process.cpu_times()
    by_kernel = 1e9 * (after.user + after.system - before.user - before.system)
    row = running.observed(client, 1)[0]
    assert abs(row["cpu_ns"] - by_kernel) < 40_000_000 + 0.05 * by_kernel
    assert by_kernel > 200_000_000


def test_sleeping_takes_no_cpu(running: Running, client: Connection) -> None:
    """Though the session has used much before: it is the service's time alone."""
    client.execute(BUSY)
    took_s = executed_s(client, "SELECT pg_sleep(0.2)")
    rows = running.observed(client, 2)
    busy, asleep = rows["cpu_ns"]
    assert 0 <= asleep < 100_000_000 < 200_000_000 < busy
    assert 4 * NAP_NS <= rows["service_ns"][1] <= 1e9 * took_s + NAP_NS
    assert rows["client_ns"][1] < 4 * NAP_NS


def test_cpu_time_is_not_taken_unasked(server: Cluster) -> None:
    with trial(server, cpu=False) as running, bare_session(server) as client:
        for _ in range(3):
            client.execute("SELECT 1")
        assert (running.observed(client, 3)["cpu_ns"] == -1).all()


def test_injected_delay_shows_in_the_service_time_of_its_arm(server: Cluster) -> None:
    """Means of the fastest fifth, which a busy machine leaves alone: the difference is the delay.

    Their standard error, of 200 transactions each, is around 1 us; the bounds are far wider.
    """
    with (
        trial(server, ({}, {}), inject_ns=(0, 200_000)) as running,
        bare_session(server) as client,
    ):
        for _ in range(2001):
            client.execute("SELECT 1")
        rows = running.observed(client, 2001)[1:]

    def fastest(arm: int) -> float:
        values = np.sort(rows["service_ns"][rows["arm"] == arm])
        return float(values[: len(values) // 5].mean())

    assert 180_000 < fastest(1) - fastest(0) < 300_000


def test_sessions_at_once_are_counted_exactly(server: Cluster, running: Running) -> None:
    def work() -> None:
        with bare_session(server) as client:
            for _ in range(300):
                client.execute("SELECT 1")
            running_pids.append(client.info.backend_pid)

    running_pids: list[int] = []
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def counted() -> list[int]:
        rows = running.drained()
        return [int((rows["pid"] == pid).sum()) for pid in running_pids]

    # the record of a session's last transaction follows its answer a little later
    with contextlib.suppress(TimeoutError):
        eventually(lambda: min(counted()) >= 300)
    assert counted() == [300] * 8


@pytest.mark.debian
def test_units_over_tls(debian15: Binaries) -> None:
    """Think time and service time keep apart where records are decrypted from a buffer."""
    with certificate() as settings, weighable(debian15, tcp=True) as cluster:
        cluster.restart(dict(settings))
        with (
            trial(cluster, MARKED) as running,
            psycopg.connect(
                cluster.dsn(tcp=True, sslmode="require"), autocommit=True, prepare_threshold=None
            ) as client,
        ):
            assert one(client, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") is True
            for _ in range(100):
                client.execute("SELECT 1")
            client.execute("BEGIN")
            time.sleep(0.4)
            client.execute("SELECT pg_sleep(0.05)")
            client.execute("COMMIT")
            rows = running.observed(client, 102)
    assert share(rows, UnitFlag.NO_ARRIVAL) == 0
    # the server may be late to begin a wait for its client
    assert rows["client_ns"][-1] >= 4 * NAP_NS
    assert NAP_NS <= rows["service_ns"][-1] < 5 * NAP_NS
