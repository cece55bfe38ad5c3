"""Wait timing on servers built from source: io_uring, and other ways to link."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pgtare.errors import MeasurementError
from pgtare.postgres.binaries import Binaries
from tests.servers import BUILT, BUILT_NO_PLT, serving
from tests.sessions import Connection, one, rows, session
from tests.source import Link, Recipe, build, relink
from tests.waits import CLASS_SETTINGS, see_every_class, waits

# a build takes minutes, once
pytestmark = [pytest.mark.source, pytest.mark.server, pytest.mark.timeout(1800)]


# Also how the executable reaches epoll_wait, and whether all is bound when it starts
VARIANTS = {
    "lazy, partial RELRO": (BUILT, Link(), "JUMP_SLOT", False),
    "bound at once, full RELRO": (BUILT, Link(ldflags="-Wl,-z,relro,-z,now"), "JUMP_SLOT", True),
    "lazy, no RELRO": (BUILT, Link(ldflags="-Wl,-z,norelro"), "JUMP_SLOT", False),
    "lazy, no PIE": (BUILT, Link(ldflags="-no-pie"), "JUMP_SLOT", False),
    "no PLT": (BUILT_NO_PLT, Link(), "GLOB_DAT", False),
    "no PLT, full RELRO": (BUILT_NO_PLT, Link(ldflags="-Wl,-z,relro,-z,now"), "GLOB_DAT", True),
    "stubs for CET": (BUILT, Link(ldflags="-Wl,-z,ibtplt"), "JUMP_SLOT", False),
    "lld, full RELRO": (
        BUILT,
        Link(ldflags="-fuse-ld=lld -Wl,-z,relro,-z,now"),
        "JUMP_SLOT",
        True,
    ),
    "lld, lazy": (BUILT, Link(ldflags="-fuse-ld=lld"), "JUMP_SLOT", False),
    "gold, full RELRO": (
        BUILT,
        Link(ldflags="-fuse-ld=gold -Wl,-z,relro,-z,now"),
        "JUMP_SLOT",
        True,
    ),
    "another order of objects": (BUILT, Link(seed=1), "JUMP_SLOT", False),
}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Binaries:
    """A server that is what its name says."""
    recipe, link, relocation, bound = VARIANTS[request.param]
    if "lld" in link.ldflags and shutil.which("ld.lld") is None:
        pytest.skip("lld is not installed")
    found = build(recipe) if link == Link() else relink(recipe, link)
    assert relocation in readelf(found, "-r", "epoll_wait@")
    assert ("NOW" in readelf(found, "-d", "FLAGS")) == bound
    assert ("GNU_RELRO" in readelf(found, "-l", "RELRO")) == ("no RELRO" not in request.param)
    assert ("EXEC" in readelf(found, "-h", "Type:")) == ("no PIE" in request.param)
    return found


def readelf(binaries: Binaries, option: str, word: str) -> str:
    """What readelf tells of the executable, in lines with a word."""
    done = subprocess.run(
        ["readelf", "-W", option, binaries.postgres], capture_output=True, text=True, check=True
    )
    return "\n".join(line for line in done.stdout.splitlines() if word in line)


def test_every_class_of_waits(variant: Binaries, open_directory: Path) -> None:
    with serving(variant, dict(CLASS_SETTINGS), preload=["pg_prewarm"]) as cluster:
        see_every_class(cluster, open_directory)
        with session(cluster) as connection:
            pid = connection.info.backend_pid
            for _ in range(10):  # lazy binding overwrites what was there before the first call
                connection.execute("SELECT pg_sleep(0.001)")
            assert waits(connection, "PgSleep", pid)[0] == 10
            query = "SELECT slots_installed, slots_intact FROM wait_event_timing_info()"
            ((installed, intact),) = rows(connection, query)
            assert intact == installed > 20
            calls = "SELECT name FROM wait_event_timing_calls() WHERE slots > 0"
            called = {name for (name,) in rows(connection, calls)}
            assert {"epoll_wait", "sem_wait", "preadv", "fdatasync"} <= called
            assert {"io_uring_submit", "io_uring_wait_cqes"} <= called
        assert "terminated by signal" not in cluster.log_path.read_text()


def read_a_table(connection: Connection) -> int:
    """Scans a table much larger than shared_buffers; returns its blocks."""
    connection.execute(
        "CREATE TABLE big AS SELECT i, repeat('x', 200) FROM generate_series(1, 100000) i"
    )
    connection.execute("VACUUM ANALYZE big")
    connection.execute("CHECKPOINT")
    connection.execute("SET max_parallel_workers_per_gather = 0")
    for _ in range(3):
        connection.execute("SELECT count(*) FROM big")
    return int(one(connection, "SELECT pg_relation_size('big') / 8192"))


@pytest.mark.parametrize("recipe", [BUILT, BUILT_NO_PLT], ids=["PLT", "no PLT"])
def test_asynchronous_io_by_io_uring(recipe: Recipe) -> None:
    """Submitting and waiting are timed in the process that wants the pages; no worker reads."""
    # what the kernel has in its cache is read while it is submitted, with nothing left to wait for
    settings = {"io_method": "io_uring", "debug_io_direct": "data"}
    try:
        with serving(build(recipe), settings) as cluster, session(cluster) as connection:
            blocks = read_a_table(connection)
            pid = connection.info.backend_pid
            executed, _, total, _ = waits(connection, "AioIoUringExecution", pid)
            submitted = waits(connection, "AioIoUringSubmit", pid)[0]
            assert blocks > 2000
            assert submitted > 100
            assert executed > 10
            assert total > 0
            kinds = "SELECT DISTINCT backend_type FROM pg_stat_wait_event_timing_system"
            assert "io worker" not in {kind for (kind,) in rows(connection, kinds)}
            info = "SELECT overflows, negative_clock, missed FROM wait_event_timing_info()"
            assert rows(connection, info) == [(0, 0, 0)]
    except MeasurementError as ex:
        if "io_uring" in str(ex):
            pytest.skip(f"this machine does not allow io_uring: {ex}")
        raise
