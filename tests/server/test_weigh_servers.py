"""Servers as arms: two of them compared by sessions of the driver's on each."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import arm, in_process, pgtare, read, refused, start_pgtare
from tests.loads import until_it_measures
from tests.pgbouncer import pooler
from tests.sessions import eventually, session

pytestmark = pytest.mark.server

SLOWER = "SELECT pg_sleep(0.002) WHERE current_setting('work_mem') = '5MB'"


@pytest.fixture(scope="module")
def two(wheel: Binaries) -> Iterator[tuple[str, str]]:
    """Connection strings of two servers; only the second has work_mem = 5MB."""
    with Cluster(wheel, {}) as first, Cluster(wheel, {"work_mem": "5MB"}) as second:
        yield first.dsn(), second.dsn()


def servers(first: str, second: str) -> str:
    return f'--server "a: {first}" --server "b: {second}"'


def test_two_servers_are_compared(two: tuple[str, str], tmp_path: Path) -> None:
    """Three seconds hold too few sessions for a verdict, but all that one is made of."""
    kept = tmp_path / "servers" / "x"
    kept.parent.mkdir()
    for _ in range(4):  # one long wait of a busy machine may be more than all that is compared
        shutil.rmtree(kept, ignore_errors=True)
        done = pgtare(f'weigh {servers(*two)} --sql "{SLOWER}" -d 3 --out {kept}')
        assert done.returncode == 0, done.stderr
        result = read(kept / "result.json")
        found = arm(result, "b")
        if 1_000 < found["answer"]["us"]["estimate"] < 10_000:
            break
    assert done.stderr.startswith("pgtare: comparing b (PostgreSQL 18"), done.stderr
    words = " ".join(done.stdout.split())
    assert "compared with a, per transaction" in words
    assert "control (a again)" in words
    assert "Their settings differ: work_mem (4096 kB / 5120 kB)" in words, words
    assert 1_000 < found["answer"]["us"]["estimate"] < 10_000  # the rest is a busy machine
    outside = result["design"]["outside"]
    assert [one["name"] for one in outside["servers"]] == ["a", "b"]
    assert all(one["system_identifier"] for one in outside["servers"])
    assert outside["servers"][1]["settings"] == {"work_mem": "5120 kB"}

    printed = in_process("report {}", kept).stdout
    assert printed.splitlines()[0] == done.stdout.splitlines()[0]
    assert "compares servers" in refused(f"fleet report {tmp_path}", status=1)
    page = (kept / "report.html").read_text()
    assert "b compared with a" in page
    assert "cost when left on" not in page


@pytest.mark.slow
def test_sessions_are_made_anew_and_count_as_one_each(two: tuple[str, str], tmp_path: Path) -> None:
    done = pgtare(f"weigh {servers(*two)} -d 6 --out {tmp_path / 'w'}")
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w" / "result.json")
    # a second, or more where to connect takes longer than a tenth of that
    assert 1.0 <= result["design"]["outside"]["session_s"] < 2.0
    assert 3 <= result["design"]["blocks"] <= 6  # the sessions, not the hundreds of bursts
    assert arm(result, "b")["answer"]["verdict"] == "inconclusive"


@contextlib.contextmanager
def slow_to_connect(cluster: Cluster, delay_s: float) -> Iterator[str]:
    """A connection string for a way to the server on which each connect takes longer."""

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    class Through(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            time.sleep(delay_s)
            with socket.socket(socket.AF_UNIX) as behind:
                behind.connect(str(cluster.socket_directory / f".s.PGSQL.{cluster.port}"))
                back = threading.Thread(target=pass_on, args=(behind, self.request))
                back.start()
                pass_on(self.request, behind)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Through) as way:
        way.daemon_threads = True
        threading.Thread(target=way.serve_forever).start()
        try:
            info = conninfo_to_dict(cluster.dsn())
            yield make_conninfo("", **{**info, "host": "127.0.0.1", "port": way.server_address[1]})
        finally:
            way.shutdown()


@pytest.mark.slow
def test_slow_connects_leave_time_to_measure(wheel: Binaries, tmp_path: Path) -> None:
    """Longer than a session was to last."""
    with Cluster(wheel, {}) as cluster, slow_to_connect(cluster, 1.1) as dsn:
        done = pgtare(f"weigh {servers(cluster.dsn(), dsn)} -d 6 --out {tmp_path / 'w'}")
    assert done.returncode == 0, done.stderr
    assert "connecting takes 1." in done.stderr
    result = read(tmp_path / "w" / "result.json")
    outside = result["design"]["outside"]
    assert 1.1 < outside["connect_s"] < 3
    assert outside["session_s"] > 9 * 1.1
    assert result["design"]["blocks"] == 1  # the six seconds are too short for a second session
    assert "to make all of them anew" in " ".join(done.stdout.split())


def test_a_server_compared_with_itself_is_said_to_be(two: tuple[str, str]) -> None:
    done = in_process(f"weigh {servers(two[0], two[0])} --dry-run")
    assert done.returncode == 0, done.stderr
    assert "b and a are the same server" in done.stdout


def test_a_server_is_the_same_in_another_time_zone(two: tuple[str, str]) -> None:
    elsewhere = make_conninfo(two[0], options="-c TimeZone=Asia/Tokyo -c DateStyle=German")
    done = in_process(f"weigh {servers(two[0], elsewhere)} --dry-run")
    assert done.returncode == 0, done.stderr
    assert "b and a are the same server" in done.stdout


def test_a_server_that_logs_statements_is_named_beforehand(two: tuple[str, str]) -> None:
    loud = make_conninfo(two[1], options="-c log_min_duration_statement=0")
    done = in_process(f"weigh {servers(two[0], loud)} --dry-run")
    assert done.returncode == 0, done.stderr
    assert "the log of b grows by up to " in done.stdout
    assert "the log of a" not in done.stdout


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("pg_stat_statements", "leave out instruments and --arm"),
        ("--dsn 'dbname=x'", "leave out --dsn"),
        ("--pg-config /usr/bin/pg_config", "leave out --pg-config"),
        ("--allow log_statement", "leave out --allow"),
        ("--slice-ms 50-150", "--slice-ms is for --unit slice"),
        ("--budget 3%", "leave out --budget"),
        ("--why --dry-run", "needs the server module"),
        ("--dry-run --sql 'garbage; DELETE'", "begins with GARBAGE"),
        ("--summary x.md --dry-run", "give --at-most"),
        ("--server 'a: dbname=z'", "a name of its own"),
        ("--server control:dbname=z", "give a name of letters"),
        ("--server 'base: dbname=z'", "none of them base or control"),
        ("-c 4", "leave out --clients"),
        ("--unit slice", "needs the server module"),
        (
            "--protocol prepared --sql 'SELECT FROM nowhere'",
            "refuses a statement of --sql: relation",
        ),
        ("--sql 'SELECT 1/0'", "a: division by zero"),
        ("--sql 'DELETE FROM pg_class'", "add --writes"),
        ("--sql 'SELECT FROM nowhere'", "refuses the script: a: relation"),
        ("--inject-ns 100", "leave out"),
    ],
)
def test_what_cannot_be_compared_says_why(two: tuple[str, str], more: str, words: str) -> None:
    assert words in refused(f"weigh {servers(*two)} -d 3 {more}")


def test_one_server_is_not_compared(two: tuple[str, str]) -> None:
    assert "name at least two" in refused(f'weigh --server "a: {two[0]}"')


def test_a_password_in_a_server_is_not_repeated() -> None:
    sentence = refused("weigh --server 'host=x password=hush17' --server 'b: host=y'")
    assert "hush17" not in sentence


def test_a_pooler_is_refused(wheel: Binaries, two: tuple[str, str]) -> None:
    with Cluster(wheel, {}) as third, pooler(third, "transaction") as through:
        assert "b: the connection goes through a pooler" in refused(
            f"weigh {servers(two[0], through.dsn)} -d 3"
        )


@pytest.mark.slow
def test_a_server_that_stops_ends_it_without_a_verdict(
    wheel: Binaries, two: tuple[str, str]
) -> None:
    with Cluster(wheel, {}) as third:
        running = start_pgtare(f"weigh {servers(two[0], third.dsn())} -d 30")
        until_it_measures(third)
        third.stop()
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "THE TRIAL ENDED EARLY" in " ".join(str(out).split())


def test_a_killed_driver_leaves_no_session(wheel: Binaries) -> None:
    with Cluster(wheel, {}) as first, Cluster(wheel, {}) as second:
        running = start_pgtare(f"weigh {servers(first.dsn(), second.dsn())} -d 60")
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgtare'"
        with first.connect(autocommit=True) as conn:
            eventually(lambda: (conn.execute(count).fetchone() or (0,))[0] >= 3)
            running.send_signal(signal.SIGKILL)
            running.wait()
            eventually(lambda: (conn.execute(count).fetchone() or (1,))[0] == 0)


@pytest.mark.slow
def test_a_limit_decides_about_a_server(two: tuple[str, str], tmp_path: Path) -> None:
    """The second server takes ten times as long."""
    summary = tmp_path / "cost.md"
    done = pgtare(
        f'weigh {servers(*two)} --sql "{SLOWER}" -d 60 --at-most 50% --summary {summary}',
        timeout=400,
    )
    assert done.returncode == 10, (done.stdout, done.stderr)
    assert "| server |" in summary.read_text()
    assert "| b | " in summary.read_text()


@pytest.fixture
def limited(wheel: Binaries) -> Iterator[Cluster]:
    """A server whose sessions may be idle for half a second, with a function that is up to harm."""
    with Cluster(wheel, {"idle_session_timeout": "500ms"}) as cluster:
        with session(cluster, options="-c idle_session_timeout=0") as conn:
            conn.execute(
                "CREATE FUNCTION writes_next() RETURNS text"
                " RETURN set_config('default_transaction_read_only', 'off', false)"
            )
        yield cluster


def test_a_function_that_lets_the_next_transaction_write_is_refused(limited: Cluster) -> None:
    for way in (servers(limited.dsn(), limited.dsn()), f'--outside --dsn "{limited.dsn()}" x'):
        arms = way.replace(" x", " --arm 'x: work_mem=8MB'")
        sentence = refused(f"weigh {arms} -d 3 --sql 'SELECT writes_next()'")
        assert "default_transaction_read_only is off instead of on" in sentence


@pytest.mark.slow
def test_sessions_that_rest_are_not_ended(limited: Cluster, tmp_path: Path) -> None:
    done = pgtare(
        f"weigh {servers(limited.dsn(), limited.dsn())} -d 12 --sql 'SELECT pg_sleep(0.3)'"
        f" --output {tmp_path / 'w'}"
    )
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w")
    assert result["design"]["stopped_by"] == "time"
    # a quarter of the time, and a tenth to connect
    assert result["design"]["outside"]["server_busy_pct"] < 33


@pytest.mark.slow
def test_too_few_sessions_decide_no_limit(two: tuple[str, str]) -> None:
    """The second server takes three to five times as long."""
    done = pgtare(f'weigh {servers(*two)} --sql "{SLOWER}" -d 4 --at-most 50%')
    assert done.returncode == 11, (done.stdout, done.stderr)
    assert "too short for an answer: 12 sessions are needed" in done.stderr


def test_a_server_that_cannot_be_reached_is_named(two: tuple[str, str]) -> None:
    sentence = refused(f"weigh {servers(two[0], 'host=/nowhere')} -d 3", status=1)
    assert "b: cannot connect to the server" in sentence
