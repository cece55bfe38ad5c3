"""The loads on which the module is held against the witness.

Each is a server prepared for it, the processes to watch, and what is then run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from bench.truth import stray
from bench.truth.compare import Connection, Watched
from bench.truth.standby import standby
from bench.truth.witness import word_of
from pgtare.errors import MeasurementError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.os_account import server_account
from pgtare.postgres.settings import Value

SETTINGS: dict[str, Value] = {
    "wait_event_timing.capture": "stats",
    "compute_query_id": True,
    "shared_buffers": "1MB",
    "max_parallel_workers_per_gather": 0,
    "autovacuum": False,
    **stray.SETTINGS,
}
ROWS = 50_000
SCAN = "SELECT count(filler) FROM big"  # of the whole table, not of an index


@dataclass
class Stage:
    """A server, ready for its load."""

    observers: list[Connection]  # one for each server
    logs: list[Path]  # of the servers
    watched: list[tuple[Watched, int]]  # and the number of its server
    run: Callable[[float], object]  # with a factor for its length
    sessions: list[Connection] = field(default_factory=list)  # watched ones
    spare: list[Watched] = field(default_factory=list)  # an idle session of each server


class Server:
    """A throwaway server with the module, and its sessions."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        binaries: Binaries,
        settings: dict[str, Value],
        *,
        tcp: bool = False,
    ) -> None:
        self.binaries = binaries
        self.stack = stack
        module = loadable(binaries, "wait_event_timing")
        self.cluster = stack.enter_context(
            Cluster(binaries, {**SETTINGS, **settings}, preload=[module.library], tcp=tcp)
        )
        with self.cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        self.observer = self.session()
        self.spare = self.watch(self.session())

    def session(self, dsn: str | None = None) -> Connection:
        """A session that finds the module's views."""
        connection = self.stack.enter_context(
            psycopg.connect(dsn or self.cluster.dsn(), autocommit=True)
        )
        connection.execute("SET search_path = public, wait_event_timing")
        return connection

    def watch(self, session: Connection) -> Watched:
        """Open a session to watch."""
        pid = session.info.backend_pid
        return Watched(word_of(self.binaries, pid), pid, "client backend")

    def find(self, *kinds: str, seconds: float = 20.0) -> list[Watched]:
        """Processes of these backend types, each kind as soon as there is one."""
        found = []
        for kind in kinds:
            found += processes(self.observer, self.binaries, kind, seconds=seconds)
        return found

    def stage(
        self,
        run: Callable[[float], object],
        watched: Sequence[Watched] = (),
        sessions: Sequence[Connection] = (),
    ) -> Stage:
        """The stage of this server alone."""
        mine = [*(self.watch(session) for session in sessions), *watched]
        return Stage(
            [self.observer],
            [self.cluster.log_path],
            [(one, 0) for one in mine],
            run,
            list(sessions),
            [self.spare],
        )

    def big_table(self) -> None:
        """10 MB, more than fits into shared_buffers."""
        self.observer.execute(
            "CREATE TABLE big AS SELECT i, repeat('x', 200) AS filler "
            f"FROM generate_series(1, {ROWS}) i".encode()
        )
        self.observer.execute("CREATE INDEX ON big (i)")
        self.observer.execute("VACUUM ANALYZE big")
        self.observer.execute("CHECKPOINT")

    def forget_file(self, table: str) -> None:
        """Let the kernel drop the table's pages, so that reads go to the disk."""
        row = self.observer.execute("SELECT pg_relation_filepath(%s)", (table,)).fetchone()
        assert row is not None
        descriptor = os.open(self.cluster.data_directory / str(row[0]), os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def processes(
    connection: Connection,
    binaries: Binaries,
    kind: str,
    *,
    seconds: float = 20.0,
    wanted: int = 1,
    doing: str = "%",
) -> list[Watched]:
    """Processes of a backend type, as soon as there are this many."""
    deadline = time.monotonic() + seconds
    query = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type = %s AND coalesce(query, '') LIKE %s"
    )
    while True:
        found = []
        for (pid,) in connection.execute(query, (kind, doing)).fetchall():
            with contextlib.suppress(OSError):  # it has gone
                found.append(Watched(word_of(binaries, pid), pid, kind))
        if len(found) >= wanted:
            return found
        if time.monotonic() > deadline:
            raise MeasurementError(f"no {kind} came within {seconds:.0f} s")
        time.sleep(0.005)


def at_once(jobs: Sequence[Callable[[], object]]) -> None:
    """All of them, each in a thread of its own."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()


def repeat(session: Connection, times: float, *statements: str) -> Callable[[], None]:
    """Run statements this many times."""

    def run() -> None:
        for _ in range(max(1, int(times))):
            for statement in statements:
                session.execute(statement.encode())

    return run


def _sync(binaries: Binaries) -> dict[str, Value]:
    return {"io_method": "sync"} if binaries.major >= 18 else {}


@contextlib.contextmanager
def buffer_misses(binaries: Binaries) -> Iterator[Stage]:
    """Sequential scans of what the kernel has in its cache."""
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, _sync(binaries))
        server.big_table()
        reader = server.session()
        yield server.stage(
            lambda length: repeat(reader, 5 * length, SCAN)(),
            sessions=[reader],
        )


@contextlib.contextmanager
def disk_reads(binaries: Binaries) -> Iterator[Stage]:
    """Rows by index, in random order, from pages that the kernel must read from the disk."""
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {**_sync(binaries), "enable_bitmapscan": False})
        server.big_table()
        reader = server.session()
        query = (
            "SELECT sum(length(filler)) FROM generate_series(1, 150) g, "
            "LATERAL (SELECT filler FROM big WHERE i = 1 + (g * 7919 + {0} * 104729) % {1}) b"
        )

        def run(length: float) -> None:
            for n in range(max(2, int(10 * length))):
                server.forget_file("big")
                reader.execute(query.format(n, ROWS).encode())

        yield server.stage(run, sessions=[reader])


@contextlib.contextmanager
def commits(binaries: Binaries) -> Iterator[Stage]:
    """Inserts of 50 rows, each committed with fsync."""
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {})
        writer = server.session()
        writer.execute("CREATE TABLE t (i int)")
        yield server.stage(
            lambda length: repeat(
                writer, 300 * length, "INSERT INTO t SELECT generate_series(1, 50)"
            )(),
            sessions=[writer],
        )


@contextlib.contextmanager
def row_locks(binaries: Binaries) -> Iterator[Stage]:
    """Three sessions queue up for one row."""
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {})
        server.observer.execute("CREATE TABLE t AS SELECT 0 AS n")
        sessions = [server.session() for _ in range(3)]
        steps = ("BEGIN", "UPDATE t SET n = n + 1", "SELECT pg_sleep(0.003)", "COMMIT")
        yield server.stage(
            lambda length: at_once([repeat(s, 60 * length, *steps) for s in sessions]),
            sessions=sessions,
        )


@contextlib.contextmanager
def lwlocks(binaries: Binaries) -> Iterator[Stage]:
    """Four sessions, three of them watched, commit at once and wait for each other's WAL writes."""
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {})
        server.observer.execute("CREATE TABLE t (i int)")
        sessions = [server.session() for _ in range(4)]
        yield server.stage(
            lambda length: at_once(
                [repeat(s, 200 * length, "INSERT INTO t VALUES (1)") for s in sessions]
            ),
            sessions=sessions[:3],
        )


@contextlib.contextmanager
def parallel_scan(binaries: Binaries) -> Iterator[Stage]:
    """A leader and two workers, which come and go."""
    settings: dict[str, Value] = {
        "max_worker_processes": 2,
        "max_logical_replication_workers": 0,
        "max_parallel_workers_per_gather": 2,
        "min_parallel_table_scan_size": 0,
        "parallel_setup_cost": 0,
        "parallel_tuple_cost": 0,
    }
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {**_sync(binaries), **settings})
        server.big_table()
        leader = server.session()
        leader.execute("CREATE TABLE small AS SELECT generate_series(1, 1000) i")
        leader.execute("ALTER TABLE small SET (parallel_workers = 2)")
        slow = threading.Thread(
            target=repeat(leader, 1, "SELECT count(*) FROM small WHERE pg_sleep(0.002) IS NOT NULL")
        )
        slow.start()
        # there is room for two workers: these are their words
        workers = processes(server.observer, binaries, "parallel worker", wanted=2)
        slow.join()
        yield server.stage(
            lambda length: repeat(leader, 8 * length, SCAN)(),
            watched=[Watched(worker.word, 0, "parallel worker") for worker in workers],
            sessions=[leader],
        )


@contextlib.contextmanager
def background(binaries: Binaries) -> Iterator[Stage]:
    """Checkpointer, background writer, WAL writer and autovacuum launcher while others write."""
    settings: dict[str, Value] = {
        "autovacuum": True,
        "autovacuum_naptime": "1s",
        "bgwriter_delay": "20ms",
        "checkpoint_timeout": "30s",
        "synchronous_commit": False,
    }
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {**settings})
        server.big_table()
        writer = server.session()

        def run(length: float) -> None:
            for _ in range(max(1, int(3 * length))):
                repeat(writer, 20, f"UPDATE big SET filler = 'y' WHERE i % {ROWS // 1000} = 1")()
                server.observer.execute("CHECKPOINT")

        yield server.stage(
            run,
            server.find("checkpointer", "background writer", "walwriter", "autovacuum launcher"),
        )


@contextlib.contextmanager
def autovacuum(binaries: Binaries) -> Iterator[Stage]:
    """A worker of autovacuum that pauses often."""
    settings: dict[str, Value] = {
        "autovacuum": True,
        "autovacuum_naptime": "1s",
        "autovacuum_vacuum_threshold": 1,
        "autovacuum_vacuum_scale_factor": 0,
        "autovacuum_vacuum_cost_delay": "10ms",
        "autovacuum_vacuum_cost_limit": 20,
    }
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {**_sync(binaries), **settings})
        server.big_table()
        server.observer.execute("DELETE FROM big WHERE i % 10 = 0")
        (worker, *_) = processes(
            server.observer, binaries, "autovacuum worker", doing="autovacuum: VACUUM%public.big%"
        )
        yield server.stage(lambda length: time.sleep(2 * length), [worker])


@contextlib.contextmanager
def io_workers(binaries: Binaries) -> Iterator[Stage]:
    """The default since 18: a session lets workers read for it."""
    workers = ("io_min_workers", "io_max_workers") if binaries.major >= 19 else ("io_workers",)
    with contextlib.ExitStack() as stack:
        settings: dict[str, Value] = {
            "io_method": "worker",
            **dict.fromkeys(workers, 2),
            # a session may pin its share of the buffers: too few, and it reads by itself
            "shared_buffers": "8MB",
            "max_connections": 20,
        }
        server = Server(stack, binaries, settings)
        server.big_table()
        reader = server.session()

        def run(length: float) -> None:
            for _ in range(max(1, int(4 * length))):
                server.forget_file("big")
                reader.execute(SCAN.encode())

        yield server.stage(run, server.find("io worker"), [reader])


@contextlib.contextmanager
def idle_clients(binaries: Binaries) -> Iterator[Stage]:
    """Three sessions, seldom asked."""
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {})
        sessions = [server.session() for _ in range(3)]

        def run(length: float) -> None:
            for _ in range(max(1, int(20 * length))):
                for session in sessions:
                    time.sleep(0.02)
                    session.execute("SELECT 1")
                sessions[0].execute("SELECT pg_sleep(0.01)")

        yield server.stage(run, sessions=sessions)


@contextlib.contextmanager
def tls(binaries: Binaries) -> Iterator[Stage]:
    """A session through TLS, whose large answers fill the socket."""
    with contextlib.ExitStack() as stack:
        settings = stack.enter_context(certificate())
        server = Server(stack, binaries, settings, tcp=True)
        client = server.session(server.cluster.dsn(tcp=True, sslmode="require"))

        def run(length: float) -> None:
            for _ in range(max(2, int(40 * length))):
                client.execute("SELECT pg_sleep(0.002)")
                client.execute("SELECT repeat('x', 4000000)")

        yield server.stage(run, sessions=[client])


_MAKE_CERTIFICATE = "openssl req -new -x509 -nodes -subj /CN=localhost"


@contextlib.contextmanager
def certificate() -> Iterator[dict[str, Value]]:
    """Settings for TLS with a certificate that signs itself."""
    directory = tempfile.mkdtemp(prefix="pgtare-tls-", dir="/var/tmp")
    try:
        server_account().give(Path(directory))
        subprocess.run(
            f"{_MAKE_CERTIFICATE} -out {directory}/crt -keyout {directory}/key".split(),
            check=True,
            capture_output=True,
            cwd="/",
            **server_account().run_as,
        )
        yield {
            "ssl": True,
            "ssl_cert_file": f"{directory}/crt",
            "ssl_key_file": f"{directory}/key",
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def replication(binaries: Binaries) -> Iterator[Stage]:
    """Commits that wait for a standby: session, walsender, walreceiver and startup process."""
    with contextlib.ExitStack() as stack:
        server = Server(stack, binaries, {"wal_keep_size": "64MB"})
        other = stack.enter_context(standby(server.cluster, {"wait_event_timing.capture": "stats"}))
        down = server.session(other.dsn)
        writer = server.session()
        writer.execute("CREATE TABLE t (i int)")
        (sender,) = server.find("walsender")
        (receiver,) = processes(down, binaries, "walreceiver")
        (startup,) = processes(down, binaries, "startup")
        server.observer.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        server.observer.execute("SELECT pg_reload_conf()")
        spare = server.session(other.dsn)
        yield Stage(
            [server.observer, down],
            [server.cluster.log_path, other.log],
            [(server.watch(writer), 0), (sender, 0), (receiver, 1), (startup, 1)],
            repeat_for(writer, 150, "INSERT INTO t SELECT generate_series(1, 50)"),
            [writer],
            [server.spare, server.watch(spare)],
        )


def repeat_for(session: Connection, times: int, statement: str) -> Callable[[float], object]:
    """Repeat as often as the length of the load says."""
    return lambda length: repeat(session, times * length, statement)()


@dataclass(frozen=True)
class Load:
    """A load by name, and the servers it is for."""

    name: str
    stage: Callable[[Binaries], contextlib.AbstractContextManager[Stage]]
    runs_on: Callable[[Binaries], bool] = lambda binaries: True


LOADS = (
    Load("buffer misses, cached by the kernel", buffer_misses),
    Load("buffer misses, from disk", disk_reads),
    Load("commits with fsync", commits),
    Load("row-lock queue", row_locks),
    Load("LWLock contention", lwlocks),
    Load("parallel scan", parallel_scan),
    Load("background processes", background),
    Load("autovacuum worker", autovacuum),
    Load("I/O workers", io_workers, lambda binaries: binaries.major >= 18),
    Load("idle clients", idle_clients),
    Load("TLS", tls, lambda binaries: binaries.major == 15),
    Load("streaming replication", replication),
)
