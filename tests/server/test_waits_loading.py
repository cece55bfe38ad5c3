"""How the module gets into a server, and how it says that it cannot."""

import shutil
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.process_limits import limit_memory
from tests.servers import CAPTURING, SESSIONS_LOAD_MODULES, serving
from tests.sessions import eventually, executed_s, one, rows, session, set_search_path
from tests.waits import sync_reads, waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def test_hooks_off_replaces_nothing(binaries: Binaries) -> None:
    settings = {"wait_event_timing.hooks": False}
    with serving(binaries, settings) as cluster, session(cluster) as connection:
        connection.execute("SELECT pg_sleep(0.01)")
        assert rows(
            connection,
            "SELECT hooks, slots_installed, slots_intact FROM wait_event_timing_info()",
        ) == [(False, 0, 0)]
        assert rows(connection, "SELECT * FROM pg_stat_wait_event_timing_system") == []


@pytest.mark.debian
def test_load_into_a_session_of_15_warns(debian15: Binaries) -> None:
    module = loadable(debian15, "wait_event_timing")
    with Cluster(debian15) as cluster, session(cluster) as connection:
        notices: list[tuple[str | None, str | None, str | None]] = []
        connection.add_notice_handler(
            lambda d: notices.append((d.severity, d.message_primary, d.message_hint))
        )
        connection.execute(f"LOAD '{module.library}'".encode())
        ((severity, message, hint),) = notices
        assert severity == "WARNING"
        assert message == "wait_event_timing is not usable in this session"
        assert "shared_preload_libraries" in str(hint)
        connection.execute(module.create_sql.encode())
        set_search_path(connection)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="not loaded"):
            connection.execute("SELECT * FROM pg_stat_wait_event_timing")
        connection.execute("SELECT pg_sleep(0.01)")
        options = f"-c session_preload_libraries={module.library}"
        with session(cluster, options=options) as preloading:  # it lets users in
            assert one(preloading, "SELECT 1") == 1


@SESSIONS_LOAD_MODULES
def test_in_use_in_new_sessions_without_a_restart(wheel: Binaries) -> None:
    module = loadable(wheel, "wait_event_timing")
    with Cluster(wheel) as cluster:
        cluster.configure(
            {"session_preload_libraries": module.library, "wait_event_timing.capture": "stats"}
        )
        cluster.reload()
        with session(cluster) as watched, session(cluster) as observer:
            observer.execute(module.create_sql.encode())
            took_s = sum(executed_s(watched, "SELECT pg_sleep(0.05)") for _ in range(3))
            count, _, total, _ = waits(observer, "PgSleep", watched.info.backend_pid)
            assert count == 3
            assert 150 <= total <= 1000 * took_s + 10
            assert one(observer, "SELECT session_loaded FROM wait_event_timing_info()")
            assert {
                k
                for (k,) in rows(observer, "SELECT backend_type FROM wait_event_timing_sessions()")
            } == {"client backend"}
            pid = watched.info.backend_pid
            watched.close()
            eventually(
                lambda: not rows(observer, "SELECT FROM pg_stat_activity WHERE pid = %s", pid)
            )
            assert (
                one(
                    observer,
                    "SELECT sum(waits)::int FROM pg_stat_wait_event_timing_system "
                    "WHERE wait_event = 'PgSleep'",
                )
                == 3
            )
        assert cluster.running
        assert "terminated by signal" not in cluster.log_path.read_text()


@SESSIONS_LOAD_MODULES
def test_parallel_workers_of_a_session_loaded_module(wheel: Binaries) -> None:
    module = loadable(wheel, "wait_event_timing")
    settings = {
        "session_preload_libraries": module.library,
        "wait_event_timing.capture": "stats",
        "shared_buffers": "1MB",
        **sync_reads(wheel),
    }
    with Cluster(wheel, settings) as cluster, session(cluster) as connection:
        connection.execute(module.create_sql.encode())
        connection.execute("CREATE TABLE t AS SELECT generate_series(1, 200000) AS i")
        connection.execute(
            "SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;"
            "SET parallel_tuple_cost = 0; SET parallel_leader_participation = off"
        )
        connection.execute("SELECT count(*) FROM t")
        query = (
            "SELECT coalesce(sum(waits), 0)::int FROM pg_stat_wait_event_timing_system "
            "WHERE backend_type <> 'client backend' AND wait_event = 'DataFileRead'"
        )
        eventually(lambda: one(connection, query) > 10)


@SESSIONS_LOAD_MODULES
def test_setting_of_a_size_parts_no_sessions(wheel: Binaries) -> None:
    """All sessions of a server that load the module share one segment."""
    module = loadable(wheel, "wait_event_timing")
    settings = {"session_preload_libraries": module.library}
    with Cluster(wheel, settings) as cluster, session(cluster) as first:
        first.execute(module.create_sql.encode())
        first.execute("ALTER SYSTEM SET wait_event_timing.statements_max = 65536")
        cluster.reload()
        with session(cluster) as second:
            both = [(first.info.backend_pid,), (second.info.backend_pid,)]
            query = "SELECT pid FROM wait_event_timing_sessions() ORDER BY pid"
            # whoever asked for the reload may be about to end
            eventually(lambda: rows(second, query) == sorted(both))


@SESSIONS_LOAD_MODULES
def test_session_that_gets_no_memory_still_gets_in(wheel: Binaries) -> None:
    module = loadable(wheel, "wait_event_timing")
    settings = {
        "session_preload_libraries": module.library,
        "wait_event_timing.capture": "stats",
        "max_connections": 2000,
    }
    with Cluster(wheel, settings) as cluster, session(cluster) as connection:
        connection.execute("SET debug_parallel_query = on")
        assert one(connection, "SELECT count(*) > 0 FROM pg_class")
        # its workers do not say it again
        assert cluster.log_path.read_text().count("WARNING") == 1
        assert "it needs" in cluster.log_path.read_text()


@SESSIONS_LOAD_MODULES
def test_load_that_fails_in_parallel_mode_can_be_repeated(wheel: Binaries) -> None:
    """A lack of memory is an error there; afterwards the session can load the module."""
    module = loadable(wheel, "wait_event_timing")
    settings = {"max_parallel_workers": 0, "debug_parallel_query": "on", "max_connections": 300}
    with Cluster(wheel, settings) as cluster, session(cluster) as maker:
        maker.execute(module.create_sql.encode())
        maker.execute(f"LOAD '{module.library}'".encode())  # the segment is there
        maker.execute(
            "CREATE FUNCTION loads() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS $$BEGIN "
            "RETURN (SELECT count(*) FROM wait_event_timing_buckets()); END$$"
        )
        with session(cluster) as late:
            notices: list[str | None] = []
            late.add_notice_handler(lambda d: notices.append(d.message_primary))
            pid = late.info.backend_pid
            limit_memory(cluster, pid, 8 << 20)
            with pytest.raises(psycopg.Error, match="could not map shared memory segment"):
                late.execute("SELECT loads()")
            limit_memory(cluster, pid, None)
            assert one(late, "SELECT loads()") == 32
            assert notices == []


def test_loaded_twice(wheel: Binaries, open_directory: Path) -> None:
    """The same file by another name is refused in that session, and harms nothing."""
    copy = open_directory / "again.so"
    shutil.copy(wheel.pkglibdir / "wait_event_timing.so", copy)
    with serving(wheel) as cluster, session(cluster) as connection:
        notices: list[str | None] = []
        connection.add_notice_handler(lambda d: notices.append(d.message_primary))
        connection.execute(f"LOAD '{copy}'".encode())
        assert "another copy of wait_event_timing is loaded already" in str(notices)
        connection.execute("SELECT pg_sleep(0.01)")
        assert waits(connection, "PgSleep", connection.info.backend_pid)[0] == 1


@pytest.mark.parametrize("first", ["pgtare", "wait_event_timing"])
def test_beside_another_module_that_takes_over_calls(binaries: Binaries, first: str) -> None:
    other = "wait_event_timing" if first == "pgtare" else "pgtare"
    libraries = [loadable(binaries, first), loadable(binaries, other)]
    with (
        Cluster(
            binaries, dict(CAPTURING), preload=[module.library for module in libraries]
        ) as cluster,
        session(cluster) as connection,
    ):
        for module in libraries:
            connection.execute(module.create_sql.encode())
        connection.execute("SELECT pg_sleep(0.01)")
        assert waits(connection, "PgSleep", connection.info.backend_pid)[0] == 1
        assert one(
            connection, "SELECT slots_intact = slots_installed FROM wait_event_timing_info()"
        )
