"""Weighing from outside: a server without any module, and roles that may set little."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from bench.truth.loads import certificate
from bench.truth.standby import standby

from pgtare.errors import UsageError
from pgtare.postgres import module_setup
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.weighing.instruments import requirements
from pgtare.weighing.outside import recording
from pgtare.weighing.outside import run as outside_run
from pgtare.weighing.outside.servers import infos, look
from pgtare.weighing.outside.session import control_session, driven_session, end
from pgtare.weighing.outside.settings_probe import own_values
from pgtare.weighing.outside.transactions import Sql
from pgtare.weighing.outside.wire import Wire
from pgtare.weighing.weigh.request import ServerAddress
from pgtare.weighing.weigh.result import describe_server
from tests.commands import arm, in_process, pgtare, read, read_until, refused, start_pgtare
from tests.loads import until_it_measures
from tests.pgbouncer import pooler
from tests.sessions import eventually

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def managed(wheel: Binaries) -> Iterator[Cluster]:
    """A server like a provider's: pg_stat_statements, nothing of ours, and a role without rights.

    That role may set what its provider granted.
    """
    with Cluster(wheel, {"log_destination": "stderr"}, ["pg_stat_statements"]) as cluster:
        with cluster.connect(autocommit=True) as conn:
            conn.execute("CREATE ROLE tenant LOGIN")
            conn.execute("CREATE DATABASE app OWNER tenant")
            conn.execute("GRANT SET ON PARAMETER pg_stat_statements.track TO tenant")
            conn.execute("GRANT SET ON PARAMETER compute_query_id TO tenant")
            conn.execute("GRANT SET ON PARAMETER pg_stat_statements.track_planning TO tenant")
            conn.execute("GRANT pg_read_all_stats TO tenant")
        with cluster.connect("app", autocommit=True) as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements")
            conn.execute("CREATE TABLE orders (id int PRIMARY KEY, what text)")
            conn.execute("INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 1000) n")
            conn.execute("GRANT ALL ON orders TO tenant")
        yield cluster


def of_tenant(cluster: Cluster) -> str:
    return f"{cluster.dsn('app')} user=tenant"


def test_a_server_without_the_module_is_weighed_from_outside(
    managed: Cluster, tmp_path: Path
) -> None:
    done = pgtare(
        "weigh pg_stat_statements --dsn {} --duration 3 --out {}",
        of_tenant(managed),
        tmp_path / "w",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("pgtare: weighing from outside:"), done.stderr
    assert "at most a quarter of the time" in done.stderr
    assert "weighed from outside" in " ".join(done.stdout.split())  # an alarm may come first
    result = read(tmp_path / "w" / "result.json")
    assert result["design"]["unit"] == "burst"
    found = arm(result, "pg_stat_statements")
    assert found["answer"]["basis"] == "a driver's bursts"
    assert found["answer"]["us"]["estimate"] is not None
    assert found["answer"]["waiting_us"]["estimate"] is not None
    assert found["proof"]["state"] == "active", found["proof"]
    assert result["server"]["module"] is None
    assert 0 < result["design"]["outside"]["server_busy_pct"] < 35

    again = in_process("report {} --json", tmp_path / "w")
    assert again.returncode == 0, again.stderr
    assert '"a driver\'s bursts"' in again.stdout
    printed = in_process("report {}", tmp_path / "w").stdout
    assert printed.splitlines()[0] == done.stdout.splitlines()[0]


def test_statements_of_ones_own_are_weighed(managed: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "orders.sql"
    script.write_text(
        "\\set id random(1, 1000)\nBEGIN;\nSELECT what FROM orders WHERE id = :id;\n"
        "UPDATE orders SET what = 'y' WHERE id = :id;\nEND;\n"
    )
    sentence = refused("weigh pg_stat_statements --dsn {} -f {} -d 3", of_tenant(managed), script)
    assert "UPDATE does more than read: add --writes" in sentence
    done = pgtare(
        "weigh pg_stat_statements --dsn {} -f {} --writes -d 3 --output {}",
        of_tenant(managed),
        script,
        tmp_path / "w.json",
    )
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "w.json")["load"]["script"] == "orders.sql"
    with managed.connect("app", autocommit=True) as conn:
        row = conn.execute("SELECT count(*) FROM orders WHERE what = 'y'").fetchone()
        assert row is not None
        assert row[0] > 10


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "weigh track_io_timing",
            "this role may not set track_io_timing: a superuser can GRANT SET ON PARAMETER "
            'track_io_timing TO "tenant";',
        ),
        ("weigh auto_explain", "auto_explain is not loaded"),
        ("weigh --arm 'x: wal_level=logical'", "wal_level is fixed when the server starts"),
        ("weigh --arm 'x: log_checkpoints=on'", "no session can set log_checkpoints"),
        (
            "weigh --arm 'x: local_preload_libraries=auto_explain'",
            "local_preload_libraries is fixed when a session begins: compare sessions",
        ),
        (
            "weigh --arm 'x: log_connections=on'",
            "log_connections is fixed when a session begins: compare sessions",
        ),
        ("weigh --arm 'x: nothing.at_all=1'", "this server has no setting nothing.at_all"),
        ("weigh --arm 'x: work_mem=many'", "work_mem"),
        ("weigh pg_stat_statements --sql 'SELECT FROM nowhere'", "nowhere"),
        ("weigh pg_stat_statements --sql 'SELECT 1/0'", "division by zero"),
        ("weigh pg_stat_statements --sql 'SELECT 1\\; SELECT 2'", "multiple commands"),
        ("weigh pg_stat_statements --sql 'COPY orders TO STDOUT'", "cannot run COPY"),
        ("weigh pg_stat_statements --outside --unit slice", "needs the server module"),
        ("weigh --outside --inject-ns 1000", "needs the server module"),
        ("weigh pg_stat_statements --sql 'BEGIN; SELECT 1'", "leaves a transaction open"),
        (
            "weigh --arm 'x: work_mem=8MB' "
            "--sql 'SELECT set_config($$work_$$ || $$mem$$, $$1MB$$, false)'",
            "the script changes it",
        ),
        ("weigh pg_stat_statements -c 4", "leave out --clients"),
        ("weigh pg_stat_statements --outside --load tpcb-like", "give statements with --sql"),
        ("weigh pg_stat_statements --role tenant", "not weighed from outside"),
        (
            "weigh pg_stat_statements --protocol nonsense",
            "is not one of 'simple'",
        ),
        ("weigh pg_stat_statements --sql 'BEGIN READ WRITE; SELECT 1; END'", "add --writes"),
        ("weigh pg_stat_statements --sql 'VACUUM orders'", "VACUUM does more than read"),
        ("weigh pg_stat_statements --sql 'SET work_mem = 1'", "SET changes the session"),
        (
            "weigh pg_stat_statements --sql 'SELEC 1'",
            "no statement of PostgreSQL begins with SELEC",
        ),
        (
            "weigh --arm 'x: pg_stat_statements.track=top' --at-most 50%",
            "x would change nothing: pg_stat_statements.track is 'top' without it, too",
        ),
        (
            "weigh pg_stat_statements/planning --base current "
            "--arm 'x: pg_stat_statements.track=top, compute_query_id=auto'",
            "x would change nothing",
        ),
        (
            "weigh pg_stat_statements --sql 'SELECT repeat($$x$$, 99999)'",
            "more than a socket holds",
        ),
        (
            "weigh pg_stat_statements --sql 'SELECT NULL FROM generate_series(1, 5000)'",
            "a transaction returns 55 kB, more than a socket holds",
        ),
        (
            "weigh pg_stat_statements --sql 'SELECT generate_series(1, 5000000)'",
            "a transaction returns more than 1,000 kB",  # it is not read to its end
        ),
        (
            "weigh pg_stat_statements --sql 'SELECT 1 / (n - 2) FROM generate_series(1, 3) n'",
            "division by zero",
        ),
        (
            "weigh pg_stat_statements --sql 'EXPLAIN (ANALYZE) CREATE TABLE zz AS SELECT 1'",
            "does more than read: add --writes",
        ),
        (
            "weigh --arm 'x: enable_seqscan=off' --writes "
            "--sql 'BEGIN; SET LOCAL enable_seqscan = on; SELECT 1; COMMIT'",
            "overrides a setting that is weighed",
        ),
        ("weigh pg_stat_statements --dry-run --sql 'garbage; DELETE'", "begins with GARBAGE"),
        (
            "weigh pg_stat_statements track_io_timing --at-most 30%",
            "limits are for instruments that can all be weighed",
        ),
    ],
)
def test_what_cannot_be_weighed_says_why(managed: Cluster, command: str, words: str) -> None:
    assert words in refused(f"{command} --dsn {{}} -d 3", of_tenant(managed))


def test_a_transaction_that_takes_long_is_not_weighed(managed: Cluster) -> None:
    said = refused(
        "weigh --arm {} --sql {} --dsn {} -d 3",
        "x: work_mem=8MB",
        "SELECT pg_sleep(1.5)",
        of_tenant(managed),
    )
    words = r"a transaction takes ([0-9.]+) s, and the fewest blocks for an answer, 30 of each kind"
    found = re.search(f"{words}, take", said)
    assert found, said
    assert 1.5 <= float(found[1]) < 60  # and as long as the machine is busy


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "SELECT " + ", ".join(f"{n} AS {'n' * 20}{n}" for n in range(100)),
        "SELECT NULL, NULL, repeat('x', n) FROM generate_series(1, 300) n",
        "SET LOCAL work_mem = '8MB'",  # a warning: there is no transaction
    ],
)
def test_the_size_of_an_answer_is_what_the_server_sends(
    managed: Cluster, tmp_path: Path, query: str
) -> None:
    with managed.connect("app", autocommit=True) as conn:
        wire = Wire(conn, [])
        wire.measure = True
        with (tmp_path / "trace").open("w") as trace:
            conn.pgconn.trace(trace.fileno())
            wire.transaction([(Sql(query.encode(), False), [])])
            answers = wire.exchange()
            conn.pgconn.untrace()
    assert not answers.error
    lines = [line.split("\t") for line in (tmp_path / "trace").read_text().splitlines()]
    sent = sum(1 + int(cells[2]) for cells in lines if cells[1:2] == ["B"])
    assert sent * 0.8 < answers.size < sent + 40


@pytest.mark.parametrize(
    ("protocol", "statement"),
    [
        ("prepared", "SELECT what FROM many WHERE id = 7"),
        pytest.param("simple", "SELECT look_up(7)", marks=pytest.mark.slow),
    ],
)
def test_plans_do_not_outlast_the_settings_that_they_were_made_with(
    managed: Cluster, tmp_path: Path, protocol: str, statement: str
) -> None:
    """Those of prepared statements, and those within functions."""
    with managed.connect("app", autocommit=True) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS many (id int PRIMARY KEY, what text)")
        conn.execute(
            "INSERT INTO many SELECT n, 'x' FROM generate_series(1, 20000) n ON CONFLICT DO NOTHING"
        )
        conn.execute("GRANT SELECT ON many TO tenant")
        conn.execute(
            "CREATE OR REPLACE FUNCTION look_up(n int) RETURNS text LANGUAGE plpgsql STABLE AS"
            " $$ BEGIN RETURN (SELECT what FROM public.many WHERE id = n); END $$"
        )
    # on a busy machine base and control may be far off: a long wait counts as much as x
    for _ in range(4):
        done = pgtare(
            "weigh --arm {} --dsn {} --protocol {} -d 6 --output {} --sql {}",
            "x: enable_indexscan=off, enable_bitmapscan=off, enable_indexonlyscan=off",
            of_tenant(managed),
            protocol,
            tmp_path / "w.json",
            statement,
        )
        assert done.returncode == 0, done.stderr
        found = arm(read(tmp_path / "w.json"), "x")["answer"]["pct"]["estimate"]
        if found > 100:
            break
    assert found > 100


def test_a_superusers_own_settings_are_not_those_of_our_questions(managed: Cluster) -> None:
    """These keep themselves out of pg_stat_statements."""
    assert "x would change nothing: pg_stat_statements.track is 'top' without it" in refused(
        "weigh --arm 'x: pg_stat_statements.track=top' --dsn {} -d 2", managed.dsn("app")
    )
    with control_session(managed.dsn("app")) as conn:
        names = ["pg_stat_statements.track"]
        assert own_values(conn, names) == {names[0]: "top"}
        assert describe_server(conn, None, "", names)["settings"][names[0]] == "top"


def test_what_our_sessions_set_for_themselves_is_not_what_arms_are_compared_with(
    managed: Cluster,
) -> None:
    """The base has what the role's own sessions have; an arm that has the same is refused."""
    own = {
        "default_transaction_isolation": "serializable",
        "lock_timeout": "0",
        "search_path": '"$user", public',
    }
    dsn = f"{of_tenant(managed)} options='-c default_transaction_isolation=serializable'"
    with control_session(dsn) as control, driven_session(dsn, control, writes=False) as driven:
        assert own_values(control, list(own)) == own
        assert own_values(driven, list(own)) == own
        assert driven.execute("SHOW lock_timeout").fetchone() == ("5s",)
    for name, value in own.items():
        sentence = refused("weigh --arm {} --dsn {} --at-most 50%", f"x: {name}='{value}'", dsn)
        assert "x would change nothing" in sentence


def test_a_server_that_is_too_old_is_named(
    managed: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 140_011)
    with (
        pytest.raises(UsageError, match="PostgreSQL 14: from outside, 15 and later"),
        control_session(managed.dsn("app")),
    ):
        pass


def test_a_host_that_vanishes_is_noticed_by_the_session_that_watches(managed: Cluster) -> None:
    """Else TCP tries for a quarter of an hour."""
    with control_session(managed.dsn("app")) as conn:
        given = conn.info.get_parameters()
    assert given["tcp_user_timeout"] == "15000"
    assert (given["keepalives_idle"], given["keepalives_count"]) == ("15", "3")


def test_transactions_that_only_read_by_default_are_no_standby(managed: Cluster) -> None:
    sentence = refused(
        "weigh --arm 'x: work_mem=8MB' --writes --sql {} --dsn {} -d 2",
        "DELETE FROM orders WHERE id = -1",
        f"{of_tenant(managed)} options='-c default_transaction_read_only=on'",
    )
    assert "transactions only read by default here" in sentence
    assert "BEGIN READ WRITE" in sentence


def test_the_settings_in_which_sessions_differ_are_all_found(managed: Cluster) -> None:
    """Also those that we set for our own questions, or that come with the connection."""
    dsn = managed.dsn("app")
    others = f"{dsn} options='-c default_transaction_isolation=serializable -c jit=off'"
    found = []
    for name, each in (("a", dsn), ("b", others)):
        with control_session(each) as conn:
            found.append(look(ServerAddress(name, each), conn))
    differ = infos(found)[1].settings
    assert differ == {"default_transaction_isolation": "serializable", "jit": "off"}


def test_a_forgotten_dsn_is_named() -> None:
    assert "name the server with --dsn" in refused("weigh pg_stat_statements --sql 'SELECT 1'")


@pytest.mark.slow
def test_what_is_left_out_is_said_and_the_rest_weighed(managed: Cluster, tmp_path: Path) -> None:
    done = pgtare(
        "weigh pg_stat_statements track_io_timing --dsn {} -d 3 --output {}",
        of_tenant(managed),
        tmp_path / "w.json",
    )
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert "Left out: track_io_timing" in printed
    assert re.search(r"track_io_timing [– ]+left out: see below", printed)
    assert list(read(tmp_path / "w.json")["design"]["outside"]["left_out"]) == ["track_io_timing"]
    assert [each["name"] for each in read(tmp_path / "w.json")["arms"]] == [
        "base",
        "control",
        "pg_stat_statements",
    ]


def test_a_damaged_extension_of_others_is_no_obstacle(
    managed: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL lists no extension at all then."""
    monkeypatch.setattr(module_setup, "_AVAILABLE", "SELECT 1 / 0")
    with managed.connect("app", autocommit=True) as conn:
        facts = requirements.read_facts(conn)
    assert facts.available is None
    assert "pg_stat_statements" in facts.extensions


def test_a_dry_run_measures_nothing(managed: Cluster) -> None:
    done = in_process("weigh pg_stat_statements --dsn {} --dry-run", of_tenant(managed))
    assert done.returncode == 0, done.stderr
    assert "weighing from outside" in done.stdout
    assert "pg_stat_statements.track = 'top'" in done.stdout


@pytest.mark.slow
def test_what_has_the_wanted_value_already_needs_no_right(managed: Cluster) -> None:
    """Where pg_stat_statements is loaded, compute_query_id = auto is on."""
    with managed.connect(autocommit=True) as conn:
        conn.execute("CREATE ROLE modest LOGIN")
        conn.execute("GRANT SET ON PARAMETER pg_stat_statements.track TO modest")
    dsn = f"{managed.dsn('app')} user=modest"
    sentence = refused("weigh pg_stat_statements --dsn {}", dsn)
    assert "this role may not set compute_query_id:" in sentence
    assert "pg_stat_statements_prepared leaves it alone" in sentence
    listed = in_process("instruments --dsn {} --json", dsn)
    missing = {each["name"]: each["missing"] for each in json.loads(listed.stdout)["instruments"]}
    assert "this role may not set compute_query_id" in missing["pg_stat_statements"][0]
    assert missing["pg_stat_statements_prepared"] == []
    done = in_process("weigh pg_stat_statements_prepared --dsn {} --dry-run", dsn)
    assert done.returncode == 0, done.stderr
    assert "pg_stat_statements.track = 'top'" in done.stdout
    assert "compute_query_id" not in done.stdout
    done = in_process("weigh pg_stat_statements_prepared --dsn {} -d 2 --json", dsn)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("said", "after_s"),
    [
        pytest.param("", 0.0, id="probing"),
        pytest.param("warming up", 2.0, id="measuring"),
    ],
)
def test_a_killed_driver_leaves_nothing(managed: Cluster, said: str, after_s: float) -> None:
    """Its settings were its sessions' own, and these end with it."""
    command = start_pgtare("weigh pg_stat_statements --dsn {} -d 60", of_tenant(managed))
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgtare'"
    try:
        with managed.connect("app", autocommit=True) as conn:

            def sessions() -> int:
                row = conn.execute(query.encode()).fetchone()
                assert row is not None
                return int(row[0])

            if said:
                read_until(command, said)
            else:
                eventually(lambda: sessions() >= 1)
            time.sleep(after_s)
            os.killpg(command.pid, signal.SIGKILL)
            eventually(lambda: sessions() == 0)
            changed = conn.execute(
                "SELECT name FROM pg_settings WHERE source = 'session' AND name LIKE 'pg_stat%'"
            ).fetchall()
            assert not changed
    finally:
        command.kill()
        command.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_keeps_what_was_measured(
    managed: Cluster, tmp_path: Path, how: signal.Signals
) -> None:
    """CI ends jobs, and `timeout` commands, by SIGTERM."""
    command = start_pgtare(
        "weigh pg_stat_statements --dsn {} -d 60 --output {}", of_tenant(managed), tmp_path / "w"
    )
    read_until(command, "weighing from outside")
    until_it_measures(managed)
    os.killpg(command.pid, how)
    out, err = command.communicate(timeout=30)
    assert command.returncode == 130, err
    assert "Traceback" not in err
    assert "PARTIAL" in out
    assert read(tmp_path / "w")["design"]["partial"]


def test_an_interrupt_before_anything_is_measured_is_one(
    managed: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recording, "_until_end", interrupted)
    done = in_process("weigh --arm 'x: work_mem=8MB' --dsn {} -d 2", of_tenant(managed))
    assert done.returncode == 130, done.stderr
    assert "nothing was measured" not in done.stderr


def test_an_interrupt_while_it_is_estimated_loses_nothing(
    managed: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def analyse(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return analysis(*arguments, **options)

    analysis = outside_run.analyse
    monkeypatch.setattr(outside_run, "analyse", analyse)
    done = in_process(
        "weigh --arm 'x: work_mem=8MB' --dsn {} -d 2 --output {}",
        of_tenant(managed),
        tmp_path / "w",
    )
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "w")["design"]["stopped_by"] == "time"


@pytest.mark.slow
def test_a_server_that_stops_ends_it_without_a_verdict(wheel: Binaries, tmp_path: Path) -> None:
    with Cluster(wheel, {}) as cluster:
        command = start_pgtare(
            "weigh --arm 'x: work_mem=8MB' --dsn {} -d 60 --output {}",
            cluster.dsn(),
            tmp_path / "w",
        )
        read_until(command, "weighing from outside")
        until_it_measures(cluster)
        cluster.stop()
        out, err = command.communicate(timeout=60)
    assert command.returncode == 1, err
    assert "Traceback" not in err
    assert "THE TRIAL ENDED EARLY" in out
    assert arm(read(tmp_path / "w"), "x")["answer"]["verdict"] == "not_verified"


@pytest.mark.slow
def test_a_standby_is_weighed_too(wheel: Binaries, tmp_path: Path) -> None:
    with Cluster(wheel, {}, ["pg_stat_statements"]) as primary, standby(primary) as replica:
        done = pgtare(
            "weigh pg_stat_statements --dsn {} -d 3 --output {}", replica.dsn, tmp_path / "w.json"
        )
        assert done.returncode == 0, done.stderr
        assert arm(read(tmp_path / "w.json"), "pg_stat_statements")["answer"]["us"]["lo"]
        sentence = refused(
            "weigh pg_stat_statements --dsn {} -d 3 --writes --sql {}",
            replica.dsn,
            "CREATE TABLE t ()",
        )
        assert "read-only" in sentence


@pytest.mark.slow
@pytest.mark.debian
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_password_and_tls_are_no_obstacle(debian15: Binaries, tmp_path: Path) -> None:
    """The answers of a block are read from libssl's buffer, too; SCRAM leaves no password."""
    with (
        certificate() as settings,
        Cluster(debian15, dict(settings), tcp=True) as cluster,
    ):
        dsn = cluster.dsn(tcp=True, sslmode="require")
        done = pgtare("weigh --arm 'x: work_mem=8MB' --dsn {} -d 3 --out {}", dsn, tmp_path / "w")
    assert done.returncode == 0, done.stderr
    secret = psycopg.conninfo.conninfo_to_dict(dsn)["password"]
    for path in (tmp_path / "w").iterdir():
        assert str(secret).encode() not in path.read_bytes(), path
    found = read(tmp_path / "w" / "result.json")
    assert found["design"]["outside"]["failed_blocks"] == 0
    assert arm(found, "x")["answer"]["us"]["lo"] is not None


@pytest.mark.pooler
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_is_refused_and_left_as_it_was(
    managed: Cluster, mode: Literal["session", "transaction"]
) -> None:
    """Others use its sessions after us, and a killed command could not put settings back."""
    with pooler(managed, mode, "server_reset_query = ") as pool:
        before = pool.held()
        sentence = refused("weigh --arm 'x: work_mem=8MB' --dsn {} -d 2", pool.dsn)
        assert "connect to the server itself" in sentence
        for pid, held in pool.held().items():
            if pid in before:
                assert held == before[pid]
            assert held["prepared"] == []


def test_a_database_owner_gets_no_rights_of_who_weighs(managed: Cluster) -> None:
    """Operators and functions that a search path finds before those of pg_catalog."""
    with managed.connect("app", autocommit=True) as conn:
        conn.execute("CREATE SCHEMA trap")
        for line in (
            "CREATE FUNCTION trap.gain() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog"
            " AS $$ BEGIN ALTER ROLE tenant CREATEDB; END $$",
            "CREATE FUNCTION trap.less(oid, int4) RETURNS bool LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM trap.gain(); RETURN true; END $$",
            "CREATE FUNCTION trap.same(oid, oid) RETURNS bool LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM trap.gain(); RETURN true; END $$",
            "CREATE FUNCTION trap.lower(text) RETURNS text LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM trap.gain(); RETURN $1; END $$",
            "CREATE OPERATOR trap.< (leftarg = oid, rightarg = int4, function = trap.less)",
            "CREATE OPERATOR trap.= (leftarg = oid, rightarg = oid, function = trap.same)",
            "ALTER DATABASE app SET search_path = trap, pg_catalog, public",
        ):
            conn.execute(line.encode())
    try:
        done = pgtare("weigh --arm 'x: work_mem=8MB' --dsn {} -d 2", managed.dsn("app"))
        assert done.returncode == 0, done.stderr
        with managed.connect(autocommit=True) as conn:
            row = conn.execute(
                "SELECT rolcreatedb FROM pg_roles WHERE rolname = 'tenant'"
            ).fetchone()
            assert row == (False,)
    finally:
        with managed.connect(autocommit=True) as conn:
            conn.execute("ALTER DATABASE app RESET search_path")
        with managed.connect("app", autocommit=True) as conn:
            conn.execute("DROP SCHEMA trap CASCADE")


def test_a_login_whose_sessions_take_another_role_may_end_its_own(managed: Cluster) -> None:
    with managed.connect(autocommit=True) as conn:
        conn.execute("CREATE ROLE owners")
        conn.execute("CREATE ROLE vaulted LOGIN IN ROLE owners")
        conn.execute("ALTER ROLE vaulted SET role = owners")
    dsn = f"{managed.dsn('app')} user=vaulted"
    with control_session(dsn) as control, driven_session(dsn, control, writes=False) as driven:
        assert driven.execute("SELECT current_user").fetchone() == ("owners",)
        end(control, driven)
        with pytest.raises(psycopg.errors.AdminShutdown):
            driven.execute("SELECT pg_sleep(5)")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_goes_on_after_the_command(managed: Cluster, how: signal.Signals) -> None:
    """A statement that waits for a row does not write it when the row is free again."""
    with managed.connect("app", autocommit=False) as holder:
        holder.execute("UPDATE orders SET what = what WHERE id = 7")
        command = start_pgtare(
            "weigh --arm {} --dsn {} -d 60 --writes --sql {}",
            "x: work_mem=8MB",
            of_tenant(managed),
            "UPDATE orders SET what = 'late' WHERE id = 7",
        )
        try:
            read_until(command, "warming up")
            time.sleep(1)
            os.killpg(command.pid, how)
            command.communicate(timeout=60)
        finally:
            command.kill()
        with managed.connect("app", autocommit=True) as conn:

            def at_work() -> int:
                query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgtare'"
                row = conn.execute(query.encode()).fetchone()
                assert row is not None
                return int(row[0])

            eventually(lambda: at_work() == 0)  # the row is still held
        holder.rollback()
    with managed.connect("app", autocommit=True) as conn:
        row = conn.execute("SELECT what FROM orders WHERE id = 7").fetchone()
        assert row is not None
        assert row[0] != "late"


@pytest.mark.slow
def test_why_the_session_was_ended_is_said(managed: Cluster) -> None:
    command = start_pgtare("weigh --arm {} --dsn {} -d 60", "x: work_mem=8MB", of_tenant(managed))
    read_until(command, "warming up")
    time.sleep(3)
    with managed.connect("app", autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgtare' ORDER BY backend_start DESC LIMIT 1"
        )
    out, err = command.communicate(timeout=60)
    assert command.returncode == 1, err
    assert "terminating connection due to administrator command" in " ".join(out.split())


@pytest.mark.slow
def test_the_end_of_the_other_session_keeps_what_was_measured(
    managed: Cluster, tmp_path: Path
) -> None:
    command = start_pgtare(
        "weigh --arm {} --dsn {} -d 60 --output {}",
        "x: work_mem=8MB",
        of_tenant(managed),
        tmp_path / "w",
    )
    read_until(command, "warming up")
    time.sleep(3)
    with managed.connect("app", autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgtare' ORDER BY backend_start LIMIT 1"
        )
    _, err = command.communicate(timeout=60)
    assert command.returncode == 1, err
    assert "Traceback" not in err
    assert read(tmp_path / "w")["design"]["stopped_by"] == "server"


@pytest.mark.slow
def test_texts_are_utf_8_whatever_the_database_is(wheel: Binaries, tmp_path: Path) -> None:
    with Cluster(wheel, {}) as cluster:
        with cluster.connect(autocommit=True) as conn:
            conn.execute(
                "CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LC_COLLATE 'C'"
                " LC_CTYPE 'C'"
            )
        done = pgtare(
            "weigh --arm {} --dsn {} -d 2 --sql {}",
            "x: work_mem=8MB",
            cluster.dsn("latin"),
            "SELECT 1 / (length('é') = 1)::int",
        )
        assert done.returncode == 0, done.stderr
    script = tmp_path / "bad.sql"
    script.write_bytes(b"SELECT '\xff';\n")
    sentence = refused("weigh --arm 'x: work_mem=8MB' --outside -f {} -d 2", script)
    assert "UTF-8" in sentence


@pytest.mark.slow
def test_slow_statements_end_in_time(managed: Cluster, tmp_path: Path) -> None:
    began = time.monotonic()
    done = pgtare(
        "weigh --arm {} --dsn {} -d 4 --output {} --sql {}",
        "x: work_mem=8MB",
        of_tenant(managed),
        tmp_path / "w.json",
        "SELECT pg_sleep(0.1)",
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 4 + 5 + 8
    assert "transactions are slow" in done.stderr
    design = read(tmp_path / "w.json")["design"]
    assert design["outside"]["dropped"] == 0
    assert design["runs"] == {"shortest": 1, "longest": 1}


def fails_in_x(cluster: Cluster, often: int) -> str:
    """A statement that fails in an arm with work_mem = 8MB, in so many of 400 cases.

    It counts the other arms' calls, and fails from the time on that `fail_in` has set.
    """
    with cluster.connect("app", autocommit=True) as conn:
        conn.execute("DROP TABLE IF EXISTS public.failing")
        conn.execute("CREATE TABLE public.failing (since timestamptz)")
        conn.execute("GRANT SELECT ON public.failing TO tenant")
        conn.execute(
            "CREATE OR REPLACE FUNCTION public.fails(often int) RETURNS void"
            " LANGUAGE plpgsql AS $$ DECLARE"
            " n int := coalesce(nullif(current_setting('app.n', true), ''), '0')::int; BEGIN"
            " IF current_setting('work_mem') <> '8MB' THEN"
            " PERFORM set_config('app.n', (n + 1)::text, false);"
            " ELSIF n % 400 < often AND clock_timestamp() > (SELECT since FROM public.failing)"
            " THEN RAISE 'as hush17 says';"
            " END IF; END $$"
        )
    return f"SELECT fails({often})"


def fail_in(cluster: Cluster, seconds: float) -> None:
    """Let the statement fail in so many seconds."""
    with cluster.connect("app", autocommit=True) as conn:
        conn.execute(
            "INSERT INTO public.failing SELECT clock_timestamp() + %s * interval '1 s'", (seconds,)
        )


def test_an_error_ends_the_trial_and_its_words_are_not_kept(
    managed: Cluster, tmp_path: Path
) -> None:
    """They may quote a row."""
    command = start_pgtare(
        "weigh --arm {} --dsn {} -d 60 --out {} --sql {}",
        "x: work_mem=8MB",
        of_tenant(managed),
        tmp_path / "w",
        fails_in_x(managed, 400),
    )
    try:
        read_until(command, "warming up")
        until_it_measures(managed)
        fail_in(managed, 6)  # it warms up for five at most
        out, err = command.communicate(timeout=120)
    finally:
        command.kill()
    assert command.returncode == 1, out + err
    assert "the server's latest error: as hush17 says" in err
    assert "blocks ended in an error: SQLSTATE P0001" in " ".join(out.split())
    for path in (tmp_path / "w").iterdir():
        assert b"hush17" not in path.read_bytes(), path


@pytest.mark.slow
def test_an_arm_that_makes_transactions_fail_keeps_no_limit(
    managed: Cluster, tmp_path: Path
) -> None:
    """What fails is left out, with what it took."""
    statement = fails_in_x(managed, 20)
    fail_in(managed, 8)  # after the warm-up
    done = pgtare(
        "weigh --arm {} --dsn {} -d 18 --at-most 900% --output {} --sql {}",
        "x: work_mem=8MB",
        of_tenant(managed),
        tmp_path / "w.json",
        statement,
    )
    assert done.returncode == 11, done.stdout + done.stderr
    result = read(tmp_path / "w.json")
    found = arm(result, "x")
    assert result["design"]["outside"]["failed_blocks"] > 0
    assert found["answer"]["verdict"] == "not_verified"
    assert "it changes what the load does" in found["proof"]["evidence"]


@pytest.mark.slow
def test_what_costs_nothing_is_shown_to_be_below(managed: Cluster, tmp_path: Path) -> None:
    below = pgtare(
        "weigh --arm {} --dsn {} -d 240 --at-most 50% --summary {}",
        "free: work_mem=8MB",
        of_tenant(managed),
        tmp_path / "below.md",
    )
    assert below.returncode == 0, below.stdout + below.stderr
    assert "| free |" in (tmp_path / "below.md").read_text()


@pytest.mark.slow
def test_a_budget_is_that_of_all_together(managed: Cluster, tmp_path: Path) -> None:
    done = pgtare(
        "weigh --arm {} --arm {} --dsn {} -d 4 --budget 80% --output {}",
        "a: work_mem=8MB",
        "b: enable_seqscan=off",
        of_tenant(managed),
        tmp_path / "w.json",
    )
    assert done.returncode in (0, 11), done.stdout + done.stderr
    result = read(tmp_path / "w.json")
    together = arm(result, "all_together")
    assert together["settings"] == {"work_mem": "8MB", "enable_seqscan": "off"}
    assert [limit["name"] for limit in result["limits"]] == ["all_together"]
    assert "needs one" not in done.stderr
    clash = refused(
        "weigh --arm {} --arm {} --dsn {} --budget 5%",
        "a: work_mem=8MB",
        "b: work_mem=9MB",
        of_tenant(managed),
    )
    assert "cannot be on together" in clash
