"""The duet driver when a run ends early or goes wrong: what is kept, and what is said."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load.duet import run_duet
from pgtare.postgres.load.duet_plan import Length
from pgtare.postgres.load.duet_records import Outcome, read_records
from tests.duet_runs import SELECT_1, SHORT, assert_nothing_lost, backend_of, signal_driver
from tests.hostile_server import message
from tests.loads import during
from tests.servers import crash, reachable
from tests.sessions import eventually, one

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: The sessions of runs.
LOADS = "FROM pg_stat_activity WHERE application_name LIKE 'pgtare-load-%'"


def until_a_block_is_written(output: Path) -> None:
    """Of 8,192 records: how long that takes depends on what else the machine does."""
    eventually(lambda: output.exists() and output.stat().st_size > 100_000)


def test_a_stop_keeps_what_was_measured(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    output = tmp_path / "r"
    stopped_s: list[float] = []

    def stop() -> None:
        until_a_block_is_written(output)
        stopped_s.append(time.monotonic())
        signal_driver(output, signal.SIGINT)

    with during(stop):
        run = run_duet(driver, targets, script(SELECT_1), Length(120), output)
    assert (run.ended, run.failure) == ("signal", None)
    assert time.monotonic() - stopped_s[0] < 60  # long before its end
    assert_nothing_lost(run.records)
    assert len(run.records.rows) > 1000
    assert output.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.glob("*.plan")) == []


@pytest.mark.slow
def test_a_stop_is_seen_though_records_come_faster_than_they_are_written(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    slow = tmp_path / "slow.so"
    source = Path(__file__).parents[1] / "slow_write.c"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", source, "-o", slow], check=True
    )
    slowed = _wrapped(driver, tmp_path, f"export LD_PRELOAD={slow}")
    output = tmp_path / "r"
    with during(lambda: signal_driver(output, signal.SIGINT, 3)):
        run = run_duet(slowed, targets, script(SELECT_1, clients=2), Length(15), output)
    assert (run.ended, run.failure) == ("signal", None)
    assert_nothing_lost(run.records)


def _wrapped(driver: Path, directory: Path, before: str) -> Path:
    """The driver, started by a shell that does something first."""
    wrapper = directory / "wrapped"
    wrapper.write_text(f'#!/bin/sh\n{before}\nexec {driver} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def test_ctrl_c_in_the_caller_ends_the_driver_and_leaves_its_records(
    driver: Path, targets: Any, pair: list[Cluster], script: Any, tmp_path: Path
) -> None:
    """Fewer of them than fit a block, so that only the driver itself can have written them."""

    output = tmp_path / "r"

    def interrupt() -> None:
        eventually(output.exists)  # it is made once all sessions are there
        with pair[0].connect() as connection:
            asleep = f"SELECT count(*) {LOADS} AND wait_event = 'PgSleep'"
            eventually(lambda: one(connection, asleep))
        time.sleep(0.9)
        os.kill(os.getpid(), signal.SIGINT)

    with during(interrupt), pytest.raises(KeyboardInterrupt):
        run_duet(driver, targets, script("SELECT pg_sleep(0.005);"), Length(30), output)
    with pair[0].connect(autocommit=True) as connection:
        eventually(lambda: one(connection, f"SELECT count(*) {LOADS}") == 0)
    # the driver ends the sessions once it has written its records
    records = read_records(output)
    assert_nothing_lost(records)
    assert 0 < len(records.rows) < 8192


def test_a_killed_driver_leaves_its_whole_blocks(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    output = tmp_path / "r"

    def kill() -> None:
        until_a_block_is_written(output)
        signal_driver(output, signal.SIGKILL)

    with during(kill):
        run = run_duet(driver, targets, script(SELECT_1), Length(120), output)
    assert run.ended == "failure"
    assert run.failure == "the duet driver was ended by signal 9"
    assert len(run.records.rows) >= 1024
    assert set(run.records.rows["outcome"]) == {Outcome.OK}


def test_a_crashed_server_ends_the_run_and_says_so(
    driver: Path, targets: Any, pair: list[Cluster], script: Any, tmp_path: Path
) -> None:
    output = tmp_path / "r"
    crashed_s: list[float] = []

    def fall() -> None:
        until_a_block_is_written(output)
        with pair[1].connect() as connection:
            # that of an earlier run, which may take a while to end, is not the one
            eventually(lambda: one(connection, f"SELECT count(*) {LOADS}") == 1)
        crashed_s.append(time.monotonic())
        crash(pair[1], backend_of(pair[1]))

    with during(fall):
        run = run_duet(driver, targets, script(SELECT_1, clients=1), Length(120), output)
    assert time.monotonic() - crashed_s[0] < 60  # long before its end
    eventually(lambda: reachable(pair[1]))
    assert run.ended == "failure"
    assert run.failure is not None
    assert run.failure.startswith("the connection to cluster 1 was lost: ")
    outcomes = run.records.outcomes()
    assert outcomes["lost"] == 1
    assert outcomes["ok"] > 500


def test_a_low_limit_on_open_files_does_not_hold_for_connections(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    limited = _wrapped(driver, tmp_path, "ulimit -S -n 40")
    run = run_duet(limited, targets, script(SELECT_1, clients=30), SHORT, tmp_path / "r")
    assert run.whole, run.failure
    assert run.records.n_threads == 30


def test_a_refused_connection_is_reported(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    nowhere = "host=/nonexistent dbname=postgres user=postgres"
    with pytest.raises(
        MeasurementError, match=r"did not begin: cluster 1: cannot connect: .*nonex"
    ):
        run_duet(driver, [targets[0], nowhere], script(SELECT_1), SHORT, tmp_path / "r")
    assert list(tmp_path.glob("r*")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM missing;", 'could not be prepared: ERROR:  relation "missing"'),
        ("SELECT 1 FROM counter WHERE n = ':';", "could not be prepared"),
    ],
)
def test_a_statement_that_cannot_be_prepared_is_reported_before_the_run(
    driver: Path, targets: Any, script: Any, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(MeasurementError, match=r"cluster 0: a statement could not be") as refused:
        run_duet(driver, targets, script(text), SHORT, tmp_path / "r")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "protocol", "message", "sqlstate"),
    [
        ("\\set x random(0, 3)\nSELECT 1 / :x;", "prepared", "division by zero", b"22012"),
        ("\\set x random(0, 3)\n\\set y 1 / :x\nSELECT :y;", "prepared", "divides by zero", b""),
        ("\\set y 1 / 0\nSELECT :y;", "prepared", "divides by zero", b""),
        ("BEGIN;\nSELECT 1;", "prepared", "leaves a transaction open", b""),
        ("COPY seen TO STDOUT;", "simple", "COPY", None),
        ("SELECT 1\\; COPY seen FROM STDIN;", "simple", "COPY", b""),
    ],
)
def test_an_error_ends_the_run_and_says_so(
    driver: Path,
    targets: Any,
    script: Any,
    tmp_path: Path,
    text: str,
    protocol: str,
    message: str,
    sqlstate: bytes | None,
) -> None:
    if sqlstate is None:
        with pytest.raises(UsageError, match=message):
            run_duet(driver, targets, script(text, protocol=protocol), SHORT, tmp_path / "r")
        return
    started = time.monotonic()
    run = run_duet(driver, targets, script(text, protocol=protocol), Length(30), tmp_path / "r")
    assert time.monotonic() - started < 30  # before its end
    assert run.ended == "failure"
    assert message in str(run.failure)
    wrong = run.records.rows[run.records.rows["outcome"] == Outcome.ERROR]
    assert 1 <= len(wrong) <= 2
    assert wrong["sqlstate"][0] == sqlstate


def test_conflicts_are_rolled_back_counted_and_no_failure(
    driver: Path, targets: Any, pair: list[Cluster], script: Any, tmp_path: Path
) -> None:
    text = """
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT n, pg_sleep(0.002) FROM counter;
UPDATE counter SET n = n + 1;
END;
"""
    run = run_duet(driver, targets, script(text, clients=3), Length(1.5), tmp_path / "r")
    assert run.whole, run.failure
    outcomes = run.records.outcomes()
    assert outcomes["conflict"] > 0  # on a busy machine there are few
    conflicts = run.records.rows[run.records.rows["outcome"] == Outcome.CONFLICT]
    assert set(conflicts["sqlstate"]) == {b"40001"}
    others = run.records.rows[run.records.rows["outcome"] != Outcome.CONFLICT]
    assert set(others["sqlstate"]) == {b""}
    counted = 0
    for cluster in pair:
        with cluster.connect() as connection:
            row = connection.execute("SELECT n FROM counter").fetchone()
            connection.execute("UPDATE counter SET n = 0")
        assert row is not None
        counted += row[0]
    assert counted == outcomes["ok"]


def _conflict_and_leave(listening: socket.socket) -> None:
    """A server that has a conflict in each statement, and goes as that is rolled back."""
    client, _ = listening.accept()
    with client, client.makefile("rb") as received:
        received.read(struct.unpack("!i", received.read(4))[0] - 4)  # the login
        client.sendall(message(b"R", struct.pack("!i", 0)) + message(b"Z", b"I"))
        while True:
            _, size = struct.unpack("!ci", received.read(5))
            text = received.read(size - 4)
            if text == b"ROLLBACK\0":
                return
            conflict = message(b"E", b"SERROR\0C40001\0Ma conflict\0\0") + message(b"Z", b"E")
            client.sendall(conflict if text > b"\0" else message(b"I") + message(b"Z", b"I"))


def test_a_connection_lost_in_a_rollback_is_not_blamed_on_the_conflict(
    driver: Path, script: Any, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / ".s.PGSQL.5432"))
        listening.listen()
        target = f"host={tmp_path} user=u dbname=d"
        spec = script(SELECT_1, protocol="simple")
        with during(lambda: _conflict_and_leave(listening)):
            run = run_duet(driver, [target], spec, Length(30), tmp_path / "r")
    assert "cluster 0 was lost: server closed the connection" in str(run.failure)
    assert run.records.outcomes()["conflict"] == len(run.records.rows) == 1


@pytest.fixture
def small_disk(as_root: None, tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path]).returncode != 0:
        pytest.skip("cannot mount a small file system here")
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_full_disk_ends_the_run_and_keeps_what_fitted(
    driver: Path, targets: Any, script: Any, small_disk: Path
) -> None:
    began = time.monotonic()
    run = run_duet(driver, targets, script(SELECT_1), Length(120), small_disk / "r")
    assert run.ended == "failure"
    assert "No space left on device" in str(run.failure)
    assert 20_000 < len(run.records.rows) < 30_000
    assert time.monotonic() - began < 120  # before its end


def test_a_disk_that_is_full_at_the_start_is_reported(
    driver: Path, targets: Any, script: Any, small_disk: Path
) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    (small_disk / "rest").write_bytes(bytes((1 << 20) - page))  # the plan takes the last page
    with pytest.raises(MeasurementError, match=r"did not begin: cannot write .*No space left"):
        run_duet(driver, targets, script(SELECT_1), SHORT, small_disk / "r")


def test_a_directory_that_takes_no_files_is_reported(
    driver: Path, targets: Any, script: Any
) -> None:
    with pytest.raises(MeasurementError, match="cannot"):
        run_duet(driver, targets, script(SELECT_1), SHORT, Path("/proc/duet"))


def test_records_of_an_earlier_run_are_never_taken_for_this_one(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    output = tmp_path / "r"
    run_duet(driver, targets, script(SELECT_1), Length(0.3), output)
    nobody = ["host=127.0.0.1 port=1" for _ in targets]
    with pytest.raises(MeasurementError, match="did not begin"):
        run_duet(driver, nobody, script(SELECT_1), Length(0.3), output)
    assert not output.exists()
