"""Runs `pgtare trace record` during a load whose waits and work have known lengths."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.observing.trace.file.reader import load
from pgtare.postgres.cluster import Cluster
from tests.commands import start_pgtare
from tests.sessions import Connection, eventually, one, session

#: For what both servers do alike: PostgreSQL 18, and 15 where there is time.
slowly_on_15 = pytest.mark.parametrize(
    "tracer",
    ["trace18", pytest.param("trace15", marks=[pytest.mark.debian, pytest.mark.slow])],
    indirect=True,
)
#: Waits and a busy loop that say how long they took, and where they note it.
KNOWN = """
CREATE TABLE IF NOT EXISTS truth (what text, s float8, at timestamptz DEFAULT clock_timestamp());
CREATE OR REPLACE FUNCTION nap(ms float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN PERFORM pg_sleep(ms / 1000); RETURN extract(epoch FROM clock_timestamp() - t); END $$;
CREATE OR REPLACE FUNCTION spin(ms float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN LOOP EXIT WHEN clock_timestamp() > t + make_interval(secs => ms / 1000); END LOOP;
RETURN extract(epoch FROM clock_timestamp() - t); END $$;
CREATE TABLE IF NOT EXISTS locked (a int);
CREATE OR REPLACE FUNCTION wait_for_lock() RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN LOCK locked IN ACCESS SHARE MODE; RETURN extract(epoch FROM clock_timestamp() - t); END $$;
TRUNCATE truth
"""


@contextlib.contextmanager
def recording(cluster: Cluster, path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The recorder, running; stopped by Ctrl-C at the end, with what was in the rings."""
    process = start_pgtare(
        "trace", "record", path, "--dsn", cluster.dsn(), "--reserve", "0", *options
    )
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (out, err)
        assert "Traceback" not in err
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def level_of(observer: Connection, pid: int) -> int:
    """The level at which a session is, or is to be, traced."""
    found = observer.execute(
        "SELECT level FROM pg_stat_sql_trace WHERE pid = %s AND ended IS NULL", (pid,)
    ).fetchall()
    return int(found[0][0]) if found else 0


def wait_until_traced(observer: Connection, client: Connection, level: int = 12) -> None:
    """Until the recorder has asked for a session and the session has heard of it."""

    def traced() -> bool:
        client.execute("SELECT 1")
        return level_of(observer, client.info.backend_pid) == level

    eventually(traced, 60)


def given_back(observer: Connection, client: Connection) -> bool:
    """Whether the recorder traces a session no more, once the session has heard of it."""
    client.execute("SELECT 1")
    return level_of(observer, client.info.backend_pid) == 0


def call_bytes(path: Path) -> bytes:
    """All bytes of calls in a recording."""
    return b"".join(data for chunks in load(path).streams.values() for _, data in chunks)


def known(cluster: Cluster, what: str) -> float:
    """How long all naps, or spins, took, in ns."""
    with session(cluster) as connection:
        return 1e9 * float(one(connection, "SELECT sum(s) FROM truth WHERE what = %s", what))


def has_streams(recording: Path) -> bool:
    """Whether a recording that begins has its file, and something of a session in it."""
    return recording.exists() and bool(load(recording).streams)
