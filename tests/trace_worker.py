"""Servers whose background worker writes traces, and what it has written."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.file.reader import Trace, load
from pgtare.observing.trace.file.records import CallKind
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import Loadable, loadable
from pgtare.postgres.os_account import server_account
from pgtare.postgres.settings import Value
from tests.places import ON_DISK
from tests.servers import tracing
from tests.sessions import Connection, eventually, session

SETTINGS = {
    "sql_trace.worker_reserve": 0,
    "wait_event_timing.capture": "stats",
    "sql_trace.cpu_interval": 0,
}


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A directory in which the server's account can make others, and nobody else."""
    path = Path(tempfile.mkdtemp(prefix="pgtare-writer-", dir=ON_DISK))
    server_account().give(path)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def server_that_writes(
    binaries: Binaries, load: Callable[[Binaries, str], Loadable] = loadable
) -> Iterator[tuple[Cluster, Path]]:
    """A server with a worker, and where that writes."""
    with (
        place() as path,
        tracing(
            binaries,
            SETTINGS | {"sql_trace.worker_directory": str(path / "traces")},
            load=load,
        ) as cluster,
    ):
        yield cluster, path / "traces"


#: A server that keeps all that triggers ask for.
KEEPING: dict[str, Value] = {"sql_trace.keep_interval": 0, "sql_trace.keep_most": 32}


@contextlib.contextmanager
def server_that_keeps(binaries: Binaries, statements: str) -> Iterator[tuple[Cluster, Path]]:
    """A server that writes what it keeps, on which these were run, and where it writes."""
    with place() as path:
        settings = KEEPING | {"sql_trace.keep_directory": str(path / "kept")}
        with tracing(binaries, settings) as cluster:
            with cluster.connect() as admin:
                admin.execute(statements.encode())
            yield cluster, path / "kept"


@contextlib.contextmanager
def traced(
    cluster: Cluster, level: int = 12, ring: str = "256kB", **settings: object
) -> Iterator[Connection]:
    """A session of the application shop with a ring of that size, and triggers."""
    given = {"level": level, "ring_size": ring, **settings}
    options = " ".join(f"-c sql_trace.{name}={value}" for name, value in given.items())
    with session(cluster, application_name="shop", options=options) as client:
        yield client


def forget_all(connection: Connection) -> None:
    """Let go of all traces that are kept."""
    connection.execute("SELECT count(sql_trace_kept_forget(id)) FROM sql_trace_kept()")


def configure(cluster: Cluster, **settings: Value) -> None:
    """Settings of the worker, in force."""
    cluster.configure({f"sql_trace.{name}": value for name, value in settings.items()})
    cluster.reload()


def latest(directory: Path) -> Path:
    """The recording that was begun last, once there is one with something in it."""

    def newest() -> Path | None:
        found = sorted(directory.glob("trace-*"), key=lambda path: path.stat().st_mtime_ns)
        files = found[-1].glob("*.pgtrace") if found else []
        return found[-1] if any(file.stat().st_size > 0 for file in files) else None

    return Path(eventually(newest))


def another(directory: Path, before: Path, since_ns: int | None = None) -> Path:
    """The recording that follows that one.

    since_ns: when that one was deleted. Another of the same second has the name that it had.
    """

    def follows() -> Path | None:
        found = latest(directory)
        if since_ns is None:
            return found if found != before else None
        return found if found.stat().st_mtime_ns > since_ns else None

    return Path(eventually(follows))


def worker_of(recording: Path) -> int:
    """The process that writes, or wrote, a recording."""
    return int(recording.name.split("-")[2].partition(".")[0])


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def find_statement(recording: Path, text: str) -> Trace | None:
    """The recording, if an execution of that statement is in it."""
    trace = load(recording)
    book = ledgers.ledger(trace)
    for process, call in zip(book.call_process, book.calls, strict=True):
        known_as = book.processes[process].stream.texts.get(int(call["text"]))
        if call["kind"] == CallKind.EXECUTE and known_as and known_as.text == text:
            return trace
    return None


def with_statement(recording: Path, text: str) -> Trace:
    """The recording, once an execution of that statement is in it."""
    return eventually(lambda: find_statement(recording, text))


def work(client: Connection, rounds: int) -> None:
    """Some 20 kB of records a round."""
    client.execute(
        f"DO $$BEGIN FOR i IN 1..{rounds * 40} LOOP EXECUTE 'SELECT '"
        " || i || repeat(' ', 100); END LOOP; END$$".encode()
    )
