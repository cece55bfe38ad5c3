"""What is captured in sessions to come: by name of the application, by role, by database."""

from collections.abc import Iterator

import psycopg
import pytest

from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, eventually, one, role, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

LEVEL = "SELECT capture FROM wait_event_timing_sessions() WHERE pid = %s"
PATTERNS = "etl*=trace, batch-?=off , etl-late=off"


def capture_application(cluster: Cluster, observer: Connection, value: str) -> None:
    """Change the setting of the server, and wait until it is in force."""
    observer.execute(f"ALTER SYSTEM SET wait_event_timing.capture_application = '{value}'".encode())
    observer.execute("SELECT pg_reload_conf()")
    eventually(
        lambda: (
            one(observer, "SELECT current_setting('wait_event_timing.capture_application')")
            == value
        )
    )


@pytest.fixture
def armed(timed: Cluster, observer: Connection) -> Iterator[Connection]:
    """An observer in a cluster that captures stats, but for some applications."""
    capture_application(timed, observer, PATTERNS)
    yield observer
    capture_application(timed, observer, "")


def level(observer: Connection, watched: Connection) -> str:
    """The level of a session that waits for its next request."""
    watched.execute("SELECT 1")
    return str(one(observer, LEVEL, watched.info.backend_pid))


def test_sessions_begin_with_the_level_of_their_application(
    timed: Cluster, armed: Connection
) -> None:
    for name, wanted in {"etl-1": "trace", "batch-1": "off", "batch-10": "stats"}.items():
        with session(timed, application_name=name) as watched:
            assert level(armed, watched) == wanted
    with session(timed, application_name="etl-late") as first_counts:
        assert level(armed, first_counts) == "trace"
        first_counts.execute("SELECT pg_sleep(0.001)")
        pid = first_counts.info.backend_pid
        assert rows(armed, "SELECT FROM wait_event_trace(%s) WHERE wait_event = 'PgSleep'", pid)


def test_new_names_and_patterns_reach_running_sessions(
    timed: Cluster, armed: Connection, watched: Connection
) -> None:
    for name, wanted in (
        ("other", "stats"),
        ("etl", "trace"),
        ("other", "stats"),
        ("etl", "trace"),
    ):
        watched.execute(f"SET application_name = '{name}'".encode())
        assert level(armed, watched) == wanted
    with session(timed) as set_by_another:
        pid = set_by_another.info.backend_pid
        armed.execute("SELECT wait_event_timing_set(%s, 'trace')", (pid,))
        for value in ("none=off", ""):
            capture_application(timed, armed, value)
        eventually(lambda: level(armed, watched) == "stats")
        assert level(armed, set_by_another) == "trace"


def test_more_particular_settings_go_first(timed: Cluster, armed: Connection) -> None:
    armed.execute("DO $$BEGIN CREATE ROLE etl LOGIN; EXCEPTION WHEN duplicate_object THEN END$$")
    armed.execute("ALTER ROLE etl SET wait_event_timing.capture = off")
    with session(timed, application_name="etl", user="etl") as watched:
        assert level(armed, watched) == "off"
        watched.execute("SET application_name = 'etl-2'")
        assert level(armed, watched) == "off"
    armed.execute("ALTER ROLE etl RESET wait_event_timing.capture")
    with session(timed, application_name="etl") as watched:
        watched.execute("SET wait_event_timing.capture = off")
        watched.execute("SET application_name = 'etl-2'")
        assert level(armed, watched) == "off"
        watched.execute("RESET wait_event_timing.capture")
        assert level(armed, watched) == "trace"
        watched.execute("BEGIN; SET LOCAL wait_event_timing.capture = off")
        assert level(armed, watched) == "off"
        watched.execute("ROLLBACK")
        assert level(armed, watched) == "trace"


def test_user_cannot_change_what_was_set_for_the_session(timed: Cluster, armed: Connection) -> None:
    with role(armed, "plain"), session(timed, user="plain") as watched:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            watched.execute("SET wait_event_timing.capture = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            watched.execute("SELECT wait_event_timing_set(pg_backend_pid(), 'off')")
        pid = watched.info.backend_pid
        armed.execute("SELECT wait_event_timing_set(%s, 'trace')", (pid,))
        watched.execute("SET application_name = 'batch-1'")
        assert level(armed, watched) == "trace"
        watched.execute("RESET ALL")
        assert level(armed, watched) == "trace"


def test_level_given_back_is_that_of_the_patterns_by_now(
    timed: Cluster, armed: Connection, watched: Connection
) -> None:
    pid = watched.info.backend_pid
    watched.execute("SET application_name = 'batch-1'")
    armed.execute("SELECT wait_event_timing_set(%s, 'stats')", (pid,))
    watched.execute("SET application_name = 'etl-1'")
    assert level(armed, watched) == "stats"
    armed.execute("SELECT wait_event_timing_set(%s, NULL)", (pid,))
    assert one(armed, LEVEL, pid) == "trace"
    watched.execute("SET application_name = 'batch-1'")
    assert level(armed, watched) == "off"


def test_role_and_database_pre_arm_sessions(timed: Cluster, observer: Connection) -> None:
    observer.execute("DROP ROLE IF EXISTS quiet")
    observer.execute("CREATE ROLE quiet LOGIN")
    observer.execute("ALTER ROLE quiet SET wait_event_timing.capture = off")
    observer.execute("DROP DATABASE IF EXISTS traced")
    observer.execute("CREATE DATABASE traced")
    observer.execute("ALTER DATABASE traced SET wait_event_timing.capture = trace")
    for parameters, wanted in (({"user": "quiet"}, "off"), ({"dbname": "traced"}, "trace")):
        with session(timed, **parameters) as watched:
            assert level(observer, watched) == wanted
    eventually(lambda: not rows(observer, "SELECT FROM pg_stat_activity WHERE datname = 'traced'"))
    observer.execute("DROP DATABASE traced")
    observer.execute("DROP ROLE quiet")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("etl", "has no level"),
        ("etl=loud", "is no level of capture"),
        ("=trace", "must have from 1 to 63 characters"),
        ("a=trace,,b=off", "List syntax is invalid"),
        ("[x=trace", 'has a "[" without its "]"'),
        ("a[]=trace", 'has a "[" without its "]"'),
        ("[[:alpha:]=trace", 'has a "[" without its "]"'),
    ],
)
def test_bad_patterns_are_refused(value: str, message: str, observer: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        observer.execute(
            f"ALTER SYSTEM SET wait_event_timing.capture_application = '{value}'".encode()
        )
    assert message in str(refused.value.diag.message_detail)


def test_brackets_of_every_kind_are_taken(timed: Cluster, armed: Connection) -> None:
    for name, pattern in {"a]": "a[]]", "a7": "a[[:digit:]]", "a[": r"a\["}.items():
        capture_application(timed, armed, f"{pattern}=off")
        with session(timed, application_name=name) as watched:
            assert level(armed, watched) == "off"
