"""Observations on their way: rings that fill, change hands, and are read while they are written."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value
from tests.servers import crashes, run_program, weighable
from tests.sessions import Connection, bare_session, eventually, one, setting
from tests.trials import MARKED, MARKER, trial
from tests.wire_protocol import Wire, query_message

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Of the smallest pool, 1 MB, shared among 1,024 sessions.
SMALL_RING = 8


@pytest.fixture(scope="module")
def small(each_server: Binaries) -> Iterator[Cluster]:
    """A server with the smallest pool, and room for many connections."""
    settings: dict[str, Value] = {"pgtare.ring_memory": "1MB", "max_connections": 700}
    with weighable(each_server, settings) as cluster:
        yield cluster


def burst(client: Connection, count: int, sql: str = "SELECT 1") -> None:
    """So many transactions, the fast way."""
    with Wire(client) as wire:
        for done in range(0, count, 1000):
            wire.send(*[query_message(sql)] * min(1000, count - done))
            wire.read_until_ready(min(1000, count - done))


def waits_for_client(cluster: Cluster, client: Connection) -> bool:
    """The session has done all that it does after its last answer."""
    with cluster.connect() as connection:
        found = one(
            connection,
            "SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = %s",
            client.info.backend_pid,
        )
    return bool(found == "ClientRead")


def pgbench(cluster: Cluster, *arguments: str) -> int:
    """Run pgbench's own read-only statement; returns the number of transactions."""
    printed = run_program(
        cluster, "pgbench", "-n", "-f", "-", *arguments, cluster.dsn(), stdin="SELECT 1;\n"
    )
    line = next(x for x in printed.splitlines() if "actually processed" in x)
    return int(line.split(":")[1].split("/")[0])


def test_full_ring_keeps_the_oldest_and_counts_what_it_loses(small: Cluster) -> None:
    with trial(small, sessions=1024) as running, bare_session(small) as client:
        burst(client, 100)
        eventually(lambda: running.trials.status().lost == 100 - SMALL_RING)
        assert running.trials.status().observations == SMALL_RING
        eventually(lambda: waits_for_client(small, client))  # else another would follow these
        assert list(running.observed(client, SMALL_RING)["unit"]) == list(range(SMALL_RING))
        # it goes on, and does not slow the session down when it is full
        burst(client, 5)
        assert list(running.observed(client, SMALL_RING + 5)["unit"][-5:]) == [*range(100, 105)]
        took_s = []
        for _ in range(3):  # the server may be kept from the processor in one of them
            start = time.monotonic()
            burst(client, 1000)
            took_s.append(time.monotonic() - start)
        assert min(took_s) < 5
    with trial(small, sessions=1024) as running:  # its counters begin anew
        status = running.trials.status()
    assert (status.sessions, status.observations, status.lost) == (0, 0, 0)


def test_drain_gives_each_record_once(server: Cluster) -> None:
    """Or, where its reader was kept from the processor for too long, counts it as lost."""
    with trial(server) as running, bare_session(server) as client:
        worker = threading.Thread(target=burst, args=(client, 20_000))
        worker.start()
        while worker.is_alive():
            running.drain()
        worker.join()
        eventually(lambda: len(running.drained()) + running.trials.status().lost >= 20_000)
        rows, lost = running.drained(), running.trials.status().lost
    assert len(rows) + lost == 20_000
    assert len(rows) > 2_000
    assert (np.diff(rows["unit"].astype(np.int64)) > 0).all()


def test_drain_takes_no_more_than_asked(server: Cluster) -> None:
    with trial(server) as running, bare_session(server) as client:
        burst(client, 100)
        eventually(lambda: running.trials.status().observations == 100)
        running.trials.stop()  # what was observed can be drained after the end
        sizes = [
            len(one(running.trials.conn, "SELECT pgtare.trial_drain(%s)", size))
            for size in (72, 100 * 72 - 1, 8_000_000, 72)
        ]
    assert sizes == [72, 99 * 72, 0, 0]


def test_sessions_beyond_the_rings_are_counted(server: Cluster) -> None:
    with trial(server, sessions=2) as running:
        with bare_session(server) as a, bare_session(server) as b, bare_session(server) as c:
            for client in (a, b, c):
                client.execute("SELECT 1")
            status = running.trials.status()
        assert (status.sessions, status.sessions_now, status.sessions_no_ring) == (2, 2, 1)


def test_ring_of_a_session_that_left_goes_to_the_next(server: Cluster) -> None:
    """Though nobody has read it yet: with new connections all the time, rings must not run out."""
    with trial(server, sessions=1) as running:
        for _ in range(20):
            with bare_session(server) as client:
                client.execute("SELECT 1")
            eventually(lambda: running.trials.status().sessions_now == 0)
        assert running.trials.status().sessions_no_ring == 0
        assert sorted(running.drained()["backend"]) == list(range(20))


def test_connections_that_come_and_go_lose_nothing(server: Cluster) -> None:
    """pgbench makes a new connection for each transaction, here without any reader."""
    with trial(server, sessions=8) as running:
        count = pgbench(server, "-C", "-c", "2", "-T", "2")
        eventually(lambda: running.trials.status().sessions_now == 0)
        status = running.trials.status()
        assert (status.observations, status.lost, status.sessions_no_ring) == (count, 0, 0)
        assert len(running.drained()) == count
    assert crashes(server) == []


@pytest.mark.slow
def test_new_trial_while_sessions_of_the_old_one_write(server: Cluster) -> None:
    """Rings are divided anew under the writers: no record may land in another's place."""
    with bare_session(server) as a, bare_session(server) as b:
        enough = threading.Event()

        def write(client: Connection) -> None:
            while not enough.is_set():
                burst(client, 1000)

        workers = [threading.Thread(target=write, args=(c,)) for c in (a, b)]
        for worker in workers:
            worker.start()
        try:
            for i in range(12):
                with trial(server, sessions=1 + i % 3, seed=1 + i) as running:
                    time.sleep(0.02)
                    running.trials.stop()
                    rows = running.drained()
                    assert (rows["start_ns"] < 10_000_000_000).all()
                    assert set(rows["pid"]) <= {a.info.backend_pid, b.info.backend_pid}
                    for backend in np.unique(rows["backend"]):
                        mine = rows[rows["backend"] == backend]
                        assert list(mine["unit"]) == list(range(len(mine)))
        finally:
            enough.set()
            for worker in workers:
                worker.join()
        # and afterwards nothing is left over
        with trial(server, sessions=2) as running:
            for client in (a, b):
                burst(client, 11)
            running.observed(a, 10)
            running.observed(b, 10)
            assert running.trials.status().sessions_now == 2
    assert crashes(server) == []


@pytest.mark.slow
def test_idle_sessions_that_never_woke_are_no_burden(small: Cluster) -> None:
    """Of 300 idle sessions of an old trial, each gets its settings back when it next asks."""
    # on a busy machine hundreds of connections take a while
    with trial(small, [{MARKER: "1111kB"}] * 2, sessions=400, seconds=150.0) as running:
        idle = [bare_session(small) for _ in range(300)]
        opened = [manager.__enter__() for manager in idle]
        eventually(lambda: running.trials.status().sessions_now == 300)
    try:
        with trial(small, MARKED, sessions=8) as running:
            with bare_session(small) as client:
                burst(client, 50)
                running.observed(client, 50)
            assert {setting(opened[0]), setting(opened[150])} == {("4MB", "default")}
    finally:
        for manager in idle:
            manager.__exit__(None, None, None)


def pss_kb(pid: int) -> int:
    """Memory of a process, with its share of what it shares."""
    return int(psutil.Process(pid).memory_full_info().pss) // 1024


def test_memory_does_not_grow_with_transactions(server: Cluster) -> None:
    """The contexts of PostgreSQL, and the heap which its settings take theirs from."""

    def used() -> tuple[int, int]:
        context = one(client, "SELECT sum(used_bytes) FROM pg_backend_memory_contexts")
        maps = psutil.Process(client.info.backend_pid).memory_maps()
        (heap,) = [area.private_dirty // 1024 for area in maps if area.path == "[heap]"]
        return int(context), heap

    arms = (
        {MARKER: "1111kB", "log_statement": "none", "default_tablespace": ""},
        {MARKER: "2222kB", "log_statement": "none", "default_tablespace": "pg_default"},
    )
    with trial(server, arms), bare_session(server) as client:
        own_set = "SET default_tablespace = 'pg_default'"
        burst(client, 2000)
        burst(client, 2000, own_set)
        one(client, "SELECT sum(used_bytes) FROM pg_backend_memory_contexts")
        before = used()
        burst(client, 50_000)
        burst(client, 5_000, own_set)
        after = used()
    assert after[0] - before[0] < 16_384
    assert after[1] - before[1] < 128


@pytest.mark.slow
def test_many_clients_and_many_idle_connections(small: Cluster) -> None:
    """64 clients at work among 500 idle ones: all are counted, none is lost, none is slow."""
    small.restart({"pgtare.ring_memory": "32MB"})
    idle = [bare_session(small) for _ in range(500)]
    opened = [manager.__enter__() for manager in idle]
    try:
        with trial(small, sessions=600) as running:
            total = 0
            finished = threading.Event()

            def work() -> None:
                nonlocal total
                total = pgbench(small, "-c", "64", "-j", "2", "-T", "8", "-R", "20000")
                finished.set()

            worker = threading.Thread(target=work)
            worker.start()
            while not finished.wait(0.2):
                running.drain()
            worker.join()
            eventually(lambda: running.trials.status().sessions_now == 0)
            status = running.trials.status()
            rows = running.drained()
            print(f"\n{total} transactions, {total / 8:.0f}/s, lost {status.lost}")
        assert (status.lost, status.observations, len(rows)) == (0, total, total)
        assert float(np.mean((rows["flags"] & UnitFlag.NO_ARRIVAL) != 0)) == 0
        print(f"Pss of an idle backend {np.mean([pss_kb(c.info.backend_pid) for c in opened])} kB")
    finally:
        for manager in idle:
            manager.__exit__(None, None, None)
        small.restart({"pgtare.ring_memory": "1MB"})
    assert crashes(small) == []


@pytest.mark.slow
@pytest.mark.parametrize("with_module", [True, False])
def test_memory_of_a_backend(wheel: Binaries, with_module: bool) -> None:
    """Prints figures: what a backend takes, with the module taking part and without it."""
    module = loadable(wheel)
    with Cluster(wheel, preload=[module.library] if with_module else []) as cluster:
        with bare_session(cluster) as admin:
            if with_module:
                admin.execute(module.create_sql.encode())
        managers = [bare_session(cluster) for _ in range(20)]
        clients = [manager.__enter__() for manager in managers]

        def measure(title: str) -> None:
            for client in clients:
                burst(client, 100)
            figures = [pss_kb(client.info.backend_pid) for client in clients]
            print(f"\n{title}: {np.mean(figures):.0f} kB a backend", end="")

        measure("module loaded" if with_module else "no module")
        if with_module:
            with trial(cluster):
                measure("in a trial")
        for manager in managers:
            manager.__exit__(None, None, None)
