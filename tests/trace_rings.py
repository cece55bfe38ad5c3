"""Rings of sessions as they lie in shared memory, and traces of sessions that come and go."""

import contextlib
import struct
from dataclasses import dataclass
from pathlib import Path

from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, eventually, one, rows, session

#: Traces kept of sessions that have ended.
KEPT = 16
#: In the segment of a ring: version of the format and process, first record; size of the smallest.
PROCESS, DATA, SMALLEST = 304, 1856, 64 * 1024


@dataclass(frozen=True)
class Unread:
    """What the server counts of traces that made way unread."""

    sessions: int
    records: int
    bytes: int


def unread(onlooker: Connection) -> Unread:
    (found,) = rows(
        onlooker, "SELECT unread_sessions, unread_records, unread_bytes FROM pg_stat_sql_trace_info"
    )
    return Unread(*found)


def since(onlooker: Connection, before: Unread) -> Unread:
    now = unread(onlooker)
    return Unread(
        now.sessions - before.sessions, now.records - before.records, now.bytes - before.bytes
    )


def end(onlooker: Connection, client: Connection) -> int:
    """Close a session; its number when its trace is listed among those that have ended."""
    pid = client.info.backend_pid
    client.close()
    ended = "SELECT count(*) FROM pg_stat_sql_trace WHERE pid = %s AND ended IS NOT NULL"
    eventually(lambda: one(onlooker, ended, pid))
    return pid


def short(tracer: Cluster, onlooker: Connection, **parameters: str) -> int:
    """A session that is traced, ends, and that nobody reads."""
    with session(tracer, **parameters) as client:
        client.execute("SET sql_trace.level = 1")
        client.execute("SELECT 1")
        return end(onlooker, client)


def size(onlooker: Connection, pid: int) -> tuple[int, int]:
    """Records and bytes of a trace."""
    (found,) = rows(onlooker, "SELECT records, bytes FROM pg_stat_sql_trace WHERE pid = %s", pid)
    return found[0], found[1]


def ring_of(pid: int) -> Path:
    """The memory of a session's ring: whose description names the process."""
    for path in Path("/dev/shm").glob("PostgreSQL.*"):  # noqa: S108
        with contextlib.suppress(OSError), path.open("rb") as file:
            if file.read(DATA)[PROCESS:].startswith(struct.pack("<Ii", 2, pid)):
                return path
    raise AssertionError(f"no ring of process {pid}")
