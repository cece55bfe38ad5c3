"""Weighing on a running server: its own traffic, its owner's rights, and what may go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgtare.postgres import own_session
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import drop_database
from pgtare.postgres.modules import loadable
from pgtare.weighing.trials import Trials
from tests.commands import arm, in_process, pgtare, read, read_until, refused, start_pgtare, words
from tests.loads import traffic, until_it_measures
from tests.sessions import eventually, setting

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def running(wheel: Binaries) -> Iterator[Cluster]:
    """A server like a user's: pgtare and the usual libraries preloaded, a database app."""
    module = loadable(wheel)
    libraries = [module.library, "pg_stat_statements"]
    with Cluster(wheel, {}, libraries) as cluster:
        with cluster.connect(autocommit=True) as conn:
            conn.execute("CREATE DATABASE app")
            conn.execute("CREATE DATABASE bare")
            conn.execute("CREATE ROLE visitor LOGIN")
        with cluster.connect("app", autocommit=True) as conn:
            conn.execute(module.create_sql.encode())
            conn.execute("CREATE EXTENSION pg_stat_statements")
            conn.execute("CREATE TABLE pgbench_accounts (precious int)")
            conn.execute("INSERT INTO pgbench_accounts VALUES (42)")
        yield cluster


def test_weighs_the_traffic_of_another_client(running: Cluster, tmp_path: Path) -> None:
    dsn = running.dsn("app")
    with traffic(dsn, sessions=2, application_name="shop"):
        done = pgtare(
            "weigh pg_stat_statements --dsn {} --duration 3 --output {}", dsn, tmp_path / "w.json"
        )
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w.json")
    assert result["load"]["kind"] == "none"
    assert result["design"]["sessions"] == 2
    assert arm(result, "pg_stat_statements")["proof"]["state"] == "active"


@pytest.mark.slow
def test_what_took_part_is_measured(running: Cluster, tmp_path: Path) -> None:
    """One of four sessions fits, and makes about a quarter of the transactions."""
    dsn = running.dsn("app")
    query = "SELECT pg_sleep(0.002) FROM pgbench_accounts"
    with (
        traffic(dsn, sessions=1, query=query, application_name="shop"),
        traffic(dsn, sessions=3, query=query, application_name="else"),
    ):
        done = pgtare(
            "weigh track_io_timing --dsn {} --application shop --duration 5 --output {}",
            dsn,
            tmp_path / "w.json",
        )
    assert done.returncode == 0, done.stderr
    design = read(tmp_path / "w.json")["design"]
    assert design["participation"] == 1.0
    assert (design["sessions"], design["sessions_outside"]) == (1, 0)
    assert 15 < design["transactions_took_part_pct"] < 35
    printed = " ".join(done.stdout.split())
    assert "1 session took part, with" in printed


@pytest.mark.slow
def test_hole_in_the_users_own_statistics_is_announced(running: Cluster) -> None:
    """pg_stat_statements tracks on this server; track_io_timing is off anyway."""
    dsn = running.dsn("app")
    done = in_process("weigh", "pg_stat_statements", "track_io_timing", "--dsn", dsn, "--dry-run")
    printed = " ".join(done.stdout.split())
    assert "switches off what is on now: compute_query_id (now auto), pg_stat_statements.track" in (
        printed
    )
    assert "track_io_timing (now" not in printed
    assert "miss about 75 % of the transactions" in printed
    assert "--base current" in printed
    for quiet in (["pg_stat_statements", "--base", "current"], ["track_io_timing"]):
        done = in_process("weigh", *quiet, "--dsn", dsn, "--dry-run")
        assert "switches off" not in done.stdout
        own = "pg_stat_statements: on already, so with --base current it is compared with itself"
        assert (own in " ".join(done.stdout.split())) == ("current" in quiet)


@pytest.mark.slow
def test_a_database_with_tables_of_that_name_is_untouched(running: Cluster) -> None:
    message = refused(
        "weigh track_io_timing --dsn {} --load select-only --duration 2 --scale 1",
        running.dsn("app"),
    )
    assert "database of its own" in message
    done = pgtare(
        "weigh track_io_timing --dsn {} --load select-only --duration 2 --scale 1 --yes",
        running.dsn("app"),
    )
    assert done.returncode == 0, done.stderr
    with running.connect("app") as conn:
        assert conn.execute("SELECT * FROM pgbench_accounts").fetchall() == [(42,)]
        names = conn.execute("SELECT datname FROM pg_database ORDER BY 1").fetchall()
    assert names == [("app",), ("bare",), ("postgres",), ("template0",), ("template1",)]


def test_an_empty_connection_string_is_the_server_of_the_environment(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in conninfo_to_dict(running.dsn("app")).items():
        variable = "PGDATABASE" if name == "dbname" else f"PG{name.upper()}"
        monkeypatch.setenv(variable, str(value))
    done = in_process("weigh", "track_io_timing", "--dsn", "", "--dry-run")
    assert "load: the server's own traffic" in done.stdout, done.stderr


def test_dry_run_tells_and_changes_nothing(running: Cluster) -> None:
    done = pgtare(
        "weigh log_min_duration_statement --dsn {} --allow log_min_duration_statement --dry-run",
        running.dsn("app"),
    )
    assert done.returncode == 0, done.stderr
    assert "log_min_duration_statement = '0'" in done.stdout
    assert "33 % of the transactions go to the log" in done.stdout
    with own_session.connect(running.dsn("app")) as conn:
        assert not Trials(conn).status().running


def test_what_cannot_be_weighed_is_reported(running: Cluster, tmp_path: Path) -> None:
    """A library is named with the line to add; a silent server gives no number."""
    app, bare = running.dsn("app"), running.dsn("bare")
    nowhere = f"host={tmp_path} dbname=app"
    for instrument, dsn, status, said in (
        ("log_statement", app, 2, ["--allow log_statement"]),
        ("auto_explain", app, 2, ["shared_preload_libraries = ", "auto_explain"]),
        ("track_io_timing", bare, 2, ["CREATE EXTENSION pgtare", "a database that has it"]),
        ("track_io_timing", running.dsn("app", user="visitor"), 2, ["GRANT"]),
        ("track_io_timing", nowhere, 1, ["cannot connect"]),
        ("track_io_timing", "host=/tmp nonsense=1", 2, ["connection string"]),
        ("track_io_timing", app, 1, ["nothing was measured"]),
    ):
        message = refused("weigh", instrument, "--dsn", dsn, "--duration", "2", status=status)
        assert all(word in message for word in said), message


@pytest.mark.parametrize("more", ["--yes", "--dry-run"])
def test_what_has_to_be_allowed_is_refused_before_a_database_is_made(
    running: Cluster, more: str
) -> None:
    asked = ("weigh", "log_statement", "--load", "select-only", "--scale", "1", more)
    message = refused(*asked, "--dsn", running.dsn("app"))
    assert "--allow log_statement" in message
    assert "loading" not in message


def test_a_trial_without_any_session_says_so_at_once(running: Cluster) -> None:
    started = time.monotonic()
    weighing = start_pgtare("weigh track_io_timing --dsn {} --duration 60", running.dsn("app"))
    read_until(weighing, "weighing on database app")
    measuring = time.monotonic()
    read_until(weighing, "no session takes part: none that fits (database app")
    # a slow machine needs its time; this is far from the minute that the trial would last
    assert time.monotonic() - measuring < 20 + (measuring - started)
    weighing.send_signal(signal.SIGINT)
    _, err = weighing.communicate(timeout=60)
    assert weighing.returncode == 1
    assert "nothing was measured" in err


def test_second_trial_is_refused_and_stop_ends_the_first(running: Cluster, tmp_path: Path) -> None:
    dsn = running.dsn("app")
    with traffic(dsn):
        first = start_pgtare(
            "weigh track_io_timing --dsn {} --duration 60 --output {}", dsn, tmp_path / "w.json"
        )
        _wait_until_running(dsn)
        message = refused("weigh", "track_io_timing", "--dsn", dsn, "--duration", "2")
        assert "a trial is running already" in message
        status = pgtare("status", "--dsn", dsn)
        assert "a trial runs" in status.stdout
        assert "stopped" in pgtare("stop", "--dsn", dsn).stdout
        out, err = first.communicate(timeout=60)
    assert first.returncode == 1, err
    result = read(tmp_path / "w.json")
    assert result["design"]["stopped_by"] == "server"
    assert arm(result, "track_io_timing")["answer"]["verdict"] == "not_verified"
    assert "ended" in out


def test_a_trial_is_seen_whatever_the_style_of_dates(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ALTER DATABASE app SET datestyle = 'German'."""
    monkeypatch.setenv("PGDATESTYLE", "German")
    dsn = running.dsn("app")
    with own_session.connect(dsn) as conn:
        conn.execute(
            "SELECT pgtare.trial_start('{work_mem}', '{1MB,2MB}', '{0,0}', '{0,1}', 1, 60)"
        )
        assert "a trial runs: begun 2" in in_process("status", "--dsn", dsn).stdout
        assert "stopped" in in_process("stop", "--dsn", dsn).stdout


def test_kill_9_of_the_client_gives_settings_back(running: Cluster) -> None:
    dsn = running.dsn("app")
    with psycopg.connect(dsn, autocommit=True) as session:
        before = setting(session)
        client = start_pgtare(
            "weigh", "--arm", "x: work_mem=123MB", "--dsn", dsn, "--duration", "600"
        )
        _wait_until_running(dsn)
        seen = {setting(session)[0] for _ in range(100)}  # a block of three runs
        assert "123MB" in seen
        os.killpg(client.pid, signal.SIGKILL)
        client.wait()
        _wait_until_running(dsn, running=False)
        assert [setting(session) for _ in range(5)] == [before] * 5
    with traffic(dsn):
        done = pgtare("weigh", "track_io_timing", "--dsn", dsn, "--duration", "2")
    assert done.returncode == 0, done.stderr
    assert "lost its client" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_client_that_hangs_leaves_no_trial_behind(running: Cluster) -> None:
    dsn = running.dsn("app")
    with traffic(dsn):
        client = start_pgtare("weigh track_io_timing --dsn {} --duration 600", dsn)
        _wait_until_running(dsn)
        os.killpg(client.pid, signal.SIGSTOP)
        try:
            _wait_until_running(dsn, running=False)
        finally:
            os.killpg(client.pid, signal.SIGCONT)
        out, err = client.communicate(timeout=60)
    assert client.returncode == 1, (out, err)
    assert "its lease was not renewed in time" in " ".join(out.split())
    with traffic(dsn):
        done = pgtare("weigh", "track_io_timing", "--dsn", dsn, "--duration", "2")
    assert "lost its client" in " ".join(done.stdout.split())


def test_server_that_restarts_in_mid_trial(running: Cluster, tmp_path: Path) -> None:
    dsn = running.dsn("app")
    with traffic(dsn):
        client = start_pgtare(
            "weigh track_io_timing --dsn {} --duration 60 --output {}", dsn, tmp_path / "w.json"
        )
        _wait_until_running(dsn)
        until_it_measures(running)
        running.restart()
    out, err = client.communicate(timeout=60)
    assert client.returncode == 1, (out, err)
    assert "Traceback" not in err
    result = read(tmp_path / "w.json")
    assert result["design"]["stopped_by"] == "server"
    assert arm(result, "track_io_timing")["answer"]["verdict"] == "not_verified"


@pytest.mark.slow
def test_a_server_that_stops_under_a_load_takes_nothing_of_what_was_measured(
    running: Cluster, wheel: Binaries, tmp_path: Path
) -> None:
    """The load's database cannot be dropped then."""
    dsn = running.dsn("app")
    client = start_pgtare(
        "weigh track_io_timing --dsn {} --pg-config {} --load select-only --scale 1 --yes"
        " --duration 60 --output {}",
        dsn,
        wheel.pg_config,
        tmp_path / "w.json",
    )
    _wait_until_running(dsn)
    time.sleep(2)
    running.stop()
    try:
        out, err = client.communicate(timeout=60)
    finally:
        running.start()
    with running.connect() as conn:
        ((left,),) = conn.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'pgtare_bench_%'"
        ).fetchall()
    drop_database(dsn, left)
    assert client.returncode == 1, (out, err)
    assert f"database {left} is left" in err
    assert read(tmp_path / "w.json")["design"]["stopped_by"] == "server"


@pytest.mark.slow
def test_a_session_lost_before_the_trial_is_reported(
    running: Cluster, wheel: Binaries, tmp_path: Path
) -> None:
    """While the load warms up."""
    (tmp_path / "load.sql").write_text("SELECT 1;\n")
    with running.connect("app") as conn:
        client = start_pgtare(
            "weigh track_io_timing --dsn {} --script {} --pg-config {} --duration 2",
            running.dsn("app"),
            tmp_path / "load.sql",
            wheel.pg_config,
        )
        read_until(client, "warming up")
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgtare'"
        )
        _, err = client.communicate(timeout=60)
    assert client.returncode == 1, err
    assert "Traceback" not in err
    assert "the server did not answer" in err


@pytest.mark.slow
def test_a_session_that_waits_for_its_load_outlasts_idle_session_timeout(
    running: Cluster, wheel: Binaries, tmp_path: Path
) -> None:
    (tmp_path / "load.sql").write_text("SELECT 1;\n")
    done = in_process(
        "weigh track_io_timing --dsn {} --script {} --pg-config {} --duration 2",
        running.dsn("app", options="-c idle_session_timeout=1s"),
        tmp_path / "load.sql",
        wheel.pg_config,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_session_lost_just_after_the_trial_takes_nothing_of_it(
    running: Cluster, tmp_path: Path
) -> None:
    """While the sessions' counters are waited for."""
    dsn = running.dsn("app")
    with traffic(dsn), running.connect("app") as conn:
        client = start_pgtare(
            "weigh track_io_timing --dsn {} --duration 3 --output {}", dsn, tmp_path / "w.json"
        )
        _wait_until_running(dsn)
        _wait_until_running(dsn, running=False)
        time.sleep(0.3)  # the last observations are read
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgtare'"
        )
        out, err = client.communicate(timeout=60)
    assert "Traceback" not in err, (out, err)
    assert read(tmp_path / "w.json")["design"]["blocks"] > 0


@pytest.mark.slow
def test_base_current_keeps_what_is_set(running: Cluster, tmp_path: Path) -> None:
    dsn = running.dsn("app")
    with traffic(dsn, options="-c pg_stat_statements.track=top"):
        done = pgtare(
            "weigh pg_stat_statements --base current --dsn {} --duration 3 --output {}",
            dsn,
            tmp_path / "w.json",
        )
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w.json")
    assert arm(result, "base")["settings"] == {}
    # on already in the base arm: no number may be given
    assert arm(result, "pg_stat_statements")["answer"]["verdict"] == "not_verified"


@pytest.mark.slow
def test_sysbench_traffic(running: Cluster, tmp_path: Path) -> None:
    try:
        subprocess.run(["sysbench", "--version"], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("sysbench is not installed (Debian: apt-get install sysbench)")
    common = [
        *words(
            "sysbench --db-driver=pgsql --pgsql-host={} --pgsql-port={} "
            "--pgsql-user=postgres --pgsql-password= --pgsql-db=app --tables=1 "
            "--table-size=1000 --threads=2 --time=30 oltp_point_select",
            running.socket_directory,
            running.port,
        )
    ]
    subprocess.run([*common, "prepare"], check=True, capture_output=True)
    load = subprocess.Popen([*common, "run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        time.sleep(1)
        done = pgtare(
            "weigh track_io_timing --dsn {} --duration 2 --output {}",
            running.dsn("app"),
            tmp_path / "w.json",
        )
    finally:
        load.terminate()
        load.communicate()
        subprocess.run([*common, "cleanup"], check=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    design = read(tmp_path / "w.json")["design"]
    assert design["sessions"] == 2
    assert design["blocks"] > 10


def _wait_until_running(dsn: str, running: bool = True) -> None:
    def met() -> bool:
        with own_session.connect(dsn) as conn:
            return Trials(conn).status().running == running

    eventually(met, 120)
