"""Beside a module that takes over the same calls, before us, after us, and out of turn."""

from pathlib import Path

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import BuiltModule, build_cached, sql_without_extension
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.servers import CAPTURING, SESSIONS_LOAD_MODULES
from tests.sessions import Connection, one, rows, session, set_search_path
from tests.waits import waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MODULES = Path(__file__).parent / "modules"


def grabber(binaries: Binaries) -> BuiltModule:
    """A neighbour with code of its own: see its source."""
    return build_cached(binaries, "grabber", MODULES)


def slots(connection: Connection) -> tuple[int, int]:
    """Installed, and still holding our functions in this process."""
    query = "SELECT slots_installed, slots_intact FROM wait_event_timing_info()"
    ((installed, intact),) = rows(connection, query)
    return installed, intact


@pytest.mark.parametrize("ours_first", [True, False], ids=["before", "after"])
def test_neighbour_preloaded_before_or_after(binaries: Binaries, ours_first: bool) -> None:
    """Both see every call, whoever came first; what is no longer in place is reported."""
    ours, theirs = loadable(binaries, "wait_event_timing"), grabber(binaries)
    libraries = [ours.library, theirs.library]
    if not ours_first:
        libraries.reverse()
    with Cluster(binaries, dict(CAPTURING), preload=libraries) as cluster:
        with session(cluster) as connection:
            connection.execute(ours.create_sql.encode())
            connection.execute(sql_without_extension(theirs, "grabber").encode())
            connection.execute("SET search_path = public, wait_event_timing, grabber")
            pid = connection.info.backend_pid
            called = one(connection, "SELECT grabber_calls()")
            for _ in range(3):
                connection.execute("SELECT pg_sleep(0.02)")
            assert waits(connection, "PgSleep", pid)[0] == 3
            assert one(connection, "SELECT grabber_calls()") >= called + 3
            installed, intact = slots(connection)
            assert installed - intact == (1 if ours_first else 0)

            # it takes itself out, over our heads if we came later
            assert one(connection, "SELECT grabber_release()") == int(ours_first)
            called = one(connection, "SELECT grabber_calls()")
            connection.execute("SELECT pg_sleep(0.02)")
            assert one(connection, "SELECT grabber_calls()") == called
            if ours_first:
                assert slots(connection) == (installed, installed)
                assert waits(connection, "PgSleep", pid)[0] == 4
            else:
                assert slots(connection) == (installed, installed - 1)
                assert waits(connection, "PgSleep", pid)[0] == 3

            # and in again, on top of all
            assert one(connection, "SELECT grabber_grab()") == 1
            connection.execute("SELECT pg_sleep(0.02)")
            assert one(connection, "SELECT grabber_calls()") > called
        with session(cluster) as fresh:
            fresh.execute("SELECT pg_sleep(0.02)")
            assert waits(fresh, "PgSleep", fresh.info.backend_pid)[0] == 1
        assert "terminated by signal" not in cluster.log_path.read_text()


@SESSIONS_LOAD_MODULES
def test_neighbour_loaded_by_a_session(wheel: Binaries) -> None:
    """Both by LOAD, in one session of a server that preloads neither."""
    ours, theirs = loadable(wheel, "wait_event_timing"), grabber(wheel)
    with Cluster(wheel) as cluster, session(cluster) as connection:
        connection.execute(ours.create_sql.encode())
        connection.execute(sql_without_extension(theirs, "grabber").encode())
        both = ours.library, theirs.library
        for first, second in (both, both[::-1]):
            with session(cluster) as loading:
                for library in (first, second):
                    loading.execute(f"LOAD '{library}'".encode())
                set_search_path(loading)
                loading.execute("SET wait_event_timing.capture = stats")
                loading.execute("SELECT pg_sleep(0.02)")
                assert waits(loading, "PgSleep", loading.info.backend_pid)[0] == 1
                assert one(loading, "SELECT grabber.grabber_calls()") > 0
