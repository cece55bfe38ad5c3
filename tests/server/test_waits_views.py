"""The views and functions: who may see and do what, and what a reset does."""

import math
import threading
from collections.abc import Iterator

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached, sql_without_extension
from pgtare.postgres.cluster import Cluster
from tests.servers import serving
from tests.sessions import Connection, eventually, one, role, rows, session
from tests.waits import waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


#: Whoever takes differences of counters has to know: twice that of all resets.
RESETS = "SELECT resets FROM pg_stat_wait_event_timing_info"


@pytest.fixture
def stranger(observer: Connection) -> Iterator[str]:
    """A role without any privilege."""
    with role(observer, "stranger"):
        yield "stranger"


def test_stranger_sees_only_its_own_session_and_sums(timed: Cluster, stranger: str) -> None:
    with session(timed, user=stranger) as connection:
        connection.execute("SELECT pg_sleep(0.01)")
        pid = connection.info.backend_pid
        for view in (
            "pg_stat_wait_event_timing",
            "pg_stat_wait_event_timing_current",
            "pg_stat_wait_event_timing_sessions",
        ):
            seen = {row[0] for row in rows(connection, f"SELECT pid FROM {view}")}
            assert seen <= {pid}
        assert waits(connection, "PgSleep", pid)[0] == 1
        users = rows(
            connection,
            "SELECT DISTINCT userid::regrole::text FROM pg_stat_wait_event_timing_statements",
        )
        assert users == [("stranger",)]
        assert one(connection, "SELECT count(*) FROM pg_stat_wait_event_timing_system") > 5
        assert one(connection, "SELECT count(*) FROM pg_stat_wait_event_timing_info") == 1


def test_pg_read_all_stats_sees_all(timed: Cluster, stranger: str, observer: Connection) -> None:
    observer.execute("GRANT pg_read_all_stats TO stranger")
    with session(timed, user=stranger) as connection:
        seen = {row[0] for row in rows(connection, "SELECT pid FROM pg_stat_wait_event_timing")}
    assert observer.info.backend_pid in seen
    assert len(seen) > 2  # background processes, too


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT wait_event_timing_reset()",
        "SELECT wait_event_timing_set(1, 'off')",
        "SET wait_event_timing.capture = off",
        "SET wait_event_timing.clock = monotonic",
    ],
)
def test_stranger_may_not_change_anything(timed: Cluster, stranger: str, statement: str) -> None:
    with (
        session(timed, user=stranger) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_reset_of_one_process_leaves_others(watched: Connection, observer: Connection) -> None:
    watched.execute("SELECT pg_sleep(0.01)")
    observer.execute("SELECT pg_sleep(0.01)")
    mine, theirs = observer.info.backend_pid, watched.info.backend_pid
    before = one(observer, RESETS)
    assert one(observer, "SELECT wait_event_timing_reset(%s)", theirs)
    assert one(observer, RESETS) == before + 2
    assert waits(observer, "PgSleep", theirs)[0] == 0
    assert waits(observer, "PgSleep", mine)[0] == 1
    watched.execute("SELECT pg_sleep(0.01)")
    assert waits(observer, "PgSleep", theirs)[0] == 1


def test_reset_of_all(timed: Cluster, watched: Connection, observer: Connection) -> None:
    watched.execute("SELECT pg_sleep(0.01)")
    with session(timed) as ended:
        ended.execute("SELECT pg_sleep(0.01)")
    before = one(observer, "SELECT stats_reset FROM wait_event_timing_info()")
    resets = one(observer, RESETS)
    assert one(observer, "SELECT wait_event_timing_reset()")
    assert one(observer, RESETS) == resets + 2
    slept = (
        "SELECT coalesce(sum(waits), 0)::int FROM pg_stat_wait_event_timing_{} "
        "WHERE wait_event = 'PgSleep'"
    )
    assert one(observer, slept.format("system")) == 0
    assert one(observer, slept.format("statements")) == 0
    assert one(observer, "SELECT stats_reset FROM wait_event_timing_info()") > before


def test_level_can_be_given_back(watched: Connection, observer: Connection) -> None:
    """To what the session has set, or else the configuration; reloads count again."""
    pid = watched.info.backend_pid
    capture = "SELECT capture FROM wait_event_timing_sessions() WHERE pid = %s"
    give_back = "SELECT wait_event_timing_set(%s, NULL)"
    observer.execute("SELECT wait_event_timing_set(%s, 'trace')", (pid,))
    assert one(observer, capture, pid) == "trace"
    assert one(observer, give_back, pid) is True
    assert one(observer, capture, pid) == "stats"
    watched.execute("SET wait_event_timing.capture = off")
    observer.execute("SELECT wait_event_timing_set(%s, 'trace')", (pid,))
    observer.execute(give_back.encode(), (pid,))
    assert one(observer, capture, pid) == "off"
    assert one(observer, "SELECT wait_event_timing_set(NULL, 'off')") is None


def test_trace_set_by_another_cuts_no_wait_in_two(
    watched: Connection, observer: Connection
) -> None:
    pid = watched.info.backend_pid
    # longer than an onlooker takes on a busy machine
    sleeper = threading.Thread(target=watched.execute, args=("SELECT pg_sleep(3)",))
    sleeper.start()
    current = "SELECT FROM pg_stat_wait_event_timing_current WHERE pid = %s AND NOT idle"
    eventually(lambda: rows(observer, current, pid))
    observer.execute("SELECT wait_event_timing_set(%s, 'trace')", (pid,))
    sleeper.join()
    assert waits(observer, "PgSleep", pid)[:2] == (1, 1)


def test_unknown_process_is_a_warning_and_unknown_level_an_error(observer: Connection) -> None:
    notices: list[str | None] = []
    resets = one(observer, RESETS)
    observer.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    assert one(observer, "SELECT wait_event_timing_reset(1)") is False
    assert one(observer, "SELECT wait_event_timing_set(1, 'off')") is False
    assert notices == ["PID 1 is not a process that wait_event_timing watches"] * 2
    assert one(observer, RESETS) == resets
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="invalid capture level"):
        observer.execute("SELECT wait_event_timing_set(pg_backend_pid(), 'everything')")


def test_idle_classes_are_marked_and_columns_add_up(observer: Connection) -> None:
    query = "SELECT DISTINCT wait_event_type, idle FROM pg_stat_wait_event_timing_system"
    eventually(lambda: {("Activity", True), ("IO", False)} <= set(rows(observer, query)))
    found = dict(rows(observer, query))
    assert {name for name, idle in found.items() if idle} <= {"Activity", "Client"}
    for waits_, calls, total, mean, longest, histogram in rows(
        observer,
        "SELECT waits, calls, total_time, mean_time, max_time, histogram "
        "FROM pg_stat_wait_event_timing_system",
    ):
        assert sum(histogram) == waits_ <= calls
        assert longest <= total
        assert math.isclose(mean, total / waits_) if waits_ else mean is None
    # as promised
    assert one(observer, "SELECT bytes_per_process FROM wait_event_timing_info()") <= 50 * 1024


def test_configuration_file_switches_all_processes_off(binaries: Binaries) -> None:
    with serving(binaries) as cluster, session(cluster) as connection:
        cluster.configure({"wait_event_timing.capture": "off"})
        cluster.reload()
        connection.execute("SELECT 1")
        capture = "SELECT DISTINCT capture FROM wait_event_timing_sessions()"
        eventually(lambda: rows(connection, capture) == [("off",)])
        counted = "SELECT sum(waits) FROM pg_stat_wait_event_timing_system"
        before = one(connection, counted)
        connection.execute("CHECKPOINT; SELECT pg_sleep(0.5)")
        assert one(connection, counted) == before


MALLORYS = """
CREATE ROLE mallory;
CREATE SCHEMA trap AUTHORIZATION mallory;
CREATE TABLE public.trapped (who name);
GRANT INSERT ON public.trapped TO mallory;
SET ROLE mallory;
CREATE FUNCTION trap.sprung(double precision, bigint) RETURNS double precision
    LANGUAGE sql AS 'INSERT INTO public.trapped VALUES (current_user); SELECT 1.0::float8';
CREATE FUNCTION trap.sprung(text, text) RETURNS boolean
    LANGUAGE sql AS 'INSERT INTO public.trapped VALUES (current_user); SELECT true';
CREATE FUNCTION trap.pg_blocking_pids(integer) RETURNS integer[]
    LANGUAGE sql AS 'INSERT INTO public.trapped VALUES (current_user); SELECT ARRAY[1]';
CREATE OPERATOR trap./ (leftarg = double precision, rightarg = bigint, function = trap.sprung);
CREATE OPERATOR trap.= (leftarg = text, rightarg = text, function = trap.sprung);
RESET ROLE
"""


def test_views_made_in_the_schema_of_another_call_nothing_of_its_owner(timed: Cluster) -> None:
    module = build_cached(timed.binaries, "wait_event_timing")
    wheel = timed.binaries.origin == "wheel"
    with session(timed) as admin:
        admin.execute("CREATE DATABASE hostile")
    try:
        with session(timed, dbname="hostile") as owner:
            owner.execute(MALLORYS.encode())
            if wheel:
                owner.execute("CREATE EXTENSION wait_event_timing SCHEMA trap")
            else:
                made = sql_without_extension(module, "trap")
                owner.execute(made.replace("CREATE SCHEMA trap;", "").encode())
            owner.execute("SELECT pg_sleep(0.01)")
            names = rows(
                owner, "SELECT relname FROM pg_class WHERE relkind = 'v' AND relname ~ '_timing'"
            )
            assert len(names) == 7
            for (name,) in names:
                owner.execute(f"SELECT * FROM trap.{name}".encode())
            assert rows(owner, "SELECT who FROM public.trapped") == []
            owner.execute("CREATE SCHEMA taken AUTHORIZATION mallory")
            with pytest.raises(psycopg.errors.DuplicateSchema):
                owner.execute(sql_without_extension(module, "taken").encode())
            owner.execute("ROLLBACK")
            owner.execute("DROP SCHEMA taken; DROP OWNED BY mallory CASCADE")
    finally:
        with session(timed) as admin:
            admin.execute("DROP DATABASE hostile WITH (FORCE)")
            admin.execute("DROP ROLE IF EXISTS mallory")
