"""Loads without a server: what is asked for, what pgbench says, and no child left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit.option_values import percentage
from pgtare.postgres.load import (
    LoadSpec,
    PgbenchLoad,
    Progress,
    RunResult,
    Script,
    find_pgbench,
    find_saturation,
    initialise,
    parse_rate,
    run,
)
from pgtare.postgres.load.connection import client_connection
from pgtare.postgres.load.pgbench import parse_progress
from pgtare.postgres.load.process import Child
from pgtare.postgres.load.spec import cores
from tests.loads import check_for
from tests.sessions import eventually

# ------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("text", "rate"), [("500", 500), ("0.5", 0.5), ("2k", 2000), (" 10/s ", 10), ("7 tps", 7)]
)
def test_a_rate_is_read(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-5", "fast", "5%", "1e3", "inf", "nan"])
def test_a_bad_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--rate .*: give transactions a second"):
        parse_rate(text)


def test_percentages_are_read() -> None:
    assert percentage("--rate", "50%") == 0.5
    assert percentage("--rate", " 12.5 % ") == 0.125
    assert percentage("--participation", "100%", whole=True) == 1.0


@pytest.mark.parametrize("text", ["50", "0.5", "0%", "100%", "150%", "-5%", "half", ""])
def test_a_bad_percentage_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--rate .*over 0 and below 100, as in --rate 5%"):
        percentage("--rate", text)


@pytest.mark.parametrize("text", ["10", "0.1", "0%", "101%", ""])
def test_a_bad_participation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"over 0 and at most 100, as in --participation 5%"):
        percentage("--participation", text, whole=True)


def test_scripts_have_weights(tmp_path: Path) -> None:
    path = tmp_path / "odd@name.sql"
    path.write_text("SELECT 1;\n")
    assert Script.parse(f"{path}@3") == Script(path, 3)
    assert Script.parse("plain.sql") == Script(Path("plain.sql"), 1)
    with pytest.raises(UsageError, match="weight after @"):
        Script.parse(str(path))
    for weight in ("\u00b2", "9" * 5000, "9" * 400, "2147483648", "-1", ""):
        with pytest.raises(UsageError, match="weight after @ must be a whole number from 0 to"):
            Script.parse(f"{path}@{weight}")
    arguments = LoadSpec(scripts=(Script(path, 3),), seed=1).arguments()
    assert arguments[-2:] == ["-f", f"{path}@3"]
    assert "-b" not in arguments


def test_the_arguments_are_those_asked_for() -> None:
    spec = LoadSpec("tpcb-like", protocol="prepared", clients=8, rate=250.0, seed=42)
    assert spec.arguments() == [
        *("-n", "-M", "prepared", "-c", "8", "-j", str(min(8, cores()))),
        *("--random-seed=42", "--rate=250", "-b", "tpcb-like"),
    ]
    assert spec.describe()["seed"] == 42


def test_jobs_are_no_more_than_clients() -> None:
    assert LoadSpec(clients=1).threads == 1
    assert LoadSpec(clients=2, jobs=5).threads == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clients": 0}, "at least one client"),
        ({"rate": 0.0}, "rate must be over 0"),
        ({"scripts": (Script(Path("/no/such.sql")),)}, "cannot read pgbench script /no/such.sql"),
        ({"scripts": (Script(Path("n" * 5000)),)}, "cannot read pgbench script nnn"),
        ({"scripts": (Script(Path(__file__), 0),)}, "weight 0"),
    ],
)
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LoadSpec(**wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ connections


def test_secrets_and_names_leave_the_connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGAPPNAME", "mine")
    dsn = "postgresql://me:s3cret@db:5433/shop?application_name=app&sslmode=prefer"
    shown, env = client_connection(dsn, "pgtare-load-x")
    assert "s3cret" not in shown
    assert "app" not in shown
    assert env["PGPASSWORD"] == "s3cret"
    assert env["PGAPPNAME"] == "pgtare-load-x"
    for part in ("user=me", "host=db", "port=5433", "dbname=shop", "sslmode=prefer"):
        assert part in shown


def test_a_password_file_stays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", "/x/pass")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    _, env = client_connection("host=db", "x")
    assert env["PGPASSFILE"] == "/x/pass"
    assert "PGPASSWORD" not in env


def test_other_secrets_and_nonsense_are_refused() -> None:
    with pytest.raises(UsageError, match="sslpassword cannot be handed"):
        client_connection("host=db sslpassword=x", "x")
    with pytest.raises(UsageError, match="cannot read the connection string"):
        client_connection("host=db nonsense", "x")


# ------------------------------------------------------------------------------ what it says


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        (
            "progress: 1.0 s, 87654.3 tps, lat 0.023 ms stddev 0.004, 0 failed",
            Progress(1.0, 87654.3, 0.023, 0),
        ),
        (
            "progress: 2.0 s, 99.0 tps, lat 1.5 ms stddev 0.1, 3 failed, lag 0.2 ms",
            Progress(2.0, 99.0, 1.5, 3),
        ),
        ("progress: 12.5 s, 10.1 tps, lat 0.5 ms stddev 0.1", Progress(12.5, 10.1, 0.5, 0)),
        ("progress: 1.0 s, 0.0 tps, lat 0.000 ms stddev 0.000, 0 failed", Progress(1, 0, 0, 0)),
        ("pgbench: error: client 1 aborted", None),
        ("", None),
    ],
)
def test_progress_lines_are_read(line: str, progress: Progress | None) -> None:
    assert parse_progress(line) == progress


# ------------------------------------------------------------------------------ headroom


def test_saturation_is_the_median_probe_at_full_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[LoadSpec, int]] = []
    rates = iter([100.0, 900.0, 1000.0])

    def probe(pgbench: Path, dsn: str, spec: LoadSpec, seconds: int) -> RunResult:
        asked.append((spec, seconds))
        return RunResult(next(rates), 1)

    spec = LoadSpec(rate=5.0, seed=7)
    monkeypatch.setattr("pgtare.postgres.load.pgbench.run", probe)
    found = find_saturation(Path("pgbench"), "", spec)
    assert found.tps == 900
    assert [(s.rate, s.seed, seconds) for s, seconds in asked] == [(None, 7, 2)] * 3
    assert found.rate(0.5) == 450


def test_a_load_that_does_nothing_has_no_saturation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtare.postgres.load.pgbench.run", lambda *_: RunResult(0.0, 0))
    with pytest.raises(MeasurementError, match="give --rate as a number"):
        find_saturation(Path(), "", LoadSpec())


# ------------------------------------------------------------------------------ the child

STUBBORN = """#!/bin/sh
trap '' INT TERM
sleep 600 &
echo $! > "$0.grandchild"
echo "progress: 1.0 s, 10.0 tps, lat 1.0 ms stddev 0.1, 0 failed" >&2
while :; do sleep 1; done
"""


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def gone(pid: int) -> bool:
    with contextlib.suppress(TimeoutError):
        eventually(lambda: not alive(pid))
    return not alive(pid)


def test_a_child_that_ignores_signals_is_ended_with_its_whole_group(tmp_path: Path) -> None:
    program = script(tmp_path / "stubborn", STUBBORN)
    load = PgbenchLoad(program, "", LoadSpec())
    with load:
        load.wait_ready(60)  # a shell may begin late
        pid = load.pid
        assert pid is not None
        grandchild = int(Path(f"{program}.grandchild").read_text())
        assert load._child is not None
        load._child.stop(patience_s=0.2)
    assert gone(pid)
    assert gone(grandchild)


def test_an_exception_in_the_block_ends_the_load(tmp_path: Path) -> None:
    program = script(tmp_path / "fake", "#!/bin/sh\nexec sleep 600\n")
    load = PgbenchLoad(program, "", LoadSpec())
    pid = 0
    with contextlib.suppress(KeyboardInterrupt), load:
        pid = load.pid or 0
        assert alive(pid)
        raise KeyboardInterrupt
    assert pid
    assert gone(pid)


OWNER = """
import sys, time
from pathlib import Path
from pgtare.postgres.load import LoadSpec, PgbenchLoad
load = PgbenchLoad(Path(sys.argv[1]), "", LoadSpec())
load.start()
print(load.pid, flush=True)
try:
    time.sleep(60)
finally:
    load.stop()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_child_does_not_outlive_an_owner_that_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    program = script(tmp_path / "fake", "#!/bin/sh\nexec sleep 600\n")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    with owner:
        pid = int(owner.stdout.readline())
        assert alive(pid)
        os.kill(owner.pid, number)
        owner.wait(60)
    assert gone(pid)


def test_a_signal_while_a_child_is_forked_is_not_lost() -> None:
    """Python forgets what handlers raise then: it only prints that."""
    own = [0]

    def signal_once() -> None:
        if own:
            own.clear()
            signal.raise_signal(signal.SIGINT)

    os.register_at_fork(after_in_parent=signal_once)
    with pytest.raises(KeyboardInterrupt):
        Child(["sleep", "600"], os.environ)
    assert not [one for one in psutil.Process().children() if "600" in one.cmdline()]


def test_an_interrupted_wait_kills_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child(["sleep", "600"], os.environ)

    def interrupt(*_: object) -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(child._popen, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        child.wait()
    assert gone(child.pid)


def test_pgbench_failing_is_reported_in_its_own_words(tmp_path: Path) -> None:
    text = """#!/bin/sh
echo 'progress: 1.0 s, 5.0 tps, lat 1.0 ms stddev 0.1, 0 failed' >&2
echo 'pgbench: error: connection to server failed: FATAL:  no such role' >&2
exit 1
"""
    load = PgbenchLoad(script(tmp_path / "fake", text), "", LoadSpec())
    with load, pytest.raises(MeasurementError) as caught:
        check_for(load, seconds=60)
    assert str(caught.value) == (
        "pgbench ended with status 1: connection to server failed: FATAL:  no such role"
    )


GIVES_UP = (
    "echo 'pgbench: error: client 1 script 0 aborted in command 2 query 0: ERROR:  boom' >&2\n"
    "exec sleep 600"
)


@pytest.mark.parametrize(
    ("text", "limit_s", "message"),
    [
        (GIVES_UP, 60, r"gave up a client: client 1 .*boom"),  # though pgbench goes on
        ("", 60, "ended by itself: it said nothing"),
        ("exec sleep 600", 0.2, r"no transaction in 0.2 s"),
    ],
)
def test_a_load_that_does_not_get_going_is_a_failure(
    tmp_path: Path, text: str, limit_s: float, message: str
) -> None:
    load = PgbenchLoad(script(tmp_path / "fake", f"#!/bin/sh\n{text}\n"), "", LoadSpec())
    with load, pytest.raises(MeasurementError, match=message):
        load.wait_ready(limit_s)


def test_a_missing_pgbench_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"no pgbench at .*Debian: the package postgresql-"):
        run(tmp_path / "pgbench", "", LoadSpec(), 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"no pgbench on the PATH.*Debian"):
        find_pgbench()
    plain = tmp_path / "pgbench"
    plain.write_text("")
    plain.chmod(0o644)
    with pytest.raises(UsageError, match=r"cannot run .*Permission denied"):
        run(plain, "", LoadSpec(), 1)


@pytest.mark.parametrize(
    ("scale", "name", "message"),
    [(0, None, "scale must be"), (1, 'a"b', "may hold only"), (1, "", "may hold only")],
)
def test_bad_databases_are_refused_before_connecting(
    scale: int, name: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        initialise(None, "host=/nowhere", scale, name)
