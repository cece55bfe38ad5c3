"""Whether an arm's settings held throughout a unit: what changes them for a while only is seen."""

from collections.abc import Iterator

import pytest

from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, bare_session, eventually, one, setting
from tests.trials import MARKER, flagged, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: A boolean, an integer, a real, a string and an enum, and settings that act when they change.
ARMS: tuple[dict[str, str], ...] = (
    {},
    {
        "enable_seqscan": "off",
        MARKER: "1111kB",
        "cpu_tuple_cost": "0.02",
        "default_tablespace": "pg_default",
        "plan_cache_mode": "force_custom_plan",
        "client_min_messages": "warning",
        "default_transaction_isolation": "serializable",
    },
)

FUNCTIONS = f"""
CREATE FUNCTION held_clause() RETURNS text LANGUAGE sql SET {MARKER} = '3000kB'
  AS $$SELECT pg_catalog.current_setting('{MARKER}')$$;
CREATE FUNCTION held_local() RETURNS text LANGUAGE plpgsql
  AS $$BEGIN SET LOCAL {MARKER} = '3000kB'; RETURN 'set'; END$$;
CREATE FUNCTION held_caught() RETURNS text LANGUAGE plpgsql AS $$
  BEGIN
    BEGIN
      SET LOCAL {MARKER} = '3000kB';
      RAISE 'rolls back';
    EXCEPTION WHEN raise_exception THEN RETURN 'caught';
    END;
  END$$;
"""


@pytest.fixture(scope="module")
def functions(request: pytest.FixtureRequest) -> Iterator[None]:
    for name in ("server18", "server15"):
        with bare_session(request.getfixturevalue(name)) as admin:
            admin.execute(FUNCTIONS)
    yield
    for name in ("server18", "server15"):
        with bare_session(request.getfixturevalue(name)) as admin:
            admin.execute("DROP FUNCTION held_clause(), held_local(), held_caught()")


def run(client: Connection, statements: str) -> None:
    for statement in statements.split("; "):
        client.execute(statement.encode())


@pytest.mark.parametrize(
    "statements",
    [
        "BEGIN; SET LOCAL {0} = '3000kB'; SELECT 1; COMMIT",
        "BEGIN; SET LOCAL {0} = '3000kB'; ROLLBACK",
        "BEGIN; SET {0} = '3000kB'; ROLLBACK",
        "BEGIN; RESET {0}; ROLLBACK",
        "BEGIN; SET LOCAL {0} TO DEFAULT; COMMIT",
        "BEGIN; SAVEPOINT a; SET LOCAL {0} = '3000kB'; ROLLBACK TO a; COMMIT",
        "BEGIN; SAVEPOINT a; SET LOCAL {0} = '3000kB'; RELEASE a; COMMIT",
        "SELECT set_config('{0}', '3000kB', true)",
        "BEGIN; SELECT set_config('{0}', '3000kB', true); COMMIT",
        "SELECT held_clause()",
        "SELECT held_local()",
        "SELECT held_caught()",
        "DO $$BEGIN SET LOCAL {0} = '3000kB';COMMIT;END$$",
        "DO $$BEGIN PERFORM held_clause();END$$",
        "BEGIN; SET LOCAL enable_seqscan = off; COMMIT",
        "BEGIN; SET LOCAL cpu_tuple_cost = 3; COMMIT",
        "BEGIN; SET LOCAL default_tablespace = ''; COMMIT",
        "BEGIN; SET LOCAL plan_cache_mode = auto; COMMIT",
        "BEGIN; SET LOCAL client_min_messages = error; COMMIT",
        "BEGIN; SET LOCAL default_transaction_isolation = 'read committed'; COMMIT",
    ],
)
def test_a_setting_changed_for_a_while_flags_its_unit(
    server: Cluster, functions: None, statements: str
) -> None:
    with trial(server, ARMS) as running, bare_session(server) as client:
        for _ in range(4):
            client.execute("SELECT 1")
            run(client, statements.format(MARKER))
        client.execute("SELECT 1")
        rows = running.observed(client, 9)
    assert flagged(rows, UnitFlag.APP_CHANGED) == [i % 2 == 1 for i in range(9)]


def test_another_setting_is_no_reason(server: Cluster, functions: None) -> None:
    with trial(server, ARMS) as running, bare_session(server) as client:
        for _ in range(4):
            run(client, "BEGIN; SET LOCAL statement_timeout = 0; SELECT 1; COMMIT")
        rows = running.observed(client, 4)
    assert not any(flagged(rows, UnitFlag.APP_CHANGED))


def test_a_reload_is_no_change_by_the_application(server: Cluster, functions: None) -> None:
    try:
        with trial(server, ARMS) as running, bare_session(server) as client:
            client.execute("SELECT 1")
            server.configure({MARKER: "5000kB"})
            server.reload()
            for _ in range(30):
                client.execute("SELECT pg_sleep(0.002)")
            rows = running.observed(client, 31)
    finally:
        server.configure({MARKER: None})
        server.reload()
    assert sum(flagged(rows, UnitFlag.RELOADED)) == 1
    assert not any(flagged(rows, UnitFlag.APP_CHANGED))


def test_a_reload_in_an_open_transaction_flags_its_unit_in_every_arm(
    server: Cluster, functions: None
) -> None:
    """The server reads its files at the next request: that takes time, in whichever arm."""
    query = f"SELECT current_setting('{MARKER}')"
    seen = []
    try:
        with trial(server, [{}, {MARKER: "1111kB"}]) as running, bare_session(server) as client:
            for number in range(12):
                client.execute("BEGIN")
                server.configure({MARKER: f"{5000 + number}kB"})
                server.reload()
                until_read(client, number)
                seen.append(one(client, query))
                client.execute("COMMIT")
                client.execute("SELECT 1")
            rows = running.observed(client, 24)
    finally:
        server.configure({MARKER: None})
        server.reload()
    arms = rows["arm"][::2].tolist()
    assert set(arms) == {0, 1}
    # an arm gives each session its value, also where that is the session's own: it stays
    files = ["4MB", *(f"{5000 + n}kB" for n in range(11))]
    assert seen == [[before, "1111kB"][arm] for before, arm in zip(files, arms, strict=True)]
    assert flagged(rows, UnitFlag.RELOADED) == [True, False] * 12
    assert not any(flagged(rows, UnitFlag.APP_CHANGED))


def until_read(client: Connection, number: int) -> None:
    """Send requests until the session has read the file that holds the number."""
    query = f"SELECT reset_val FROM pg_settings WHERE name = '{MARKER}'"
    eventually(lambda: one(client, query) == str(5000 + number))


def test_arms_are_in_force_after_a_change_for_a_while(server: Cluster, functions: None) -> None:
    with trial(server, [{}, {MARKER: "1111kB"}]) as running, bare_session(server) as client:
        seen = []
        for _ in range(10):
            assert one(client, "SELECT held_clause()") == "3000kB"
            seen.append(one(client, f"SELECT current_setting('{MARKER}')"))
        rows = running.observed(client, 20)[1::2]
    assert seen == [["4MB", "1111kB"][arm] for arm in rows["arm"]]


def test_settings_work_as_before_after_a_trial(server: Cluster, functions: None) -> None:
    """The session is no longer watched, in one trial after the other."""
    with bare_session(server) as client:
        for _ in range(3):
            with trial(server, ARMS):
                for _ in range(4):
                    client.execute("SELECT held_clause()")
            client.execute("SET default_transaction_isolation = 'repeatable read'")
            assert one(client, "SHOW transaction_isolation") == "repeatable read"
            assert setting(client) == ("4MB", "default")
            client.execute("RESET ALL")


def test_a_setting_of_more_trials_than_can_be_watched_at_a_time(server: Cluster) -> None:
    with bare_session(server) as client:
        names = [
            row[0]
            for row in client.execute(
                "SELECT name FROM pg_settings WHERE name ~ '^enable_' ORDER BY name LIMIT 16"
            )
        ]
        names += ["cpu_tuple_cost", "cpu_index_tuple_cost", "cpu_operator_cost", "seq_page_cost"]
        for first in (0, 4, 0):
            chosen = names[first : first + 16]
            with trial(server, [{}, {name: "1" for name in chosen}]) as running:
                client.execute("SELECT 1")
                for name in chosen:
                    run(client, f"BEGIN; SET LOCAL {name} = 1; COMMIT")
                rows = running.observed(client, 16)
            assert flagged(rows, UnitFlag.APP_CHANGED) == [True] * 16
