"""Throwaway servers: they work, and nothing is left of them however they end."""

import contextlib
import os
import pwd
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import cluster as cluster_module
from pgtare.postgres import processes, registry, signals
from pgtare.postgres.binaries import Binaries, from_pg_config
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process
from tests.servers import run_program
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

NOBODY = pwd.getpwnam("nobody")

# An owner in a process of its own: says where its server is, then waits.
OWNER = """
import os, signal, sys, time
from pgtare.postgres.binaries import from_pg_config
from pgtare.postgres.cluster import Cluster
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
if len(sys.argv) > 2:  # become an ordinary user only now: Python itself may be closed to it
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
with Cluster(from_pg_config(sys.argv[1])) as cluster:
    print(cluster.directory, cluster.postmaster_pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def clean(own_place: Path) -> Iterator[None]:
    """Every test has servers in a place of its own, and must leave nothing there."""
    yield
    assert servers_below(own_place) == []
    assert [p for p in (own_place / "servers").glob("*") if p.name != ".lock"] == []


def servers_below(directory: Path) -> list[int]:
    processes_ = psutil.process_iter(["cwd"])
    return [p.pid for p in processes_ if (p.info["cwd"] or "").startswith(str(directory))]


def ask(cluster: Cluster, query: str) -> Any:
    with cluster.connect() as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


class Owner:
    """OWNER, running, with the directory and postmaster of its server."""

    def __init__(self, binaries: Binaries, user: int | None = None, **arguments: Any) -> None:
        as_user = [] if user is None else [str(user)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(binaries.pg_config), *as_user],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **arguments,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        directory, pid = line.rsplit(" ", 1)
        self.directory, self.postmaster = Path(directory), int(pid)

    def end(self, signum: signal.Signals, whole_group: bool = False) -> int:
        send = os.killpg if whole_group else os.kill
        send(self.process.pid, signum)
        self.process.communicate(timeout=120)  # a busy disk makes it wait for its last writes
        return self.process.returncode


def test_server_starts_answers_and_leaves_nothing(
    binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment does not reach it; handlers of signals are given back."""
    monkeypatch.setenv("PGOPTIONS", "-c maintenance_work_mem=9MB")
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.9")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(s) for s in handled]
    with Cluster(binaries, settings={"work_mem": "5MB"}, preload=["auto_explain"]) as cluster:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert ask(cluster, "SHOW work_mem") == "5MB"
        assert ask(cluster, "SHOW maintenance_work_mem") == "64MB"
        assert ask(cluster, "SHOW shared_preload_libraries") == "auto_explain"
        assert ask(cluster, "SHOW fsync") == "on"
        assert ask(cluster, "SELECT current_setting('server_version_num')::int") == (
            binaries.version_num
        )
        directory = cluster.directory
        assert cluster.running
    assert not directory.exists()
    assert not cluster.running
    assert [signal.getsignal(s) for s in handled] == before


def test_server_is_private(wheel: Binaries) -> None:
    """From another one at the same time, too; programs can run as its account."""
    with Cluster(wheel) as cluster, Cluster(wheel) as other:
        for path in (cluster.data_directory, cluster.socket_directory):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for name in ("server.log", "pgtare.conf", "pg_hba.conf", "owner.lock"):
            assert not stat.S_IMODE((cluster.directory / name).stat().st_mode) & 0o007
        assert ask(cluster, "SHOW listen_addresses") == ""
        owner = psutil.Process(cluster.postmaster_pid).uids().real
        assert owner == cluster.data_directory.stat().st_uid != 0
        assert cluster.directory != other.directory
        assert run_program(other, "psql", "-XAtc", "SELECT 42", other.dsn()) == "42\n"


def test_other_accounts_cannot_connect(as_root: None, wheel: Binaries) -> None:
    with Cluster(wheel) as cluster:
        done = subprocess.run(
            [wheel.psql, "-c", "SELECT 1", cluster.dsn()],
            user=NOBODY.pw_uid,
            group=NOBODY.pw_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "Permission denied" in done.stderr


def test_tcp_asks_for_the_password(wheel: Binaries) -> None:
    with Cluster(wheel, tcp=True) as cluster:
        with psycopg.connect(cluster.dsn(tcp=True)) as connection:
            row = connection.execute("SELECT host(inet_server_addr())").fetchone()
            assert row == ("127.0.0.1",)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(cluster.dsn(tcp=True, password="wrong"))  # noqa: S106
        assert not (cluster.directory / "password").exists()


def test_reloads_and_restarts_are_seen_and_refusals_are_reported(wheel: Binaries) -> None:
    """A restart keeps the data."""
    with Cluster(wheel) as cluster:
        cluster.configure({"work_mem": "7MB"})
        cluster.reload()
        assert ask(cluster, "SHOW work_mem") == "7MB"
        cluster.configure({"work_mem": None})
        cluster.reload()
        assert ask(cluster, "SHOW work_mem") == "4MB"
        cluster.configure({"work_mem": "much"})
        with pytest.raises(MeasurementError, match=r"did not take its new settings .*work_mem"):
            cluster.reload()
        cluster.configure({"work_mem": None})
        with cluster.connect() as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS a")
        before = cluster.postmaster_pid
        cluster.restart({"max_connections": 33})
        assert cluster.postmaster_pid != before
        assert ask(cluster, "SHOW max_connections") == "33"
        assert ask(cluster, "SELECT a FROM t") == 1
        with pytest.raises(MeasurementError, match=r'(?s)did not start.*"shared_buffers": "nope"'):
            cluster.restart({"shared_buffers": "nope"})


def test_failed_start_is_given_up_with_the_end_of_the_log(wheel: Binaries) -> None:
    failed = pytest.raises(
        MeasurementError, match=r'(?s)did not start.*could not access file "absent"'
    )
    with failed, Cluster(wheel, preload=["absent"]):
        pytest.fail("started")


def test_a_start_that_takes_too_long_is_given_up(
    wheel: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not seen to be ready: it may be before anybody looks."""
    monkeypatch.setattr(processes, "read_pid_file", lambda data: [])
    given_up = pytest.raises(MeasurementError, match="did not become ready within 0 s")
    with given_up, Cluster(wheel, start_seconds=0.0, stop_seconds=0.3):
        pytest.fail("started")


def test_server_that_died_is_reported_with_its_log(wheel: Binaries) -> None:
    with Cluster(wheel) as cluster:
        os.kill(cluster.postmaster_pid, signal.SIGQUIT)
        eventually(lambda: not cluster.running)
        with pytest.raises(MeasurementError, match=r"(?s)is not running.*immediate shutdown"):
            _ = cluster.postmaster_pid


def test_stop_becomes_more_insistent(wheel: Binaries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "IMMEDIATE_SECONDS", 60.0)  # on a busy machine it takes long
    # A smart shutdown waits for the session, for ever.
    with Cluster(wheel, stop_seconds=0.3) as cluster, cluster.connect():
        assert cluster.stop("smart") == "immediate"


@pytest.mark.slow
def test_frozen_server_is_killed_with_its_children_and_shared_memory(
    wheel: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "IMMEDIATE_SECONDS", 0.3)
    with Cluster(wheel, stop_seconds=0.3) as cluster:
        files, system_v = shared_memory(cluster.directory)
        assert len(files) > 1
        os.kill(cluster.postmaster_pid, signal.SIGSTOP)
        assert cluster.stop() == "killed"
        assert servers_below(cluster.data_directory) == []
    assert not any(path.exists() for path in files)
    assert system_v not in system_v_segments()


def test_killed_server_starts_again_without_its_old_shared_memory(wheel: Binaries) -> None:
    with Cluster(wheel) as cluster:
        files, system_v = shared_memory(cluster.directory)
        cluster.kill()
        cluster.start()
        assert ask(cluster, "SELECT 1") == 1
        assert not any(path.exists() for path in files)
        assert system_v not in system_v_segments()


def shared_memory(directory: Path) -> tuple[set[Path], str]:
    """The files of a running server's shared memory, and the number of its System V segment.

    Its processes map more than the control segment only once they have begun their work.
    """

    def mapped() -> set[Path]:
        maps = ""
        for pid in servers_below(directory):
            with contextlib.suppress(OSError):  # one that has ended by now
                maps += Path(f"/proc/{pid}/maps").read_text()
        return {Path(name) for name in re.findall(r"/dev/shm/PostgreSQL\.\d+", maps)}  # noqa: S108

    eventually(lambda: len(mapped()) >= 2)
    files = mapped()
    number = (directory / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert number in system_v_segments()
    return files, number


def system_v_segments() -> set[str]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines}


def test_exception_stops_the_server(wheel: Binaries) -> None:
    with pytest.raises(ZeroDivisionError), Cluster(wheel):
        _ = 1 / 0


@pytest.mark.parametrize(
    ("signum", "status"),
    [
        (signal.SIGTERM, 143),
        *(
            pytest.param(*other, marks=pytest.mark.slow)
            for other in ((signal.SIGINT, -signal.SIGINT), (signal.SIGHUP, 129))
        ),
    ],
)
def test_ending_signal_to_the_whole_group_cleans_up(
    wheel: Binaries, signum: signal.Signals, status: int
) -> None:
    owner = Owner(wheel)
    assert owner.end(signum, whole_group=True) == status
    assert not owner.directory.exists()
    assert not psutil.pid_exists(owner.postmaster)


@pytest.mark.slow
def test_second_ctrl_c_does_not_cut_the_clean_up_short(wheel: Binaries) -> None:
    owner = Owner(wheel)
    for _ in range(20):
        os.killpg(owner.process.pid, signal.SIGINT)
        time.sleep(0.002)
    owner.process.communicate(timeout=30)
    assert not owner.directory.exists()


class InterruptedAgain(Cluster):
    """Gets a second Ctrl-C when its clean-up begins, before it can hold signals back."""

    def __exit__(self, *ended: object) -> None:
        signal.raise_signal(signal.SIGINT)
        super().__exit__(*ended)


@pytest.mark.slow
def test_second_ctrl_c_as_the_clean_up_begins_does_not_cut_it_short(wheel: Binaries) -> None:
    directories = []

    def begin_to_end() -> None:
        with InterruptedAgain(wheel) as cluster:
            directories.append(cluster.directory)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        begin_to_end()
    assert not directories[0].exists()


def test_ctrl_c_acts_again_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was caught does not make a program deaf."""
    now_s = time.monotonic() + 100
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(signals, "_acted_s", 0.0)  # and is as before at the end
    with signals.unwind_at_exit_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        now_s += 0.31
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)


def test_next_start_sweeps_what_a_killed_owner_left(wheel: Binaries) -> None:
    owner = Owner(wheel)
    assert owner.end(signal.SIGKILL) == -signal.SIGKILL
    assert owner.directory.exists()
    assert psutil.pid_exists(owner.postmaster)
    with Cluster(wheel) as cluster:
        assert cluster.running
        assert not owner.directory.exists()
        assert owner.postmaster not in servers_below(owner.directory.parent)


@pytest.mark.slow
def test_uninstall_stops_what_a_killed_owner_left(wheel: Binaries, own_place: Path) -> None:
    owner = Owner(wheel)
    assert owner.end(signal.SIGKILL) == -signal.SIGKILL
    assert psutil.pid_exists(owner.postmaster)
    done = in_process("uninstall", "--yes")
    assert done.returncode == 0, done.stdout
    assert owner.postmaster not in servers_below(own_place)
    assert not own_place.exists()


def test_sweep_spares_servers_whose_owner_lives(wheel: Binaries) -> None:
    owner = Owner(wheel)
    assert registry.sweep() == []
    assert owner.postmaster in servers_below(owner.directory)
    owner.end(signal.SIGTERM)


@pytest.mark.slow
def test_sweep_takes_orphans_of_a_killed_postmaster(wheel: Binaries) -> None:
    owner = Owner(wheel)
    files, system_v = shared_memory(owner.directory)
    assert len(files) > 1
    os.kill(owner.process.pid, signal.SIGKILL)
    # Frozen children cannot notice that their postmaster has died.
    for pid in servers_below(owner.directory):
        os.kill(pid, signal.SIGSTOP)
    os.kill(owner.postmaster, signal.SIGKILL)
    owner.process.communicate(timeout=30)
    assert registry.sweep() == [owner.directory]
    assert not any(path.exists() for path in files)
    assert system_v not in system_v_segments()


def test_sweep_signals_no_stranger_whose_pid_was_reused(wheel: Binaries) -> None:
    home = registry.claim(Cluster(wheel)._account)
    stranger = subprocess.Popen(["sleep", "60"], cwd=home.data)
    (home.data / "postmaster.pid").write_text(f"{stranger.pid}\n{home.data}\n")
    os.close(home.lock_fd)
    assert registry.sweep() == [home.path]
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_pid_file_that_is_a_pipe_or_link_is_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "postmaster.pid")
    assert processes.read_pid_file(tmp_path) == []
    (tmp_path / "postmaster.pid").unlink()
    (tmp_path / "postmaster.pid").symlink_to("/etc/passwd")
    assert processes.read_pid_file(tmp_path) == []


def test_long_directory_gets_a_short_socket(
    wheel: Binaries, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTARE_DIR", str(open_directory / ("x" * 100)))
    with Cluster(wheel) as cluster:
        sockets = cluster.socket_directory
        assert sockets.parent == Path("/tmp")  # noqa: S108
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert ask(cluster, "SELECT 1") == 1
    assert not sockets.exists()


@pytest.mark.slow
def test_root_with_a_closed_home(as_root: None, wheel: Binaries, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    owner = Owner(wheel, env={**os.environ, "HOME": str(tmp_path)}, cwd=tmp_path)
    assert owner.end(signal.SIGTERM) == 143
    assert list(tmp_path.iterdir()) == []


def test_closed_installation_is_reported(as_root: None, wheel: Binaries, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "bin").symlink_to(wheel.bindir)
    closed = from_pg_config(wheel.pg_config)
    object.__setattr__(closed, "bindir", tmp_path / "bin")
    try:
        with pytest.raises(MeasurementError, match=r"cannot run .*/initdb as .*Permission denied"):
            Cluster(closed).__enter__()
    finally:
        object.__setattr__(closed, "bindir", wheel.bindir)


@pytest.mark.slow
def test_ordinary_user_with_blanks_in_the_cache_path(
    as_root: None, wheel: Binaries, open_directory: Path
) -> None:
    home = open_directory / "a user's home"
    home.mkdir()
    os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
    fallback = Path(f"/var/tmp/pgtare-{NOBODY.pw_uid}")  # noqa: S108
    assert not fallback.exists(), "left by an earlier run"
    environment = {k: v for k, v in os.environ.items() if k != "PGTARE_DIR"}
    owner = Owner(wheel, user=NOBODY.pw_uid, env={**environment, "HOME": str(home)})
    try:
        assert owner.directory.is_relative_to(fallback)
        assert psutil.Process(owner.postmaster).uids().real == NOBODY.pw_uid
        assert owner.end(signal.SIGINT) == -signal.SIGINT
        assert not owner.directory.exists()
    finally:
        subprocess.run(["rm", "-r", fallback], check=True)


@pytest.mark.slow
def test_account_can_be_named(
    as_root: None, wheel: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTARE_SERVER_USER", "nobody")
    with Cluster(wheel) as cluster:
        owner = psutil.Process(cluster.postmaster_pid).uids().real
        assert owner == NOBODY.pw_uid
    for name in ("root", "nobody-of-that-name"):
        monkeypatch.setenv("PGTARE_SERVER_USER", name)
        with pytest.raises(UsageError, match="PostgreSQL refuses to run as root"):
            Cluster(wheel)


def test_cluster_is_used_in_its_block_only(wheel: Binaries) -> None:
    with pytest.raises(RuntimeError, match="inside its with block"):
        Cluster(wheel).dsn()
    assert cluster_module.SUPERUSER == "postgres"
