"""Settings of the arms: each session gets its own back, with the source that it had."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from pgtare.errors import UsageError
from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from pgtare.postgres.cluster import Cluster
from tests.module_sources import write_module
from tests.servers import weighable
from tests.sessions import Connection, bare_session, eventually, one, setting
from tests.trials import MARKER, Running, flagged, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: In the base the session's own value, in the others another.
ARMS: tuple[dict[str, str], ...] = ({}, {MARKER: "1111kB"}, {MARKER: "2222kB"})


@contextlib.contextmanager
def role_and_database(cluster: Cluster) -> Iterator[None]:
    """A role and a database with values of their own for the setting."""
    with bare_session(cluster) as admin:
        admin.execute("CREATE ROLE particular LOGIN")
        admin.execute(f"ALTER ROLE particular SET {MARKER} = '3001kB'")
        admin.execute("CREATE DATABASE particular")
        admin.execute(f"ALTER DATABASE particular SET {MARKER} = '3002kB'")
    try:
        yield
    finally:
        with bare_session(cluster) as admin:
            admin.execute("DROP DATABASE particular WITH (FORCE)")
            admin.execute("DROP ROLE particular")


def own_set(client: Connection) -> None:
    client.execute(f"SET {MARKER} = '3000kB'")


@contextlib.contextmanager
def sessions_of_all_kinds(cluster: Cluster) -> Iterator[dict[str, Connection]]:
    """Sessions which have their value from everywhere that PostgreSQL knows."""
    with role_and_database(cluster), contextlib.ExitStack() as stack:

        def enter(**parameters: str) -> Connection:
            return stack.enter_context(bare_session(cluster, **parameters))

        kinds = {
            "default": enter(),
            "own SET": enter(),
            "role": enter(user="particular"),
            "database": enter(dbname="particular"),
            "options": enter(options=f"-c {MARKER}=3003kB"),
            "own SET over role": enter(user="particular"),
        }
        own_set(kinds["own SET"])
        own_set(kinds["own SET over role"])
        yield kinds


def end(running: Running, cluster: Cluster, how: str) -> None:
    """End the trial, in one of the ways in which trials end."""
    owner = running.trials.conn
    if how == "stop":
        running.trials.stop()
    elif how == "deadline":
        eventually(lambda: not running.trials.status().running)
    elif how == "lease":
        assert running.trials.renew(0.2)
        time.sleep(0.2)
    elif how == "owner disconnected":
        owner.close()
        wait_until_ended(cluster, "owner gone")
    else:
        cluster.configure({"pgtare.enabled": False})
        cluster.reload()
        eventually(lambda: not running.trials.status().running)


def wait_until_ended(cluster: Cluster, reason: str) -> None:
    with bare_session(cluster, application_name="pgtare") as operator:
        eventually(lambda: one(operator, "SELECT end_reason FROM pgtare.trial_status()") == reason)


@pytest.fixture
def enabled_again(server: Cluster) -> Iterator[None]:
    yield
    server.configure({"pgtare.enabled": None})
    server.reload()


@pytest.mark.parametrize("how", ["stop", "deadline", "lease", "owner disconnected", "kill switch"])
def test_idle_sessions_have_their_settings_back_at_the_next_request(
    server: Cluster, how: str, enabled_again: None
) -> None:
    with sessions_of_all_kinds(server) as clients:
        before = {kind: setting(client) for kind, client in clients.items()}
        with trial(
            server, ARMS, seconds=15.0 if how == "deadline" else 60.0, database=None
        ) as running:
            for kind, client in clients.items():
                # three blocks, after the first that lets the session in
                seen = {setting(client)[0] for _ in range(10)}
                assert seen >= {"1111kB", "2222kB", before[kind][0]}
            end(running, server, how)
            after = {kind: setting(client) for kind, client in clients.items()}
            if how == "kill switch":
                assert running.trials.status().end_reason == how
    assert after == before


def test_trials_cannot_start_while_switched_off(server: Cluster, enabled_again: None) -> None:
    server.configure({"pgtare.enabled": False})
    server.reload()
    with pytest.raises(UsageError, match=r"switched off by .pgtare\.enabled"), trial(server):
        pass


def test_transaction_open_at_the_end_keeps_its_settings_to_its_end(server: Cluster) -> None:
    with trial(server, [{MARKER: "1111kB"}] * 2) as running, bare_session(server) as client:
        client.execute("BEGIN")
        assert setting(client)[0] == "1111kB"
        running.trials.stop()
        assert setting(client)[0] == "1111kB"
        client.execute("COMMIT")
        assert setting(client) == ("4MB", "default")


@pytest.mark.parametrize(
    ("statements", "after"),
    [
        (["SET {0} = '3000kB'"], ("3000kB", "session")),
        (["SELECT set_config('{0}', '3000kB', false)"], ("3000kB", "session")),
        (["BEGIN", "SET {0} = '3000kB'", "COMMIT"], ("3000kB", "session")),
        (["BEGIN", "SET {0} = '3000kB'", "ROLLBACK"], ("4MB", "default")),
        (["BEGIN", "SET LOCAL {0} = '3000kB'", "COMMIT"], ("4MB", "default")),
        (["SET {0} = '3000kB'", "RESET {0}"], ("4MB", "default")),
        (["SET {0} = '3000kB'", "SET {0} TO DEFAULT"], ("4MB", "default")),
        (["SET {0} = '3000kB'", "RESET ALL"], ("4MB", "default")),
        (["SET {0} = '3000kB'", "DISCARD ALL"], ("4MB", "default")),
        (["SET {0} = '3000kB'", "SET {0} = '3500kB'"], ("3500kB", "session")),
        (["SET {0} = '3000kB'", "BEGIN", "SET {0} = '64kB'", "ROLLBACK"], ("3000kB", "session")),
        (["SET {0} = '3000kB'", "BEGIN", "RESET {0}", "ROLLBACK"], ("3000kB", "session")),
        (
            ["BEGIN", "SAVEPOINT a", "SET {0} = '3000kB'", "ROLLBACK TO a", "COMMIT"],
            ("4MB", "default"),
        ),
    ],
    ids=lambda value: ";".join(value) if isinstance(value, list) else "",
)
def test_what_the_application_sets_during_a_trial_is_its_own_afterwards(
    server: Cluster, statements: list[str], after: tuple[str, str]
) -> None:
    """With transactions between, so that the arms come and go over it."""
    with trial(server, ARMS) as running, bare_session(server) as client:
        in_transaction = False
        for statement in statements:
            client.execute(statement.format(MARKER).encode())
            in_transaction = client.info.transaction_status != 0
            for _ in range(0 if in_transaction else 8):
                client.execute("SELECT 1")
        running.trials.stop()
        assert setting(client) == after


def test_own_set_is_in_force_where_an_arm_leaves_the_setting_alone(server: Cluster) -> None:
    with bare_session(server) as client:
        own_set(client)
        with trial(server, ARMS) as running:
            client.execute("SELECT 1")
            seen = [one(client, f"SELECT current_setting('{MARKER}')") for _ in range(60)]
            rows = running.observed(client, 60)
    assert seen == [["3000kB", "1111kB", "2222kB"][arm] for arm in rows["arm"]]


def test_set_by_the_application_is_flagged_once(server: Cluster) -> None:
    with trial(server, ARMS) as running, bare_session(server) as client:
        for _ in range(10):
            client.execute("SELECT 1")
        own_set(client)
        for _ in range(10):
            client.execute("SELECT 1")
        rows = running.observed(client, 21)
    assert flagged(rows, UnitFlag.APP_CHANGED) == [False] * 10 + [True] + [False] * 10


def test_own_value_comes_back_to_the_last_digit(server: Cluster) -> None:
    """PostgreSQL shows six digits; the planner tells of more."""
    plan = "EXPLAIN SELECT * FROM generate_series(1, 1000000)"
    with bare_session(server) as client:
        client.execute("SET cpu_tuple_cost = 1.2345678901")
        before = client.execute(plan).fetchall()
        assert "1234567.89" in before[0][0]
        with trial(server, ({}, {"cpu_tuple_cost": "2"})) as running:
            for _ in range(10):
                client.execute("SELECT 1")
            running.trials.stop()
            assert client.execute(plan).fetchall() == before


@pytest.mark.parametrize(
    ("name", "own", "arm"),
    [
        ("enable_seqscan", "off", "on"),
        ("log_min_duration_statement", "1h", "2h"),
        ("log_statement", "ddl", "mod"),
        ("default_tablespace", "pg_default", ""),
        ("track_io_timing", "on", "off"),
        ("statement_timeout", "1234567ms", "0"),
    ],
)
def test_own_value_of_any_type_comes_back(server: Cluster, name: str, own: str, arm: str) -> None:
    with bare_session(server) as client:
        client.execute(f"SET {name} = '{own}'")
        before = setting(client, name)
        with trial(server, ({}, {name: arm})) as running:
            for _ in range(10):
                client.execute("SELECT 1")
            running.trials.stop()
            assert setting(client, name) == before


def test_settings_that_exclude_each_other_are_switched_and_come_back(server: Cluster) -> None:
    """PostgreSQL refuses log_statement_stats while log_parser_stats is on, and the reverse."""
    whole, part = "log_statement_stats", "log_parser_stats"
    arms: list[dict[str, str]] = [{}, {whole: "on", part: "off"}, {whole: "off", part: "on"}]
    with bare_session(server) as client:
        for own in (
            "SET log_parser_stats = on",
            "RESET log_parser_stats; SET log_statement_stats = on",
        ):
            client.execute(own.encode())
            before = setting(client, whole), setting(client, part)
            with trial(server, arms) as running:
                for _ in range(20):
                    client.execute("SELECT 1")
                assert running.trials.status().failed_arms == []
                # the first only lets the session in
                assert set(running.observed(client, 19)["arm"]) == {0, 1, 2}
                running.trials.stop()
                assert (setting(client, whole), setting(client, part)) == before


@pytest.mark.parametrize(
    ("own", "name", "shown"),
    [
        ("RESET enable_indexscan", "enable_indexscan", "Index Scan"),
        ("SET compute_query_id = on", "compute_query_id", "Query Identifier"),
    ],
)
def test_no_plan_of_an_arm_outlives_the_trial(
    server: Cluster, own: str, name: str, shown: str
) -> None:
    explain = "EXPLAIN (VERBOSE) EXECUTE kept"
    with bare_session(server) as client:
        client.execute(own.encode())
        client.execute("SET enable_bitmapscan = off")
        with trial(server, [{name: "off"}, {name: "off"}]) as running:
            client.execute("SELECT 1")  # from the next on it takes part
            client.execute("PREPARE kept AS SELECT relname FROM pg_class WHERE oid = 1259")
            client.execute("EXECUTE kept")
            assert shown not in str(client.execute(explain).fetchall())
            running.trials.stop()
        assert shown in str(client.execute(explain).fetchall())


def test_a_parallel_worker_of_a_session_that_read_no_reload_ends_no_trial(
    server: Cluster, enabled_again: None
) -> None:
    """Its leader has read that trials are off, and not yet that they are allowed again."""
    with bare_session(server) as client, ThreadPoolExecutor(1) as pool:
        client.execute(
            "SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;"
            "SET parallel_tuple_cost = 0"
        )
        assert "Gather" in str(
            client.execute("EXPLAIN SELECT sum(pronargs) FROM pg_proc").fetchall()
        )
        server.configure({"pgtare.enabled": False})
        server.reload()
        eventually(lambda: one(client, "SHOW pgtare.enabled") == "off")
        busy = pool.submit(
            client.execute, "SELECT pg_sleep(1.5); SELECT sum(pronargs) FROM pg_proc"
        )
        server.configure({"pgtare.enabled": None})
        server.reload()
        with bare_session(server) as other:
            eventually(lambda: one(other, "SHOW pgtare.enabled") == "on")
        with trial(server) as running:
            busy.result()
            assert running.trials.status().running


@pytest.fixture
def file_value(server: Cluster) -> Iterator[None]:
    yield
    server.configure({MARKER: None})
    server.reload()


def test_configuration_file_changed_during_a_trial_counts_afterwards(
    server: Cluster, file_value: None
) -> None:
    """Not over a session's own SET; and one that is changed after the trial counts, too."""
    with bare_session(server) as client, bare_session(server) as own:
        own_set(own)
        with trial(server, ARMS) as running:
            for value in ("5000kB", None):
                for _ in range(10):
                    client.execute("SELECT 1")
                    own.execute("SELECT 1")
                if value:
                    server.configure({MARKER: value})
                    server.reload()
            running.trials.stop()
            assert setting(client) == ("5000kB", "configuration file")
            assert setting(own) == ("3000kB", "session")
        server.configure({MARKER: "6000kB"})
        server.reload()
        assert setting(client) == ("6000kB", "configuration file")


def test_configuration_file_changed_during_a_trial_is_the_value_of_the_base(
    server: Cluster, file_value: None
) -> None:
    with trial(server, ARMS) as running, bare_session(server) as client:
        client.execute("SELECT 1")
        server.configure({MARKER: "5000kB"})
        server.reload()
        seen = [one(client, f"SELECT current_setting('{MARKER}')") for _ in range(30)]
        rows = running.observed(client, 31)[1:]
    reloaded = flagged(rows, UnitFlag.RELOADED)
    assert sum(reloaded) == 1
    expected = [["5000kB", "1111kB", "2222kB"][arm] for arm in rows["arm"]]
    assert [v for v, r in zip(seen, reloaded, strict=True) if not r] == [
        v for v, r in zip(expected, reloaded, strict=True) if not r
    ]


def test_two_trials_in_a_row_restore_alike(server: Cluster) -> None:
    """The second begins while the session still holds what the first had set."""
    with bare_session(server) as client:
        own_set(client)
        for value in ("1111kB", "2222kB"):
            with trial(server, [{MARKER: value}] * 2):
                client.execute("SELECT 1")
                assert setting(client)[0] == value
        assert setting(client) == ("3000kB", "session")


def test_new_trial_takes_in_a_session_that_is_idle_in_the_old_one(server: Cluster) -> None:
    with bare_session(server) as client:
        with trial(server, ({MARKER: "1111kB"}, {MARKER: "1111kB"})):
            client.execute("SELECT 1")
        with trial(server, ({}, {MARKER: "2222kB"})) as running:
            assert setting(client) == ("4MB", "default")  # not yet in, and no longer in the old
            seen = {setting(client)[0] for _ in range(20)}
            running.observed(client, 20)
    assert seen == {"4MB", "2222kB"}


# Settings that fail

BALKY = r"""
#include "postgres.h"
#include "fmgr.h"
#include "utils/guc.h"
PG_MODULE_MAGIC;
void _PG_init(void);
static int value, throws_at, refuses_at;
static bool
check_value(int *newval, void **extra, GucSource source)
{
	if (*newval == throws_at)
		ereport(ERROR, (errmsg("balky.value throws")));
	return *newval != refuses_at;
}
void
_PG_init(void)
{
	DefineCustomIntVariable("balky.throws_at", "", NULL, &throws_at, -1, -1, 1000,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("balky.refuses_at", "", NULL, &refuses_at, -1, -1, 1000,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("balky.value", "", NULL, &value, 0, 0, 1000,
							PGC_USERSET, 0, check_value, NULL, NULL);
}
"""
BALKY_ARMS = ({"balky.value": "1"}, {"balky.value": "7", MARKER: "1111kB"})


@pytest.fixture(scope="module")
def balky_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module with a setting that some sessions cannot take, though others can."""
    return write_module(tmp_path_factory.mktemp("balky"), "balky", BALKY)


@pytest.fixture(scope="module")
def balky_server(each_server: Binaries, balky_source: Path) -> Iterator[Cluster]:
    balky = build_cached(each_server, "balky", balky_source)
    with weighable(each_server, others=[balky.library]) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["balky.throws_at", "balky.refuses_at"])
class TestSettingThatFailsInOneSession:
    def test_arm_is_disabled_and_flagged(self, balky_server: Cluster, how: str) -> None:
        """No client sees an error; the arm is disabled for other sessions, too."""
        with trial(balky_server, BALKY_ARMS) as running, bare_session(balky_server) as client:
            client.execute(f"SET {how} = 7")
            assert [one(client, "SELECT 1") for _ in range(50)] == [1] * 50
            rows = running.observed(client, 51)[2:]
            assert flagged(rows, UnitFlag.SWITCH_FAILED) == [arm == 1 for arm in rows["arm"]]
            assert running.trials.status().failed_arms == [1]
            with bare_session(balky_server) as other:
                for _ in range(20):
                    other.execute("SELECT 1")
                rows = running.observed(other, 20)
        assert flagged(rows, UnitFlag.SWITCH_FAILED) == [arm == 1 for arm in rows["arm"]]

    def test_settings_are_the_sessions_own_in_a_failed_arm(
        self, balky_server: Cluster, how: str
    ) -> None:
        with bare_session(balky_server) as client:
            own_set(client)
            client.execute("SET balky.value = 5")
            client.execute(f"SET {how} = 7")
            with trial(balky_server, BALKY_ARMS) as running:
                client.execute("SELECT 1")
                seen = [
                    (one(client, "SELECT current_setting('balky.value')"), setting(client))
                    for _ in range(10)
                ]
                rows = running.observed(client, 20)
                running.trials.stop()
                assert setting(client, "balky.value") == ("5", "session")
                assert setting(client) == ("3000kB", "session")
        for (value, _), arm in zip(seen, rows["arm"][::2], strict=True):
            assert value == ("1" if arm == 0 else "5")
        assert {marker[0] for _, marker in seen} == {"3000kB"}

    def test_own_set_in_a_failed_arm_is_kept(self, balky_server: Cluster, how: str) -> None:
        with bare_session(balky_server) as client:
            own_set(client)
            client.execute(f"SET {how} = 7")
            with trial(balky_server, BALKY_ARMS) as running:
                for n in range(3001, 3021):
                    client.execute(f"SET {MARKER} = '{n}kB'")
                    assert setting(client)[0] == f"{n}kB"
                assert running.trials.status().failed_arms == [1]
            assert setting(client) == ("3020kB", "session")

    def test_session_can_still_be_cancelled_and_terminated(
        self, balky_server: Cluster, how: str
    ) -> None:
        with trial(balky_server, BALKY_ARMS), bare_session(balky_server) as client:
            client.execute(f"SET {how} = 7")
            for _ in range(10):
                client.execute("SELECT 1")
            client.execute("SET statement_timeout = '100ms'")
            with pytest.raises(psycopg.errors.QueryCanceled):
                client.execute("SELECT pg_sleep(5)")
            with bare_session(balky_server, application_name="pgtare") as operator:
                pid = client.info.backend_pid
                assert one(operator, "SELECT pg_terminate_backend(%s, 60000)", pid) is True
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")


def test_session_without_the_library_of_a_setting_stays_outside(server: Cluster) -> None:
    arms: list[dict[str, str]] = [{}, {"auto_explain.log_timing": "off"}]
    with (
        trial(server, arms, owner_does="LOAD 'auto_explain'") as running,
        bare_session(server) as outside,
        bare_session(server) as inside,
    ):
        outside.execute("SELECT 1")
        inside.execute("LOAD 'auto_explain'")
        with bare_session(server, options="-c session_preload_libraries=auto_explain") as loaded:
            loaded.execute("SELECT 1")
            running.observed(loaded, 1)
        assert running.trials.status().sessions_lacking_settings == 2
        assert len(running.drained()) == 1
