"""Servers that keep traces, and write them to files."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.os_account import server_account
from pgtare.postgres.settings import Value
from tests.places import ON_DISK
from tests.servers import tracing
from tests.sessions import Connection, session


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A directory in which the server's account can make others, and nobody else."""
    path = Path(tempfile.mkdtemp(prefix="pgtare-keeper-", dir=ON_DISK))
    server_account().give(path)
    try:
        yield path
    finally:
        shutil.rmtree(path)


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
    """Settings of sql_trace, in force."""
    cluster.configure({f"sql_trace.{name}": value for name, value in settings.items()})
    cluster.reload()
