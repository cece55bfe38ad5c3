"""Counts of waits, compared with those of pg_stat_io (18) for the same operations."""

from typing import Any

import pytest

from pgtare.postgres.binaries import Binaries
from tests.servers import serving
from tests.sessions import Connection, rows, session

pytestmark = [pytest.mark.usefixtures("real_disk"), pytest.mark.server, pytest.mark.timeout(180)]

SETTINGS = {
    "io_method": "sync",
    "track_io_timing": True,
    "track_wal_io_timing": True,
    "autovacuum": False,
    "effective_io_concurrency": 0,  # no prefetching, which is no read
}

# What one operation of pg_stat_io waits for. Writes of relations by a session are of its own
# evictions; the temporary relation's extensions count with the others.
SAME = {
    "DataFileRead": ("relation", "temp relation", "reads"),
    "DataFileWrite": ("relation", "temp relation", "writes"),
    "DataFileExtend": ("relation", "temp relation", "extends"),
    "DataFileFlush": ("relation", "temp relation", "writebacks"),
    "WalWrite": ("wal", "wal", "writes"),
    "WalSync": ("wal", "wal", "fsyncs"),
}
TIMED = {
    "reads": "read_time",
    "writes": "write_time",
    "extends": "extend_time",
    "fsyncs": "fsync_time",
    "writebacks": "writeback_time",
}


def by_server(connection: Connection, pid: int, event: str) -> tuple[int, float]:
    """Operations and ms of a session, of the kind that this event waits for."""
    first, second, what = SAME[event]
    # new segments of WAL are waited for as WalInitWrite
    (found,) = rows(
        connection,
        f"SELECT coalesce(sum({what}), 0)::bigint, coalesce(sum({TIMED[what]}), 0) "
        "FROM pg_stat_get_backend_io(%s) WHERE object IN (%s, %s) AND context <> 'init'",
        pid,
        first,
        second,
    )
    return int(found[0]), float(found[1])


def by_module(connection: Connection, pid: int, event: str) -> tuple[int, float]:
    found = rows(
        connection,
        "SELECT waits, total_time FROM pg_stat_wait_event_timing "
        "WHERE pid = %s AND wait_event = %s",
        pid,
        event,
    )
    return (int(found[0][0]), float(found[0][1])) if found else (0, 0.0)


def near(ms: float) -> Any:
    """What the other may have timed of the same syncs."""
    return pytest.approx(ms, rel=0.02, abs=0.1)


Figures = dict[str, tuple[tuple[int, float], tuple[int, float]]]


def grown(before: Figures, after: Figures, event: str) -> tuple[int, float, int, float]:
    """Operations and ms since then, of the server and of the module."""
    (theirs, their_ms), (ours, our_ms) = (
        (b[0] - a[0], b[1] - a[1]) for a, b in zip(before[event], after[event], strict=True)
    )
    return theirs, their_ms, ours, our_ms


@pytest.mark.since(18, "a session's reads are counted by the server")
def test_counts_agree_with_pg_stat_io(wheel: Binaries) -> None:
    """A session reads, evicts, extends and commits; both counted each operation once."""
    with (
        serving(wheel, SETTINGS) as cluster,
        session(cluster) as observer,
        session(cluster) as worker,
    ):
        pid = worker.info.backend_pid

        def figures() -> Figures:
            worker.execute("SELECT pg_stat_force_next_flush()")
            worker.execute("SELECT 1")
            return {e: (by_server(observer, pid, e), by_module(observer, pid, e)) for e in SAME}

        worker.execute("CREATE TABLE big (i int, filler text)")
        for _ in range(4):  # a session may be without a processor between the two clocks
            before = figures()
            for n in range(12):
                worker.execute(
                    "INSERT INTO big SELECT g, repeat('x', 200) FROM generate_series(1, 300) g"
                )
                worker.execute("UPDATE big SET i = i + 1 WHERE i %% 10 = %s", (n % 10,))
            worker.execute("SELECT count(filler) FROM big")
            after = figures()
            _, their_ms, _, our_ms = grown(before, after, "WalSync")
            if our_ms == near(their_ms):
                break
    for event in SAME:
        theirs, their_ms, ours, our_ms = grown(before, after, event)
        print(f"{event}: pg_stat_io {theirs}, {their_ms:.3f} ms; waits {ours}, {our_ms:.3f} ms")
        assert ours == theirs
        if event != "DataFileFlush":
            assert ours > 0
        # the server's clock goes on through its own layers of files, which tells in short calls
        assert our_ms <= their_ms + 0.001
        if event == "WalSync":
            assert our_ms == near(their_ms)
