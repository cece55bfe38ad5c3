"""Kept traces that cannot be written, or not whole: all others are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.module_sources import write_waiter
from tests.servers import SESSIONS_LOAD_MODULES
from tests.sessions import Connection, eventually, one, rows, session
from tests.small_shared_memory import Volume, small_shm
from tests.trace_keeper import configure, forget_all, server_that_keeps, traced
from tests.trace_rings import DATA, ring_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Nobody has named it: an event of an extension.
UNNAMED = 0x07000000 + 77


@pytest.fixture(scope="module")
def filing(
    each_server: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Path]]:
    """A server that writes what it keeps, and where."""
    source = write_waiter(tmp_path_factory.mktemp("waiter"))
    library = build_cached(each_server, "waiter", source).library
    made = f"CREATE FUNCTION wait_in_numbers(int, int) RETURNS void LANGUAGE c AS '{library}'"
    with server_that_keeps(each_server, made) as found:
        yield found


@pytest.fixture
def admin(filing: tuple[Cluster, Path]) -> Iterator[Connection]:
    with session(filing[0]) as connection:
        forget_all(connection)
        yield connection


def provoke(client: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("SELECT 1/0")


def files(admin: Connection, client: Connection) -> list[Any]:
    """Of each trace that is kept of a session; None: it is in memory."""
    query = "SELECT file FROM sql_trace_kept() WHERE pid = %s ORDER BY id"
    return [file for (file,) in rows(admin, query, client.info.backend_pid)]


def test_wait_without_a_name(filing: tuple[Cluster, Path], admin: Connection) -> None:
    """PostgreSQL 17 and later raise an error for its number: the worker writes on for all that."""
    cluster, directory = filing
    settings = {"keep_sqlstates": "22012"}
    with traced(cluster, **settings) as odd, traced(cluster, **settings) as other:
        odd.execute("SELECT wait_in_numbers(%s, 1)", (UNNAMED,))
        for client in (odd, other):
            provoke(client)
            (file,) = eventually(lambda c=client: list(filter(None, files(admin, c))))  # type: ignore[misc]
            trace = load(directory / file)
            assert not trace.damages
            if client is odd:
                name = "???" if cluster.binaries.major >= 17 else "Extension"
                assert f"Extension/{name}" in {trace.label(event) for event in trace.events}


def test_trace_that_is_too_large_for_the_directory(
    filing: tuple[Cluster, Path], admin: Connection
) -> None:
    """It stays in memory, and holds up nothing else."""
    cluster, _ = filing
    log = cluster.log_path.read_text
    before = len(log())
    configure(cluster, keep_files_size="64kB")
    try:
        with (
            traced(cluster, ring="4MB", keep_sqlstates="22012") as large,
            traced(cluster, keep_sqlstates="22012") as small,
        ):
            small.execute("SELECT 1")
            eventually(lambda: one(admin, "SHOW sql_trace.keep_files_size") == "64kB")
            large.execute(
                "DO $$BEGIN FOR i IN 1..2000 LOOP EXECUTE 'SELECT '''"
                " || repeat(md5(i::text), 9) || ''''; END LOOP; END$$"
            )
            provoke(large)
            refusal = "it would be larger than sql_trace.keep_files_size allows"
            eventually(lambda: refusal in log()[before:])
            ask = "SELECT id, missing FROM sql_trace_keep_for_finding(%s, 'lock:1')"
            ((number, missing),) = rows(admin, ask, [small.info.backend_pid])
            assert missing is None
            provoke(small)
            assert eventually(lambda: len(files(admin, small)) == 2 and all(files(admin, small)))
            assert one(admin, "SELECT file FROM sql_trace_kept() WHERE id = %s", number)
            assert files(admin, large) == [None]
            assert log()[before:].count(refusal) == 1
            configure(cluster, keep_files_size="1GB")
            eventually(lambda: all(files(admin, large)))
    finally:
        configure(cluster, keep_files_size="1GB")


def test_ring_that_was_written_over(filing: tuple[Cluster, Path], admin: Connection) -> None:
    """What can be read of it is kept, and the rest counts as lost."""
    cluster, directory = filing
    log = cluster.log_path.read_text
    before = len(log())
    with traced(cluster, level=1, ring="64kB", keep_sqlstates="22012") as client:
        for i in range(10):
            client.execute(f"SELECT {i}".encode())
        pid = client.info.backend_pid
        written = one(admin, "SELECT bytes FROM pg_stat_sql_trace WHERE pid = %s", pid)
        with ring_of(pid).open("r+b") as memory:
            memory.seek(DATA)
            memory.write(bytes(written))
        provoke(client)
        (file,) = eventually(lambda: list(filter(None, files(admin, client))))
    assert "is damaged" in log()[before:]
    trace = load(directory / file)
    assert not trace.damages
    (lost,) = (trace.losses[n] for n, ring in trace.rings.items() if ring.kind == "sql")
    assert lost >= written


def segments(volume: Volume) -> dict[str, os.stat_result]:
    """Dynamic segments."""
    names = [name for name in os.listdir(volume.directory) if name.startswith("PostgreSQL.")]
    return {name: os.stat(name, dir_fd=volume.directory) for name in names}


@SESSIONS_LOAD_MODULES
def test_session_without_memory_for_kept_traces(wheel: Binaries) -> None:
    """It loads the library, and found memory for the rest of it: functions say what is missing."""
    first, module = (loadable(wheel, name) for name in ("wait_event_timing", "sql_trace"))
    with small_shm(64) as volume, Cluster(wheel) as cluster:
        with cluster.connect() as admin:
            admin.execute(module.create_sql.encode())
        cluster.restart()
        with session(cluster) as admin:
            # what all named segments share
            admin.execute(f"LOAD '{first.library}'".encode())
            before = segments(volume)
            admin.execute(f"LOAD '{module.library}'".encode())
            made = [file for name, file in segments(volume).items() if name not in before]
            in_order = sorted(made, key=lambda file: file.st_ino)
            size, of_kept = (file.st_size for file in in_order[:2])
        cluster.restart()
        with session(cluster) as admin:
            admin.execute(f"LOAD '{first.library}'".encode())
            room = (64 << 20) - volume.used - size - of_kept // 2
            options = f"-c session_preload_libraries={module.library}"
            with volume.filled(room), session(cluster, options=options) as client:
                assert one(client, "SELECT refused FROM sql_trace_info()") == 0
                for query in (
                    "sql_trace_kept()",
                    "sql_trace_kept_info()",
                    "sql_trace_kept_file(1)",
                    "sql_trace_kept_forget(1)",
                    "sql_trace_keep_for_finding('{1}', 'lock:1')",
                ):
                    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as raised:
                        rows(client, f"SELECT {query}")
                    assert "sql_trace kept is not loaded" in str(raised.value)
            assert one(admin, "SELECT 1") == 1
