"""pgbench and the catalogue's counters against real servers (18 of the wheel, Debian's 15)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import (
    BenchDatabase,
    LoadSpec,
    PgbenchLoad,
    Script,
    TransactionLog,
    drop_database,
    initialise,
    run,
)
from pgtare.weighing.instruments.arms import choose
from pgtare.weighing.instruments.catalogue import load_catalogue
from pgtare.weighing.instruments.counters import snapshot
from pgtare.weighing.instruments.model import Chosen, Entry, SqlRule
from pgtare.weighing.instruments.proof import judge_counter
from pgtare.weighing.instruments.requirements import availability, read_facts
from tests.loads import check_for
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

CATALOGUE = load_catalogue()
# what PostgreSQL itself and its contrib modules offer
OURS = {"wait_event_timing", "sql_trace"}
#: Those that come with PostgreSQL: with its own code, or in its package of modules.
CONTRIBUTED = [
    entry
    for entry in CATALOGUE.values()
    if entry.needs.extension not in OURS
    and {"pg_stat_statements", "auto_explain"}.issuperset(entry.needs.preload)
]


@pytest.fixture(scope="module")
def cluster(each_server: Binaries) -> Iterator[Cluster]:
    settings = {"pg_stat_statements.max": 200}
    preload = ["pg_stat_statements", "auto_explain"]
    with Cluster(each_server, settings, preload=preload, tcp=True) as running:
        yield running


@pytest.fixture(scope="module")
def bench(cluster: Cluster) -> BenchDatabase:
    made = initialise(cluster.binaries, cluster.dsn(), scale=1)
    with cluster.connect(made.name) as conn:
        conn.execute("CREATE EXTENSION pg_stat_statements")
    return made


@pytest.fixture
def conn(cluster: Cluster, bench: BenchDatabase) -> Iterator[psycopg.Connection[Any]]:
    with cluster.connect(bench.name) as connection:
        yield connection


def sessions(conn: psycopg.Connection[Any], name: str) -> int:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (name,)
    ).fetchone()
    assert row is not None
    return int(row[0])


# ------------------------------------------------------------------------------ the load


@pytest.mark.parametrize(
    ("builtin", "protocol"),
    [("select-only", "simple"), ("simple-update", "prepared"), ("tpcb-like", "extended")],
)
def test_the_load_runs_under_its_own_name_until_stopped(
    cluster: Cluster,
    bench: BenchDatabase,
    conn: psycopg.Connection[Any],
    builtin: Any,
    protocol: Any,
) -> None:
    spec = LoadSpec(builtin, protocol=protocol, clients=3)
    load = PgbenchLoad(cluster.binaries.pgbench, bench.dsn, spec)
    with load:
        load.wait_ready()
        assert sessions(conn, load.application_name) == 3
        load.check()
        description = load.describe()
    assert load.pid is None
    assert description["median_tps"] > 0
    assert description["application_name"].startswith("pgtare-load-")
    eventually(lambda: sessions(conn, load.application_name) == 0)
    with pytest.raises(MeasurementError, match="not running"):
        load.check()


def test_a_rate_is_kept(cluster: Cluster, bench: BenchDatabase) -> None:
    """As low a rate as a busy machine can keep; without one there would be thousands."""
    result = run(cluster.binaries.pgbench, bench.dsn, LoadSpec(clients=2, rate=50.0), 4)
    # Poisson arrivals: 200 +- 14.1; five standard deviations.
    assert 129 < result.transactions < 271


def test_the_log_counts_latency_from_the_scheduled_start(
    cluster: Cluster, bench: BenchDatabase, tmp_path: Path
) -> None:
    slow = tmp_path / "slow.sql"
    slow.write_text("SELECT pg_sleep(0.1);\n")
    seen: list[float] = []
    # Asked for twice as fast as it can be: whoever counts from the sending sees 100 ms throughout.
    with TransactionLog() as log:
        done = run(
            cluster.binaries.pgbench,
            bench.dsn,
            LoadSpec(scripts=(Script(slow),), rate=20),
            2,
            log=log,
            halfway=lambda: seen.append(time.monotonic()),
        )
        latencies = log.latencies_us()
        directory = log.arguments()[1].partition("=")[2]
    assert len(seen) == 1
    assert len(latencies) == done.transactions
    assert latencies.min() >= 100_000
    assert latencies.max() > 400_000
    assert done.latency_ms == pytest.approx(latencies.mean() / 1000, rel=0.05)
    assert done.failed == 0
    assert not Path(directory).parent.exists()


def test_the_load_leaves_the_users_history_alone(
    cluster: Cluster, bench: BenchDatabase, conn: psycopg.Connection[Any]
) -> None:
    # Without -n pgbench vacuums, and truncates pgbench_history.
    conn.execute("INSERT INTO pgbench_history (tid, filler) VALUES (-7, 'mine')")
    run(cluster.binaries.pgbench, bench.dsn, LoadSpec("simple-update"), 1)
    assert conn.execute("SELECT filler FROM pgbench_history WHERE tid = -7").fetchone()


def test_a_password_is_not_on_the_command_line(cluster: Cluster, bench: BenchDatabase) -> None:
    dsn = cluster.dsn(bench.name, tcp=True)
    password = psycopg.conninfo.conninfo_to_dict(dsn)["password"]
    with PgbenchLoad(cluster.binaries.pgbench, dsn, LoadSpec()) as load:
        load.wait_ready()
        shown = " ".join(psutil.Process(load.pid).cmdline())
        assert str(password) not in shown
        assert str(password) not in str(load.describe())


def test_a_bad_script_and_missing_tables_are_reported(
    cluster: Cluster, bench: BenchDatabase, tmp_path: Path
) -> None:
    script = tmp_path / "bad.sql"
    for text, message in (
        ("SELECT 1/0;\n", "division by zero"),
        ("\\nonsense\n", "invalid command"),
    ):
        script.write_text(text)
        load = PgbenchLoad(cluster.binaries.pgbench, bench.dsn, LoadSpec(scripts=(Script(script),)))
        with load, pytest.raises(MeasurementError, match=message):
            load.wait_ready()
    load = PgbenchLoad(cluster.binaries.pgbench, cluster.dsn(), LoadSpec())
    with load, pytest.raises(MeasurementError, match=r"pgbench ended with .*make them with") as ex:
        load.wait_ready()
    assert "\n" not in str(ex.value)


def test_lost_connections_are_reported(
    cluster: Cluster, bench: BenchDatabase, conn: psycopg.Connection[Any]
) -> None:
    """One client of two is enough, although pgbench itself goes on."""
    with PgbenchLoad(cluster.binaries.pgbench, bench.dsn, LoadSpec(clients=2)) as load:
        load.wait_ready()
        conn.execute(
            "SELECT pg_terminate_backend(min(pid)) FROM pg_stat_activity"
            " WHERE application_name = %s",
            (load.application_name,),
        )
        with pytest.raises(MeasurementError, match=r"gave up a client: .*client"):
            check_for(load, seconds=60)


def test_no_server_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    load = PgbenchLoad(cluster.binaries.pgbench, f"host={tmp_path}", LoadSpec())
    with load, pytest.raises(MeasurementError, match="pgbench ended with status 1: connection"):
        load.wait_ready()
    with pytest.raises(MeasurementError, match="cannot connect to the server"):
        initialise(cluster.binaries, f"host={tmp_path}")


# ------------------------------------------------------------------------------ databases


def test_our_database_can_be_filled_anew_and_dropped(cluster: Cluster) -> None:
    made = initialise(cluster.binaries, cluster.dsn(), 1, "pgtare_bench_mine")
    again = initialise(cluster.binaries, cluster.dsn(), 2, "pgtare_bench_mine")
    assert made.name == again.name
    with cluster.connect(made.name) as conn:
        assert conn.execute("SELECT count(*) FROM pgbench_branches").fetchone() == (2,)
        drop_database(cluster.dsn(), made.name)
    with pytest.raises(psycopg.OperationalError):
        cluster.connect(made.name)
    drop_database(cluster.dsn(), made.name)


@pytest.mark.parametrize("comment", [None, "pgtare load database other: made by pgtare"])
def test_a_database_that_is_not_ours_is_not_touched(cluster: Cluster, comment: str | None) -> None:
    with cluster.connect() as conn:
        conn.execute("CREATE DATABASE shop")
        try:
            if comment:
                conn.execute(f"COMMENT ON DATABASE shop IS '{comment}'")
            with cluster.connect("shop") as shop:
                shop.execute("CREATE TABLE pgbench_accounts AS SELECT 42 AS precious")
            for touch in (
                lambda: initialise(cluster.binaries, cluster.dsn(), 1, "shop"),
                lambda: drop_database(cluster.dsn(), "shop"),
            ):
                with pytest.raises(UsageError, match="database shop was not made by pgtare"):
                    touch()
            with cluster.connect("shop") as shop:
                assert shop.execute("SELECT precious FROM pgbench_accounts").fetchone() == (42,)
        finally:
            conn.execute("DROP DATABASE shop")


def test_a_renamed_copy_is_not_ours(cluster: Cluster) -> None:
    made = initialise(cluster.binaries, cluster.dsn())
    with cluster.connect() as conn:
        conn.execute(f"ALTER DATABASE {made.name} RENAME TO kept")
        with pytest.raises(UsageError, match="not made by pgtare"):
            drop_database(cluster.dsn(), "kept")
        conn.execute("DROP DATABASE kept")


def test_a_failed_initialisation_leaves_no_database(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pgtare.postgres.load.database.create_tables", fail)
    with pytest.raises(KeyboardInterrupt):
        initialise(cluster.binaries, cluster.dsn(), 1, "pgtare_bench_failed")
    with pytest.raises(psycopg.OperationalError):
        cluster.connect("pgtare_bench_failed")


def test_a_role_without_rights_is_reported(cluster: Cluster) -> None:
    with cluster.connect() as conn:
        conn.execute("CREATE ROLE weak LOGIN")
    with pytest.raises(MeasurementError, match=r"refused CREATE DATABASE .*permission denied"):
        initialise(cluster.binaries, f"{cluster.dsn()} user=weak")


# ------------------------------------------------------------------------------ the catalogue


def known_to(conn: psycopg.Connection[Any]) -> list[Entry]:
    """The instruments of this version of PostgreSQL."""
    major = conn.info.server_version // 10000
    return [e for e in CONTRIBUTED if (e.needs.min_version or major) <= major]


def test_the_server_offers_all_that_the_catalogue_needs(conn: psycopg.Connection[Any]) -> None:
    facts = read_facts(conn)
    assert facts.preloaded == ("pg_stat_statements", "auto_explain")
    assert {e.name: availability(e, facts) for e in known_to(conn)} == {
        e.name: [] for e in known_to(conn)
    }
    for entry in known_to(conn):
        for settings in (entry.base, *(v.settings for v in entry.variants.values())):
            for name, value in settings.items():
                conn.execute("SELECT set_config(%s, %s, false)", (name, value))
    found = snapshot(conn, [Chosen.variant(e, name) for e in CONTRIBUTED for name in e.variants])
    assert len(found.readings) == 6
    assert {sql: r.error for sql, r in found.readings.items() if r.value is None} == {}


def test_a_user_without_rights_gets_reasons_not_errors(cluster: Cluster) -> None:
    with cluster.connect("template1") as admin:
        with contextlib.suppress(psycopg.errors.DuplicateObject):
            admin.execute("CREATE ROLE blind LOGIN")
        admin.execute("REVOKE ALL ON pg_stat_user_functions FROM PUBLIC")
    with psycopg.connect(cluster.dsn("template1"), user="blind") as conn:
        facts = read_facts(conn)
        assert facts.preloaded is None
        assert facts.loaded("auto_explain")
        found = snapshot(conn, choose(CATALOGUE, ["pg_stat_statements", "track_functions"]))
    errors = {sql.split()[-1]: reading.error for sql, reading in found.readings.items()}
    assert "does not exist" in errors["pg_stat_statements"]
    assert "permission denied" in errors["pg_stat_user_functions"]


def counter(sql: str) -> Chosen:
    return Chosen("mine", {"jit": "on"}, rules=(SqlRule(sql=sql, label="x"),))


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("DELETE FROM public.pgbench_tellers RETURNING 1", "read-only transaction"),
        ("COMMIT; DELETE FROM public.pgbench_tellers", "multiple commands"),
        ("SELECT pg_sleep(60)", "statement timeout"),
        ("SELECT 1, 2", "does not return one number"),
        ("SELECT 'x'", "does not return one number"),
        ("SELECT NULL::int", "does not return one number"),
        ("SELECT 'NaN'::float8", "not a finite number"),
        ("SELECT 1 WHERE false", "does not return one number"),
        ("nonsense", "syntax error"),
    ],
)
@pytest.mark.parametrize("autocommit", [True, False])
def test_a_users_counter_can_harm_nothing(
    cluster: Cluster,
    bench: BenchDatabase,
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
    error: str,
    autocommit: bool,
) -> None:
    # on a busy machine what takes no time may take longer than 0.1 s as well
    limit_ms = 100 if "pg_sleep" in sql else 60_000
    monkeypatch.setattr("pgtare.weighing.instruments.counters.STATEMENT_TIMEOUT_MS", limit_ms)
    with cluster.connect(bench.name, autocommit=autocommit) as conn:
        found = snapshot(conn, [counter(sql)])[sql]
        assert found.value is None
        assert error in found.error
        assert conn.execute("SELECT count(*) FROM pgbench_tellers").fetchone() == (10,)
        assert conn.execute("SHOW statement_timeout").fetchone() == ("0",)
        conn.execute("CREATE TEMP TABLE still_writable ()")


def test_a_lost_connection_makes_counters_unreadable(cluster: Cluster) -> None:
    with cluster.connect() as conn, cluster.connect() as other:
        other.execute("SELECT pg_terminate_backend(%s)", (conn.info.backend_pid,))
        found = snapshot(conn, [counter("SELECT 1")])
    assert "terminat" in found["SELECT 1"].error


def test_calls_are_proved_until_entries_are_dropped(conn: psycopg.Connection[Any]) -> None:
    (chosen,) = choose(CATALOGUE, ["pg_stat_statements"])
    arm = np.full(50, int(UnitFlag.EXECUTED), dtype=np.uint16)

    def after(settings: dict[str, str], statements: list[str]) -> str:
        before = snapshot(conn, [chosen])
        for name, value in settings.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name, value))
        for statement in statements:
            conn.execute(statement.encode())
        for name, value in chosen.base.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name, value))
        return judge_counter(rule(chosen), arm, before, snapshot(conn, [chosen])).state

    same = ["SELECT count(*) FROM pgbench_branches"] * 50
    assert after(chosen.settings, same) == "active"
    assert after(chosen.base, same) == "missing"
    # 200 entries are kept; 300 different statements make it drop some.
    different = [f"SELECT {', '.join('1' * n)}" for n in range(1, 301)]
    assert after(chosen.settings, different) == "unknown"


def rule(chosen: Chosen) -> SqlRule:
    (found,) = [r for r in chosen.rules if isinstance(r, SqlRule)]
    return found


def counter_state(
    conn: psycopg.Connection[Any], name: str, settings: dict[str, str], work: list[str]
) -> str:
    """What the instrument's counter says after 20 transactions of this work in a session."""
    (chosen,) = choose(CATALOGUE, [name])
    before = snapshot(conn, [chosen])
    with psycopg.connect(conn.info.dsn, autocommit=True) as session:
        for setting, value in settings.items():
            session.execute("SELECT set_config(%s, %s, false)", (setting, value))
        for statement in work * 20:
            session.execute(statement.encode())
    time.sleep(1.2)
    arm = np.full(20, int(UnitFlag.EXECUTED), dtype=np.uint16)
    applying = [
        r
        for r in chosen.rules
        if isinstance(r, SqlRule) and r.applies(conn.info.server_version // 10000)
    ]
    assert len(applying) == 1
    return judge_counter(applying[0], arm, before, snapshot(conn, [chosen])).state


@pytest.mark.slow
def test_timing_is_active_missing_or_idle(conn: psycopg.Connection[Any]) -> None:
    """Of writing WAL, and of functions."""
    on, off = {"track_wal_io_timing": "on"}, {"track_wal_io_timing": "off"}
    write, read = ["UPDATE pgbench_branches SET bbalance = 1"], ["SELECT 1"]
    assert counter_state(conn, "track_wal_io_timing", on, write) == "active"
    assert counter_state(conn, "track_wal_io_timing", off, write) == "missing"
    assert counter_state(conn, "track_wal_io_timing", on, read) == "idle"
    conn.execute(
        "CREATE OR REPLACE FUNCTION one() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'"
    )
    on, off = {"track_functions": "pl"}, {"track_functions": "none"}
    assert counter_state(conn, "track_functions", on, ["SELECT one()"]) == "active"
    assert counter_state(conn, "track_functions", on, read) == "idle"
    assert counter_state(conn, "track_functions", off, ["SELECT one()"]) == "idle"
