"""Starting a trial: what is refused, to whom, and in which words."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgtare.kit.option_values import LONGEST_S
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.own_session import connect
from pgtare.weighing.trials import Population, Trials
from pgtare.weighing.weigh.recording import Halt, record
from tests.servers import crashes
from tests.sessions import Connection, bare_session, eventually, one
from tests.trials import MARKED, MARKER, design_of, refusal, start, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture
def operator(server: Cluster) -> Iterator[Connection]:
    with bare_session(server, application_name="pgtare") as connection:
        yield connection
        connection.execute("SELECT pgtare.trial_stop()")


@pytest.mark.parametrize(
    "changes",
    [
        {name: None}
        for name in ("settings", "values", "inject", "block", "seed", "duration", "sessions", "cpu")
    ],
    ids=str,
)
def test_null_is_refused(operator: Connection, changes: dict[str, Any]) -> None:
    assert "an argument of trial_start is null" in refusal(operator, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": [None]}, "name of a setting is null"),
        ({"settings": [MARKER, MARKER], "values": [None] * 4}, "named twice"),
        ({"settings": [MARKER, MARKER.upper()], "values": [None] * 4}, "named twice"),
        ({"settings": []}, "a value for each arm and setting"),
        ({"values": []}, "a value for each arm and setting"),
        ({"values": ["64kB"] * 3}, "a value for each arm and setting"),
        ({"settings": [MARKER] * 33, "values": [None] * 66}, "at most 32 settings"),
        ({"inject": [], "values": []}, "2 to 32 arms"),
        ({"inject": [0], "values": [None]}, "2 to 32 arms"),
        ({"inject": [0] * 33, "values": [None] * 33, "block": [*range(33)]}, "2 to 32 arms"),
        ({"inject": [0, None]}, "a number of trial_start is null"),
        ({"inject": [0, -1]}, "inject_ns must lie between"),
        ({"inject": [0, (1 << 63) - 1]}, "inject_ns must lie between"),
        ({"block": []}, "a block holds each arm"),
        ({"block": [0]}, "a block holds each arm"),
        ({"block": [0, 0]}, "must hold every arm"),
        ({"block": [0, 2]}, "an arm that does not exist"),
        ({"block": [0, -1]}, "an arm that does not exist"),
        ({"block": [0, None]}, "a number of trial_start is null"),
        ({"block": [0, 1] * 33}, "64 runs at most"),
        ({"values": [None, "x" * 20_000]}, "invalid value"),
        ({"settings": ["log_statement_sample_rate"], "values": [None, "NaN"]}, "NaN"),
        (
            {"settings": ["default_tablespace"], "values": [None, "x" * 20_000]},
            "invalid value|too long",
        ),
        ({"application": "x" * 20_000}, "too long together"),
        ({"duration": float("nan")}, "duration must be above 0"),
        ({"duration": float("inf")}, "duration must be above 0"),
        ({"duration": 0}, "duration must be above 0"),
        ({"duration": -1}, "duration must be above 0"),
        ({"duration": 604801}, "at most 604800 seconds"),
        ({"participation": 0}, "participation must be above 0"),
        ({"participation": -1}, "participation must be above 0"),
        ({"participation": 1.01}, "participation must be above 0"),
        ({"participation": float("nan")}, "participation must be above 0"),
        ({"sessions": 0}, "sessions must lie between"),
        ({"sessions": -1}, "sessions must lie between"),
        ({"sessions": 1025}, "sessions must lie between"),
        ({"database": "no such database"}, "does not exist"),
        ({"role": "no such role"}, "does not exist"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_bad_arguments_are_refused(
    server: Cluster, operator: Connection, changes: dict[str, Any], message: str
) -> None:
    said = refusal(operator, **changes)
    assert any(words in said for words in message.split("|"))
    assert crashes(server) == []


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("run_shortest => 0", "between 1 and 255"),
        ("run_shortest => null", "between 1 and 255"),
        ("run_longest => null", "between 1 and 255"),
        ("run_shortest => 9, run_longest => 8", "between 1 and 255"),
        ("run_longest => 256", "between 1 and 255"),
        ("slices => '{0,1,2}'", "does not exist"),
        ("slices => '{0,-2}'", "does not exist"),
        ("slices => '{0,1}', slice_min_us => 999", "between 1,000"),
        ("slices => '{0,1}', slice_min_us => 3000, slice_max_us => 2000", "between 1,000"),
        ("slices => '{0,1}', slice_max_us => 1000001", "between 1,000"),
        ("slices => '{{0},{1}}'", "one dimension"),
        ("slices => '{0,null}'", "null"),
        ("slices => null", "null"),
        ("slices => array_fill(0, ARRAY[65])", "64 slices"),
    ],
)
def test_bad_runs_and_slices_are_refused(server18: Cluster, arguments: str, wanted: str) -> None:
    begun = "SELECT pgtare.trial_start('{}', '{}', '{0,0}', '{0,1}', 1, 5, "
    with bare_session(server18) as client, pytest.raises(psycopg.Error, match=wanted):
        client.execute(f"{begun}{arguments})".encode())


def test_arrays_of_two_dimensions_are_refused(operator: Connection) -> None:
    assert "one dimension" in refusal(operator, block=[[0, 1], [0, 1]])


def test_largest_trial_starts_and_runs(server: Cluster, operator: Connection) -> None:
    names = [
        row[0]
        for row in operator.execute(
            "SELECT name FROM pg_settings WHERE name LIKE 'enable%' ORDER BY name LIMIT 18"
        )
    ]
    start(
        operator,
        settings=names,
        values=["off", "on"] * (len(names) * 16),
        inject=[0] * 32,
        block=[*range(32), *range(32)],
        sessions=1024,
    )
    with bare_session(server) as client:
        for _ in range(130):
            client.execute("SELECT 1")
    query = "SELECT observations FROM pgtare.trial_status()"
    eventually(lambda: one(operator, query) == 130)


def test_null_population_means_everybody(server: Cluster, operator: Connection) -> None:
    nobody = dict.fromkeys(("database", "role", "application", "participation"))
    start(operator, **nobody)
    with bare_session(server, dbname="template1") as client:
        client.execute("SELECT 1")
        assert one(operator, "SELECT sessions FROM pgtare.trial_status()") == 1


@pytest.mark.parametrize(
    ("names", "said"),
    [
        # they decide what a session is
        (
            "role session_authorization client_encoding search_path transaction_isolation "
            "transaction_read_only transaction_deferrable session_replication_role seed",
            "cannot be switched between transactions",
        ),
        # clients are sent their values
        (
            "TimeZone DateStyle application_name IntervalStyle standard_conforming_strings "
            "default_transaction_read_only",
            "reported to the client",
        ),
        ("temp_buffers", "its first temporary table"),
        ("pgtare.enabled PGTARE.enabled pgtare.ring_memory", "belongs to the scale itself"),
        # the last is a placeholder
        ("no_such_setting no.such a.b.c made.up", "unrecognized configuration parameter"),
    ],
)
def test_settings_that_no_arm_can_have_are_refused(
    operator: Connection, names: str, said: str
) -> None:
    operator.execute("SET made.up = 'x'")
    for name in names.split():
        assert said in refusal(operator, settings=[name])
    for name in ("", "work mem"):
        assert "unrecognized configuration parameter" in refusal(operator, settings=[name])


@pytest.mark.parametrize("context", ["internal", "postmaster", "sighup", "backend"])
def test_settings_fixed_for_a_session_are_refused(operator: Connection, context: str) -> None:
    names = operator.execute(
        "SELECT name FROM pg_settings WHERE context LIKE '%%' || %s AND name NOT LIKE 'pgtare.%%'",
        (context,),
    ).fetchall()
    assert len(names) >= 2
    for (name,) in names:
        assert "cannot be switched between transactions" in refusal(operator, settings=[name])


@pytest.mark.parametrize("value", ["lots", "-5", "1kB", "99999999999999999GB"])
def test_bad_value_is_refused_when_the_trial_starts(operator: Connection, value: str) -> None:
    said = refusal(operator, values=[None, value])
    assert MARKER in said
    assert one(operator, "SELECT running FROM pgtare.trial_status()") is False


def test_second_start_names_the_first_one(server: Cluster, operator: Connection) -> None:
    start(operator)
    with bare_session(server) as other:
        said = refusal(other)
    assert f"a trial is running already, started by process {operator.info.backend_pid}" in said


def test_stop_says_whether_one_ran(operator: Connection) -> None:
    start(operator)
    assert [one(operator, "SELECT pgtare.trial_stop()") for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(("duration", "sleeps"), [(0.05, 0.1), (1e-300, 0)])
def test_trial_ends_at_its_deadline(operator: Connection, duration: float, sleeps: float) -> None:
    start(operator, duration=duration)
    operator.execute("SELECT pg_sleep(%s)", (sleeps,))
    assert operator.execute(
        "SELECT running, end_reason, ended IS NOT NULL FROM pgtare.trial_status()"
    ).fetchone() == (False, "deadline", True)


def test_a_week_may_be_asked_for(server: Cluster) -> None:
    """The longest that --duration takes is the longest that a trial may last."""
    halt = Halt()
    halt.set()
    with connect(server.dsn()) as owner:
        got = record(
            Trials(owner),
            design_of(MARKED),
            Population("postgres"),
            LONGEST_S,
            cpu=False,
            load=None,
            look=None,
            tick=lambda seconds, rows: None,
            halt=halt,
        )
    assert got.stopped_by == "interrupt"


def test_owner_takes_no_part(operator: Connection) -> None:
    """Nor do its settings change."""
    operator.execute("SET application_name = 'something else'")
    before = one(operator, f"SELECT current_setting('{MARKER}')")
    assert start(operator) > 0
    assert one(operator, f"SELECT current_setting('{MARKER}')") == before
    for _ in range(5):
        operator.execute("SELECT 1")
    assert one(operator, "SELECT sessions FROM pgtare.trial_status()") == 0


@pytest.mark.parametrize("size", [-1, 0, 63, (1 << 31) - 1])
def test_drain_of_an_impossible_size_is_refused(operator: Connection, size: int) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="max_bytes must lie between"):
        operator.execute("SELECT pgtare.trial_drain(%s)", (size,))


@pytest.fixture
def ordinary(server: Cluster) -> Iterator[Connection]:
    """A role without any right to the module."""
    with bare_session(server) as admin:
        admin.execute("CREATE ROLE ordinary LOGIN")
    try:
        with bare_session(server, user="ordinary") as connection:
            yield connection
    finally:
        with bare_session(server) as admin:
            admin.execute("DROP OWNED BY ordinary")
            admin.execute("DROP ROLE ordinary")


def grant(server: Cluster, *privileges: str) -> None:
    with bare_session(server) as admin:
        for privilege in (
            "USAGE ON SCHEMA pgtare",
            "EXECUTE ON ALL FUNCTIONS IN SCHEMA pgtare",
            *privileges,
        ):
            admin.execute(f"GRANT {privilege} TO ordinary".encode())


@pytest.mark.parametrize(
    "call",
    [
        "trial_stop()",
        "trial_status()",
        "trial_drain()",
        "trial_start('{}', '{}', '{0,0}', '{0,1}', 1, 1)",
    ],
)
def test_ordinary_role_is_refused(server: Cluster, ordinary: Connection, call: str) -> None:
    with bare_session(server) as admin:
        admin.execute("GRANT USAGE ON SCHEMA pgtare TO ordinary")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="denied for function"):
        ordinary.execute(f"SELECT pgtare.{call}".encode())


def test_granted_role_may_run_a_trial(server: Cluster, ordinary: Connection) -> None:
    grant(server)
    assert start(ordinary) > 0
    assert one(ordinary, "SELECT pgtare.trial_stop()") is True


@pytest.mark.parametrize("name", ["log_duration", "track_functions"])
def test_granted_role_gains_no_right_to_a_setting(
    server: Cluster, ordinary: Connection, name: str
) -> None:
    """Whose arms reached the sessions of others would be one."""
    grant(server)
    said = refusal(ordinary, settings=[name], values=[None, "on"])
    assert f'permission denied to set parameter "{name}"' in said


def test_right_to_a_setting_can_be_granted(server: Cluster, ordinary: Connection) -> None:
    grant(server, "SET ON PARAMETER track_io_timing")
    assert start(ordinary, settings=["track_io_timing"], values=[None, "on"]) > 0


def test_arms_reach_sessions_of_roles_that_may_not_set_them(
    server: Cluster, ordinary: Connection
) -> None:
    with trial(server, [{"track_io_timing": "on"}] * 2, application="*"):
        ordinary.execute("SELECT 1")
        assert one(ordinary, "SELECT current_setting('track_io_timing')") == "on"
