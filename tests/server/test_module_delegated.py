"""What a role that is no superuser can do with a trial, with just the documented grants."""

import contextlib
import time
from collections.abc import Iterator

import psycopg
import pytest

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.own_session import connect
from pgtare.weighing.trials import Trials
from tests.commands import words
from tests.loads import during
from tests.sessions import Connection, bare_session, eventually, one
from tests.trials import MARKED, MARKER, refusal, start, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

ROLES = ("weigher", "team", "member", "stranger", "chief")


@pytest.fixture(scope="module")
def shared(each_server: Binaries) -> Iterator[Cluster]:
    """A server with every library whose settings are listed, and roles.

    weigher may weigh and is a member of team and, as a mistake, of the superuser chief.
    """
    modules = [loadable(each_server), loadable(each_server, "wait_event_timing")]
    libraries = ["pg_stat_statements", "auto_explain", *(m.library for m in modules)]
    with Cluster(each_server, preload=libraries) as cluster:
        with cluster.connect() as admin:
            admin.execute(modules[0].create_sql.encode())
            for role in ROLES:
                admin.execute(f"CREATE ROLE {role} LOGIN".encode())
            admin.execute("ALTER ROLE chief SUPERUSER")
            admin.execute("GRANT team, chief TO weigher")
            admin.execute("GRANT USAGE ON SCHEMA pgtare TO weigher, team, stranger")
            admin.execute(
                "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgtare TO weigher, team, stranger"
            )
            admin.execute("GRANT SET ON PARAMETER track_io_timing, exit_on_error TO weigher")
        yield cluster


@pytest.fixture
def weigher(shared: Cluster) -> Iterator[Connection]:
    with bare_session(shared, user="weigher") as connection:
        yield connection
        connection.execute("SELECT pgtare.trial_stop()")


#: Each of these ended sessions, failed or changed statements of others, or was to be expected to.
HARMFUL = words("""
    exit_on_error idle_session_timeout idle_in_transaction_session_timeout statement_timeout
    lock_timeout row_security transform_null_equals backslash_quote escape_string_warning
    timing_clock_source array_nulls bytea_output xmlbinary xmloption check_function_bodies
    synchronous_commit
    default_table_access_method default_tablespace temp_tablespaces default_transaction_isolation
    default_transaction_deferrable extra_float_digits client_min_messages
    client_connection_check_interval tcp_user_timeout tcp_keepalives_idle lo_compat_privileges
    quote_all_identifiers zero_damaged_pages ignore_checksum_failure dynamic_library_path
    local_preload_libraries allow_in_place_tablespaces allow_system_table_mods temp_file_limit
    track_counts log_min_messages log_parameter_max_length_on_error debug_print_parse
    deadlock_timeout vacuum_cost_delay gin_fuzzy_search_limit default_statistics_target
    wal_compression commit_delay stats_fetch_consistency max_stack_depth session_replication_role
""")

#: Whether 19 and later have it, if not all versions have.
SINCE_19 = {"escape_string_warning": False, "timing_clock_source": True}


@pytest.mark.parametrize("name", HARMFUL)
def test_setting_that_does_harm_is_refused(weigher: Connection, name: str) -> None:
    said = refusal(weigher, settings=[name], values=[None, None])
    there = weigher.info.server_version >= 190000
    if SINCE_19.get(name, there) != there:
        assert "unrecognized configuration parameter" in said
        return
    assert "can be weighed by superusers only" in said or "cannot be switched" in said


def listed(connection: Connection) -> set[str]:
    rows = connection.execute("SELECT pgtare.arm_settings()").fetchall()
    return {row[0] for row in rows}


def test_every_listed_setting_is_there(weigher: Connection) -> None:
    names = {row[0] for row in weigher.execute("SELECT name FROM pg_settings")}
    assert listed(weigher) - names == set()
    assert {"work_mem", "track_io_timing", "pg_stat_statements.track"} <= listed(weigher)


def test_no_other_setting_is_accepted(shared: Cluster, weigher: Connection) -> None:
    with bare_session(shared) as admin:
        rows = admin.execute("SELECT name FROM pg_settings").fetchall()
    allowed = listed(weigher)
    for (name,) in rows:
        if name not in allowed:
            refusal(weigher, settings=[name], values=[None, None])
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
        start(weigher, settings=["Exit_On_Error"], values=["off", "on"])
    assert "pgtare.arm_settings()" in str(caught.value.diag.message_hint)


def test_listed_setting_still_needs_the_right_to_set_it(weigher: Connection) -> None:
    said = refusal(weigher, settings=["log_duration"], values=[None, "on"])
    assert 'permission denied to set parameter "log_duration"' in said
    assert start(weigher, settings=["track_io_timing"], values=[None, "on"]) > 0


def test_superusers_weigh_what_they_like(shared: Cluster) -> None:
    with trial(shared, ({}, {"statement_timeout": "0"})):
        pass


# Who takes part


def taking_part(operator: Connection) -> int:
    """How many sessions take part now: one that has left counts among those that did."""
    return int(one(operator, "SELECT sessions_now FROM pgtare.trial_status()"))


@pytest.mark.parametrize(
    ("role", "takes_part"),
    [("weigher", True), ("team", True), ("member", False), ("chief", False), ("stranger", False)],
)
def test_only_sessions_of_its_roles_take_part(
    shared: Cluster, weigher: Connection, role: str, takes_part: bool
) -> None:
    start(weigher, values=["1111kB", "1111kB"])
    with bare_session(shared, user=role) as client:
        client.execute("SELECT 1")
        assert (one(client, f"SHOW {MARKER}") == "1111kB") is takes_part
        # a session whose client has just left may join for the moment that it needs to end
        eventually(lambda: taking_part(weigher) == takes_part)


def test_superusers_session_does_not_take_part_in_disguise(
    shared: Cluster, weigher: Connection
) -> None:
    start(weigher, values=["1111kB", "1111kB"])
    with bare_session(shared) as admin:
        for disguise in ("SET ROLE team", "SET SESSION AUTHORIZATION team"):
            admin.execute(disguise.encode())
            admin.execute("SELECT 1")
            assert one(admin, f"SHOW {MARKER}") == "4MB"
            # a session whose client has just left may join for the moment that it needs to end
            eventually(lambda: taking_part(weigher) == 0)


def test_session_that_becomes_a_superusers_leaves(shared: Cluster, weigher: Connection) -> None:
    with bare_session(shared) as admin:
        admin.execute("GRANT chief TO team")
    start(weigher, values=["1111kB", "1111kB"])
    try:
        with bare_session(shared, user="team") as client:
            assert one(client, f"SHOW {MARKER}") == "1111kB"
            client.execute("SET ROLE chief")
            assert one(client, f"SHOW {MARKER}") == "4MB"
    finally:
        with bare_session(shared) as admin:
            admin.execute("REVOKE chief FROM team")


def test_superusers_trial_reaches_everybody(shared: Cluster) -> None:
    with trial(shared, [{MARKER: "1111kB"}] * 2):
        for role in ROLES:
            with bare_session(shared, user=role) as client:
                client.execute("SELECT 1")
                assert one(client, f"SHOW {MARKER}") == "1111kB"


@pytest.mark.parametrize("role", ["stranger", "chief", "postgres"])
def test_role_out_of_reach_is_refused(weigher: Connection, role: str) -> None:
    assert f'sessions of role "{role}"' in refusal(weigher, role=role)


def test_role_of_its_own_can_be_named(shared: Cluster, weigher: Connection) -> None:
    start(weigher, role="team", values=["1111kB", "1111kB"])
    with bare_session(shared, user="team") as team, bare_session(shared, user="weigher") as other:
        for client in (team, other):
            client.execute("SELECT 1")
        assert one(team, f"SHOW {MARKER}") == "1111kB"
        assert one(other, f"SHOW {MARKER}") == "4MB"


def test_other_databases_are_out_of_reach(shared: Cluster, weigher: Connection) -> None:
    said = refusal(weigher, database="template1")
    assert "in its current database only" in said
    start(weigher, database=None, values=["1111kB", "1111kB"])
    with bare_session(shared, dbname="template1", user="weigher") as client:
        client.execute("SELECT 1")
        assert one(client, f"SHOW {MARKER}") == "4MB"
    with bare_session(shared, user="weigher") as client:
        client.execute("SELECT 1")
        assert one(client, f"SHOW {MARKER}") == "1111kB"


# Delays


@pytest.mark.parametrize(("ns", "accepted"), [(1_000_000, True), (1_000_001, False)])
def test_delays_are_short(weigher: Connection, ns: int, accepted: bool) -> None:
    if accepted:
        assert start(weigher, inject=[0, ns]) > 0
    else:
        assert "a delay of at most 1 ms" in refusal(weigher, inject=[0, ns])


@pytest.mark.parametrize("function", ["pg_terminate_backend", "pg_cancel_backend"])
def test_injected_delay_ends_with_an_interrupt(server: Cluster, function: str) -> None:
    """A superuser's too, of a second for each transaction."""

    def took_s() -> float:
        """How long a transaction takes that is interrupted after 0.3 s."""
        took: list[float] = []
        with (
            contextlib.suppress(psycopg.OperationalError),
            bare_session(server) as client,
            bare_session(server, application_name="pgtare") as operator,
        ):

            def work() -> None:
                began = time.monotonic()
                with contextlib.suppress(psycopg.Error):
                    client.execute("SELECT 1")
                took.append(time.monotonic() - began)

            client.execute("SELECT 1")  # a second
            with during(work):
                time.sleep(0.3)
                assert one(operator, f"SELECT {function}(%s)", client.info.backend_pid) is True
        return took[0]

    with trial(server, inject_ns=[10**9, 10**9]):
        # a busy machine is late at times; no delay that goes on to its end is ever so short
        eventually(lambda: 0.2 <= took_s() < 0.95, 30)


# Trials of others


@pytest.mark.parametrize("call", ["trial_stop()", "trial_drain()", "trial_renew(9)"])
def test_trial_of_a_superuser_is_left_alone(
    shared: Cluster, weigher: Connection, call: str
) -> None:
    with trial(shared, MARKED) as running, bare_session(shared, user="team") as client:
        for _ in range(5):
            client.execute("SELECT 1")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="started by role"):
            weigher.execute(f"SELECT pgtare.{call}".encode())
        with connect(f"{shared.dsn()} user=weigher") as other, pytest.raises(UsageError) as caught:
            Trials(other).stop()  # the command passes the hint on
        assert "started by role" in str(caught.value)
        assert "GRANT" not in str(caught.value)
        running.observed(client, 5)
        assert running.trials.status().running


@pytest.mark.parametrize(
    ("role", "may"), [("stranger", False), ("team", False), ("chief", True), ("weigher", True)]
)
def test_trial_is_stopped_by_its_role_and_by_superusers(
    shared: Cluster, weigher: Connection, role: str, may: bool
) -> None:
    start(weigher)
    with bare_session(shared, user=role) as other:
        if may:
            assert one(other, "SELECT pgtare.trial_stop()") is True
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match='role "weigher"'):
                other.execute("SELECT pgtare.trial_stop()")
    assert one(weigher, "SELECT running FROM pgtare.trial_status()") is not may


def test_member_of_the_role_that_started_it_may_stop_it(shared: Cluster) -> None:
    with bare_session(shared, user="team") as team, bare_session(shared, user="weigher") as member:
        start(team)
        assert one(member, "SELECT pgtare.trial_stop()") is True


def test_settings_come_back_when_the_starter_goes(shared: Cluster) -> None:
    with bare_session(shared, user="team") as client:
        with bare_session(shared, user="weigher") as owner:
            start(owner, values=["1111kB", "1111kB"])
            client.execute("SELECT 1")
            assert one(client, f"SHOW {MARKER}") == "1111kB"
        eventually(lambda: one(client, f"SHOW {MARKER}") == "4MB")
