"""What is switched for the whole server, weighed by windows, and put back whatever happens."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from psycopg import Connection
from rich.console import Console

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.trial.design import Arm, Design
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.directories import DIRECTORY_VARIABLE
from pgtare.weighing.outside import run as outside_run
from pgtare.weighing.outside.session import (
    control_session,
    driven_session,
    require_follows,
    without_own,
)
from pgtare.weighing.switches import Switch
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.whole_server import (
    configuration,
    guardian,
    guardian_client,
    restore_file,
    run,
    schedule,
)
from pgtare.weighing.whole_server.changer import Changer, check_alone
from pgtare.weighing.whole_server.configuration import Before
from pgtare.weighing.whole_server.guardian_client import SwitchGuard
from pgtare.weighing.whole_server.schedule import Schedule
from pgtare.weighing.whole_server.watcher_time import WatcherTime, active_share
from tests import windows
from tests.commands import in_process, read, refused
from tests.loads import asleep
from tests.sessions import eventually, one, rows, session

pytestmark = pytest.mark.server

SLOWER = "SELECT pg_sleep(0.002) WHERE current_setting('work_mem') = '5MB'"
SETTING = Switch.parse_reload("mem: work_mem = 5MB")
ALLOWED = frozenset({"work_mem"})
RELOAD = "--reload 'x: work_mem = 5MB' --allow work_mem"


def looked(conn: Connection[Any], switch: Switch = SETTING) -> Before:
    """How a setting is that nobody asks about here."""
    return configuration.look(conn, switch, ALLOWED)


@pytest.fixture(autouse=True)
def no_guardian_stays(tmp_path: Path) -> Iterator[None]:
    """A guardian tries for a day, and keeps the next test from switching."""
    yield
    with contextlib.suppress(LookupError):
        guardian_of(tmp_path).kill()
    for process in own_guardians():
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(wheel: Binaries) -> Iterator[Cluster]:
    with Cluster(wheel, {}) as cluster:
        yield cluster


def entries(cluster: Cluster) -> list[tuple[object, ...]]:
    """What ALTER SYSTEM has left, and what is in force."""
    with session(cluster) as conn:
        query = "SELECT name, setting FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf'"
        return [*rows(conn, query), (one(conn, "SHOW work_mem"),)]


def watcher(mark: str) -> Switch:
    """A process that runs in its windows only."""
    return Switch("watch", "process", on=f"while true; do sleep 0.{mark}; done")


def toggled(path: Path) -> Switch:
    """Something that is there if a file is."""
    file = shlex.quote(str(path))
    return Switch("file", "commands", on=f"touch {file}", off=f"rm -f {file}")


def running(mark: str) -> list[psutil.Process]:
    """Processes of the watcher."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if f"sleep 0.{mark}" in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def guardian_of(place: Path) -> psutil.Process:
    """The guardian of the weighing whose own directory that is."""
    for process in psutil.process_iter(["cmdline", "environ"]):
        own = (process.info["environ"] or {}).get("PGTARE_DIR") == str(place / "own")
        if own and "pgtare.weighing.whole_server.guardian" in (process.info["cmdline"] or []):
            return process
    raise LookupError("no guardian")


def own_guardians() -> list[psutil.Process]:
    """The guardians that this process has started itself."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "pgtare.weighing.whole_server.guardian" in process.cmdline():
                found.append(process)
    return found


def restore_files(place: Path) -> list[Path]:
    return sorted((place / "own" / "restore").glob("*"))


@pytest.mark.slow
def test_a_setting_and_a_watcher_are_weighed(server: Cluster, tmp_path: Path) -> None:
    """A setting that makes each transaction 2 ms slower, and a watcher whose sessions work.

    Windows of a busy machine differ by milliseconds: what they cover is asked, not the verdict.
    """
    dsn = server.dsn(application_name="observer")
    query = "SELECT count(*) FROM generate_series(1, 100000)"
    psql = shlex.join([str(server.binaries.psql), "-Xqc", query, dsn])
    busy = Switch("busy", "process", on=f"while true; do {psql}; done")
    weighed = windows.start(server.dsn(), [SETTING, busy], tmp_path, seconds=24, sql=SLOWER)
    out, err = weighed.communicate(timeout=120)
    assert weighed.returncode == 0, err
    assert "this puts it back: in psql: ALTER SYSTEM RESET work_mem" in " ".join(err.split())
    result = read(tmp_path / "w" / "result.json")
    arms = {arm["name"]: arm for arm in result["arms"]}
    cost_us = arms["mem"]["answer"]["us"]
    assert cost_us["lo"] < 6_000
    assert cost_us["hi"] > 2_000
    windows_of = result["design"]["outside"]["windows"]
    assert windows_of["window_s"] == windows.WINDOW_S
    taken = {one["name"]: one for one in windows_of["watchers"]}
    assert taken["busy"]["by"] == "processor"
    assert taken["busy"]["server_pct"]["hi"] > 1
    assert taken["busy"]["processes_pct"]["hi"] > 0.1
    assert taken["mem"]["processes_pct"] is None
    words = " ".join(out.split())
    assert "while the whole server has it on" in words
    assert "busy itself: +" in words
    assert "in its own processes here" in words
    assert entries(server) == [("4MB",)]
    assert not restore_files(tmp_path)
    again = in_process("report {} --details", tmp_path / "w").stdout
    assert " ".join(again.split()).startswith(" ".join(out.split())[:60])
    assert "busy itself: +" in " ".join(again.split())
    assert "blocks of windows" in " ".join(again.split())


#: Takes a processor for a second or so, if it is of 60 million turns.
LOOP = "DO $$ BEGIN FOR i IN 1..{} LOOP END LOOP; END $$"


def taken_by(cluster: Cluster, switch: Switch, place: Path, **options: Any) -> dict[str, Any]:
    """What a watcher took itself, by a weighing of eight blocks."""
    weighed = windows.start(cluster.dsn(), [switch], place, **{"seconds": 17, **options})
    out, err = weighed.communicate(timeout=300)
    assert weighed.returncode == 0, out + err
    (found,) = read(place / "w" / "result.json")["design"]["outside"]["windows"]["watchers"]
    return {**found, "said": " ".join(out.split())}


@pytest.mark.parametrize(
    ("gone_s", "turns"), [(30, 30_000_000), pytest.param(0.1, 120_000_000, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_a_query_that_outlives_its_watcher_is_no_cost_of_the_base(
    server: Cluster, tmp_path: Path, gone_s: float, turns: int
) -> None:
    """Its client is killed in the middle of it; or it is not waited for."""
    dsn = server.dsn(application_name="heavy")
    psql = shlex.join([str(server.binaries.psql), "-Xqc", LOOP.format(turns), dsn])
    heavy = Switch("heavy", "process", on=f"while true; do {psql}; done")
    found = taken_by(server, heavy, tmp_path, gone_s=gone_s)
    assert found["sessions"] == ["heavy"]
    assert found["shared"] == []
    if gone_s > 1:
        assert found["lingered"] == []
        assert found["server_pct"]["estimate"] > 10
    else:
        assert found["lingered"] == ["heavy"]
        assert found["server_pct"]["lo"] is None
        assert "went on in windows without it: let it end them on SIGTERM" in found["said"]


@pytest.mark.slow
def test_a_watcher_that_ends_a_while_after_off_is_not_the_application(
    server: Cluster, tmp_path: Path
) -> None:
    """It is on before the weighing begins, in one session, and the first window is without it."""
    stop, pid = tmp_path / "stop", tmp_path / "pid"
    asked = "SELECT count(*) FROM generate_series(1, 100000);"
    dsn = server.dsn(application_name="exporter")
    psql = shlex.join([str(server.binaries.psql), "-Xq", dsn])
    loop = (
        f"while sleep 0.1; do test -e {stop} && exit; echo {shlex.quote(asked)}; done"
        f" | {psql} >{tmp_path}/out 2>&1"
    )
    on = (
        f"rm -f {stop}; kill -0 $(cat {pid}) 2>/dev/null && exit; "
        f"setsid sh -c {shlex.quote(loop)} >/dev/null 2>&1 & echo $! >{pid}"
    )
    off = f"(sleep 0.7; touch {stop}) >/dev/null 2>&1 &"
    exporter = Switch("exporter", "commands", on=on, off=off)
    subprocess.run(["/bin/sh", "-c", on], check=True)
    try:
        with session(server) as conn:
            eventually(lambda: one(conn, _EXPORTERS) == 1)
        options = {"after_off_s": 2.0, "seconds": 33, "seed": 5}
        found = taken_by(server, exporter, tmp_path, **options)
    finally:
        subprocess.run(["/bin/sh", "-c", off], check=True)
    assert found["sessions"] == ["exporter"], found
    assert found["shared"] == found["lingered"] == []
    assert found["server_pct"]["hi"] > 1  # a busy machine makes it wide


_EXPORTERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'exporter'"


@pytest.mark.parametrize("victim", ["command", "guardian"])
@pytest.mark.slow
def test_who_is_killed_while_all_is_on_leaves_nothing(
    server: Cluster, tmp_path: Path, victim: str
) -> None:
    mark = f"10{os.getpid() % 10_000:04}{len(victim)}"
    file = tmp_path / "file"
    file.touch()
    weighed = windows.start(server.dsn(), [SETTING, watcher(mark), toggled(file)], tmp_path)
    eventually(lambda: entries(server)[-1] == ("5MB",))
    assert len(restore_files(tmp_path)) == 1
    eventually(lambda: bool(running(mark)))
    guardian = guardian_of(tmp_path)
    if victim == "command":
        os.kill(weighed.pid, signal.SIGKILL)
    else:
        guardian.kill()
    out, err = weighed.communicate(timeout=60)
    eventually(lambda: entries(server) == [("4MB",)])
    eventually(lambda: not running(mark))
    eventually(file.exists)
    eventually(lambda: not restore_files(tmp_path))
    if victim == "guardian":
        assert weighed.returncode == 1
        words = " ".join((out + err).split())
        assert "put things back was killed, so it was done at once" in words, words
    else:
        guardian.wait(timeout=30)


def test_both_killed_the_next_weighing_puts_it_back(server: Cluster, tmp_path: Path) -> None:
    mark = f"11{os.getpid() % 10_000:04}"
    file = tmp_path / "file"
    file.touch()
    switches = [SETTING, watcher(mark), toggled(file)]
    weighed = windows.start(server.dsn(), switches, tmp_path)
    guardian = None
    while guardian is None or entries(server)[-1] != ("5MB",):  # it may just switch off
        if guardian is not None:
            guardian.resume()
        eventually(lambda: entries(server)[-1] == ("5MB",))
        guardian = guardian_of(tmp_path)
        guardian.suspend()
        time.sleep(1)  # what it has asked for is done by then
    os.kill(weighed.pid, signal.SIGKILL)
    weighed.communicate(timeout=60)
    guardian.kill()
    eventually(lambda: not running(mark))  # the kernel ends what the guardian had started
    (left,) = restore_files(tmp_path)
    assert "ALTER SYSTEM RESET work_mem; SELECT pg_reload_conf();" in left.read_text()
    assert left.stat().st_mode & 0o077 == 0
    assert server.dsn() not in left.read_text()

    again = windows.start(server.dsn(), switches, tmp_path, seconds=1)
    _, err = again.communicate(timeout=60)
    assert again.returncode == 1  # too short, said after everything was put back
    assert "left by a weighing that was killed: work_mem " in " ".join(err.split())
    assert entries(server) == [("4MB",)]
    assert file.exists()
    assert not restore_files(tmp_path)


@pytest.fixture
def left_by(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """What a weighing says of the file of one that was killed, or raises."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "own"))

    def put_back(*switches: Switch, after: str = "", ago_s: float | None = 0, by: str = "") -> Any:
        with session(server) as conn:
            before = [looked(conn, one) if one.setting else None for one in switches]
        monkeypatch.chdir(tmp_path)
        with session(server, **({"user": by} if by else {})) as conn:
            file = restore_file.make(configuration.identity(conn), list(switches), before)
        monkeypatch.chdir("/")
        changed_s = time.time() - (ago_s or 0)
        with monkeypatch.context() as context:
            context.setattr(time, "time", lambda: changed_s)
            for index in range(len(switches)):
                file.note(index, changed=ago_s is not None)
        os.close(file.lock)
        with session(server) as conn:
            if after:
                conn.execute(after.encode())
                conn.execute("SELECT pg_reload_conf()")
            said: list[str] = []
            stages = SimpleNamespace(say=said.append)
            run._put_back_left_over(server.dsn(), conn, cast(Any, stages))
        return said

    return put_back


@pytest.fixture
def set_for_good(server: Cluster) -> Iterator[str]:
    """What somebody does to the setting after a weighing was killed."""
    yield "ALTER SYSTEM SET work_mem = '5MB'"
    with session(server) as conn:
        conn.execute("ALTER SYSTEM RESET work_mem")
        conn.execute("SELECT pg_reload_conf()")
    eventually(lambda: entries(server) == [("4MB",)])


def test_what_was_planned_and_not_changed_is_not_put_back(
    server: Cluster, tmp_path: Path, left_by: Callable[..., list[str]], set_for_good: str
) -> None:
    file = tmp_path / "file"
    assert left_by(SETTING, toggled(file), after=set_for_good, ago_s=None) == []
    eventually(lambda: entries(server) == [("work_mem", "5MB"), ("5MB",)])
    assert not file.exists()
    assert not restore_files(tmp_path)


@pytest.mark.parametrize("ago_s", [60, 100_000])
def test_a_value_that_was_set_later_is_not_put_back(
    server: Cluster,
    tmp_path: Path,
    left_by: Callable[..., list[str]],
    set_for_good: str,
    ago_s: float,
) -> None:
    with pytest.raises(MeasurementError, match="may have decided") as refusal:
        left_by(SETTING, after=set_for_good, ago_s=ago_s)
    assert "ALTER SYSTEM RESET work_mem; SELECT pg_reload_conf();" in str(refusal.value)
    (kept,) = restore_files(tmp_path)
    assert str(kept) in str(refusal.value)
    assert entries(server)[0] == ("work_mem", "5MB")


def test_a_value_of_a_change_of_ours_is_put_back(
    server: Cluster, tmp_path: Path, left_by: Callable[..., list[str]], set_for_good: str
) -> None:
    said = left_by(SETTING, after=set_for_good)
    assert said[-1] == "left by a weighing that was killed: work_mem was put back"
    assert not restore_files(tmp_path)


def test_a_command_is_not_run_long_after(tmp_path: Path, left_by: Callable[..., list[str]]) -> None:
    file = tmp_path / "file"
    with pytest.raises(MeasurementError, match="touch"):
        left_by(toggled(file), ago_s=100_000)
    assert not file.exists()
    for path in restore_files(tmp_path):
        path.unlink()
    left_by(toggled(file), ago_s=60)
    assert file.exists()


def test_a_command_runs_in_the_directory_of_the_weighing_that_was_killed(
    tmp_path: Path, left_by: Callable[..., list[str]]
) -> None:
    said = left_by(Switch("file", "commands", on="touch ./here", off="rm -f ./here"))
    assert (tmp_path / "here").exists()
    assert f"cd {tmp_path}" in " ".join(said[0].split())


def test_a_dry_run_does_not_take_what_was_left_for_the_server_s_own(
    server: Cluster, tmp_path: Path, left_by: Callable[..., list[str]], set_for_good: str
) -> None:
    with pytest.raises(MeasurementError, match="may have decided"):
        left_by(SETTING, after=set_for_good, ago_s=60)
    (kept,) = restore_files(tmp_path)
    dry = "weigh --dsn {} --reload 'mem: work_mem = 5MB' --allow work_mem --dry-run"
    assert f"a weighing that was killed has left {kept}" in refused(dry, server.dsn())


def test_a_role_with_few_rights_leaves_a_file_that_others_find(
    server: Cluster, tmp_path: Path, left_by: Callable[..., list[str]]
) -> None:
    """Without pg_stat_file the server is known by its start."""
    file = tmp_path / "file"
    with session(server) as conn:
        conn.execute("CREATE ROLE few_rights LOGIN IN ROLE pg_monitor")
    try:
        left_by(toggled(file), by="few_rights")
    finally:
        with session(server) as conn:
            conn.execute("DROP ROLE few_rights")
    assert file.exists()
    assert not restore_files(tmp_path)


@pytest.mark.slow
def test_a_server_that_is_killed_has_its_setting_back(wheel: Binaries, tmp_path: Path) -> None:
    with Cluster(wheel, {}) as cluster:
        weighed = windows.start(cluster.dsn(), [SETTING], tmp_path, patience_s=1)
        for value in ("5MB", "4MB", "5MB", "4MB"):  # the first time it is only tried out
            eventually(lambda wanted=value: entries(cluster)[-1] == (wanted,))
        cluster.stop(mode="immediate")
        out, err = weighed.communicate(timeout=60)
        assert weighed.returncode == 1
        assert "THE TRIAL ENDED EARLY" in " ".join(out.split()), err
        cluster.start()
        eventually(lambda: entries(cluster) == [("4MB",)])
        eventually(lambda: not restore_files(tmp_path))


@pytest.mark.slow
def test_a_server_whose_files_got_other_rights_has_its_setting_back(
    wheel: Binaries, tmp_path: Path
) -> None:
    """Some containers change the owner of all files whenever they start."""
    with Cluster(wheel, {}) as cluster:
        weighed = windows.start(cluster.dsn(), [SETTING], tmp_path, patience_s=1)
        for value in ("5MB", "4MB", "5MB", "4MB", "5MB"):
            eventually(lambda wanted=value: entries(cluster)[-1] == (wanted,))
        cluster.stop(mode="immediate")
        out, _ = weighed.communicate(timeout=60)
        assert "ALTER SYSTEM RESET work_mem; SELECT pg_reload_conf();" in " ".join(out.split())
        windows_of = read(tmp_path / "w" / "result.json")["design"]["outside"]["windows"]
        assert windows_of["put_back"] is False
        assert (cluster.data_directory / "postgresql.auto.conf").read_text().count("5MB") == 1
        for path in cluster.data_directory.rglob("*"):
            path.chmod(path.stat().st_mode)
        cluster.start()
        eventually(lambda: entries(cluster) == [("4MB",)])
        eventually(lambda: not restore_files(tmp_path))


def test_a_copy_with_our_entry_is_told_from_the_server_by_its_place(
    wheel: Binaries, server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ("work_mem", "5MB")
    with session(server) as conn:
        original = looked(conn)
    with Cluster(wheel, {}) as copy, session(copy) as conn:
        now = looked(conn)
        identifier = now.server.partition("/")[0]
        with pytest.raises(MeasurementError, match="another server"):
            configuration.require_same(conn, replace(now, server=f"{identifier}/1"), left)
        configuration.change(conn, *left, now.entry)
        configuration.require_same(conn, replace(now, server=f"{identifier}/1"), left)
        elsewhere = replace(now, server=f"{identifier}/1", place=original.place)
        with pytest.raises(MeasurementError, match="another server"):
            configuration.require_same(conn, elsewhere, left)
        with pytest.raises(MeasurementError, match="another server"):
            configuration.require_same(conn, replace(now, server="7/1"), left)
        with pytest.raises(MeasurementError, match="another server"):
            configuration.require_same(conn, replace(now, server=f"{identifier}/1"))
        monkeypatch.setattr(configuration, "_PLACE", "SELECT '' WHERE false")  # as on a standby
        with pytest.raises(MeasurementError, match="another server"):
            configuration.require_same(conn, replace(elsewhere, place=None), left)


@pytest.mark.slow
def test_what_is_left_of_one_server_is_not_put_back_on_its_copy(
    wheel: Binaries, server: Cluster, tmp_path: Path
) -> None:
    """Copies and standbys have the same system identifier."""
    weighed = windows.start(server.dsn(), [SETTING], tmp_path)
    eventually(lambda: entries(server)[-1] == ("5MB",))
    guardian = guardian_of(tmp_path)
    guardian.suspend()
    os.kill(weighed.pid, signal.SIGKILL)
    weighed.communicate(timeout=60)
    guardian.kill()
    left = entries(server)
    with Cluster(wheel, {}) as copy:
        elsewhere = windows.start(copy.dsn(), [SETTING], tmp_path, seconds=1)
        _, err = elsewhere.communicate(timeout=60)
        assert len(restore_files(tmp_path)) == 1
        assert str(restore_files(tmp_path)[0]) in "".join(err.split())
        assert entries(server) == left
        with session(copy) as conn, pytest.raises(MeasurementError, match="another server"):
            configuration.require_same(conn, Before(None, "4MB", "7/1"))
    again = windows.start(server.dsn(), [SETTING], tmp_path, seconds=1)
    again.communicate(timeout=60)
    assert entries(server) == [("4MB",)]
    assert not restore_files(tmp_path)


@pytest.mark.slow
def test_a_session_with_other_dates_puts_it_back(server: Cluster, tmp_path: Path) -> None:
    dsn = server.dsn(options="-c datestyle=German")
    weighed = windows.start(dsn, [SETTING], tmp_path)
    eventually(lambda: entries(server)[-1] == ("5MB",))
    weighed.send_signal(signal.SIGINT)
    _, err = weighed.communicate(timeout=60)
    assert "Traceback" not in err
    assert entries(server) == [("4MB",)]


@pytest.mark.slow
def test_a_command_that_is_under_way_does_not_come_late(server: Cluster, tmp_path: Path) -> None:
    """The guardian is killed while it switches off: that must not end after all was put back."""
    file = tmp_path / "file"
    file.touch()
    place = shlex.quote(str(file))
    slow = Switch("x", "commands", on=f"touch {place}", off=f"touch {place}-; sleep 2; rm {place}")
    weighed = windows.start(server.dsn(), [slow], tmp_path)
    eventually(lambda: Path(f"{file}-").exists())
    guardian_of(tmp_path).kill()
    weighed.communicate(timeout=60)
    time.sleep(2.5)
    assert file.exists()


@pytest.mark.slow
def test_a_command_that_never_returns_is_not_said_to_have_ended(
    server: Cluster, tmp_path: Path
) -> None:
    """Ctrl-C while it is tried: the guardian waits for it, and the last line says so."""
    mark = f"77{os.getpid() % 10_000:04}"
    command = f"while true; do sleep 0.{mark}; done"
    never = Switch("never", "commands", on=command, off="true")
    weighed = windows.start(server.dsn(), [never], tmp_path, patience_s=1)
    eventually(lambda: len(running(mark)) > 1)  # besides the one whose argument it is
    guardian = guardian_of(tmp_path)
    weighed.send_signal(signal.SIGINT)
    out, err = weighed.communicate(timeout=60)
    guardian.kill()
    assert weighed.returncode == 130, out + err
    words = " ".join(err.split())
    assert "each command must return" in words
    assert words.endswith("interrupted; not everything is as it was before, see above")
    eventually(lambda: not running(mark))  # what the guardian had started
    again = windows.start(server.dsn(), [SETTING], tmp_path, seconds=1)
    eventually(lambda: bool(running(mark)))
    again.send_signal(signal.SIGINT)
    _, err = again.communicate(timeout=60)
    assert f"which switches never on: cd {os.getcwd()} {command}" in " ".join(err.split())


@pytest.mark.slow
def test_a_guardian_that_does_not_answer_is_not_waited_for(
    server: Cluster, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(server) as conn:
        file = restore_file.make("a server", [SETTING], [looked(conn)])
    guard = SwitchGuard(server.dsn(), file)
    guard.set([True])
    guardian = psutil.Process(guard.pid)
    guardian.suspend()
    monkeypatch.setattr(guardian_client, "ANSWER_S", 0.5)
    monkeypatch.setattr(guardian_client, "PATIENCE_S", 0.5)
    with pytest.raises(MeasurementError, match="no answer in"):
        guard.set([False])
    with pytest.raises(MeasurementError, match=f"process {guard.pid} goes on trying"):
        guard.put_back()
    guardian.resume()
    eventually(lambda: entries(server) == [("4MB",)])


def test_a_guardian_that_does_not_begin_is_ended(
    server: Cluster, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep other weighings away until the command ends."""
    monkeypatch.setattr(guardian_client, "ANSWER_S", 0.0)
    file = restore_file.make("a server", [SETTING], [None])
    with pytest.raises(MeasurementError, match="no answer in 0 s"):
        SwitchGuard(server.dsn(), file)
    assert not own_guardians()
    file.remove()


@pytest.mark.slow
def test_a_host_that_vanishes_is_noticed(wheel: Binaries) -> None:
    with (
        Cluster(wheel, {}, tcp=True) as cluster,
        contextlib.closing(Changer(cluster.dsn(tcp=True), [], [])) as changer,
        socket.fromfd(changer.connect().fileno(), socket.AF_INET, socket.SOCK_STREAM) as link,
    ):
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000


def test_a_restart_of_the_server_is_waited_for(wheel: Binaries, own_place: Path) -> None:
    with Cluster(wheel, {}) as cluster:
        with session(cluster) as conn:
            file = restore_file.make("a server", [SETTING], [looked(conn)])
        guard = SwitchGuard(cluster.dsn(), file)
        guard.set([True])
        cluster.stop()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(guard.put_back)
            time.sleep(1.5)
            cluster.start()
            assert [one.text for one in asked.result()] == ["work_mem was put back"]
        assert entries(cluster) == [("4MB",)]
        assert not file.path.exists()


def test_guardian_and_server_killed_another_guardian_goes_on(
    wheel: Binaries, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian_client, "PATIENCE_S", 1.0)
    with Cluster(wheel, {}) as cluster:
        with session(cluster) as conn:
            file = restore_file.make("a server", [SETTING], [looked(conn)])
        guard = SwitchGuard(cluster.dsn(), file)
        guard.set([True])
        cluster.stop(mode="immediate")
        killed = psutil.Process(guard.pid)
        killed.kill()
        killed.wait()
        with pytest.raises(MeasurementError, match="another one tries to"):
            guard.check()
        guard.check()
        with pytest.raises(MeasurementError, match=r"ALTER SYSTEM RESET work_mem"):
            guard.put_back()
        assert psutil.Process(guard.pid).is_running()
        cluster.start()
        eventually(lambda: entries(cluster) == [("4MB",)])
        eventually(lambda: not file.path.exists())


def test_a_command_that_is_stopped_leaves_nothing_on(server: Cluster, tmp_path: Path) -> None:
    # on a busy machine it may be without a processor for seconds anyway
    weighed = windows.start(server.dsn(), [SETTING], tmp_path, lease_s=9.5)
    for value in ("5MB", "4MB", "5MB", "4MB", "5MB"):
        eventually(lambda wanted=value: entries(server)[-1] == (wanted,))
    weighed.send_signal(signal.SIGSTOP)
    eventually(lambda: not restore_files(tmp_path))
    assert entries(server) == [("4MB",)]
    weighed.send_signal(signal.SIGCONT)
    out, err = weighed.communicate(timeout=60)
    words = " ".join((out + err).split())
    assert weighed.returncode == 1
    assert "THE TRIAL ENDED EARLY" in words
    assert "was stopped, or blocked, for 10 s: everything was put back" in words, words
    assert "Not everything is as it was" not in words
    assert read(tmp_path / "w" / "result.json")["design"]["outside"]["windows"]["put_back"]


@pytest.mark.slow
def test_a_guardian_that_is_killed_is_missed_before_a_long_window(
    server: Cluster, own_place: Path
) -> None:
    """A process begins up to a window before it."""
    switches = [Switch("x", "process", on="sleep 300")]
    guard = SwitchGuard(server.dsn(), restore_file.make("a server", switches, [None]), 600)
    always_late = random.Random()
    always_late.uniform = lambda first, last: last  # type: ignore[method-assign]
    arms = (Arm("base", "base"), Arm("control", "control"), Arm("x", "instrument"))
    design = Design(arms, (0, 1, 2), 1, driven=True, grouping="windows")
    unused: Any = None
    watch: Any = SimpleNamespace(switching=lambda block, arm: None)
    windows_of = Schedule(unused, guard, watch, design, switches, 600, 1, always_late)

    def kill() -> None:
        eventually(lambda: bool(guard.leaders))
        psutil.Process(guard.pid).kill()

    threading.Thread(target=kill).start()
    began = time.monotonic()
    with pytest.raises(MeasurementError, match="was killed, so it was done at once"):
        windows_of._switch_to(0, 0)
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_everything_is_put_back_before_the_analysis(
    server: Cluster, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a window with the setting on."""
    seen: list[object] = []

    def analyse(*arguments: Any, **options: Any) -> Any:
        seen.append(entries(server))
        return analysis(*arguments, **options)

    def interrupt() -> None:
        for value in ("5MB", "4MB", "5MB"):  # the first time it is only tried out
            eventually(lambda wanted=value: entries(server)[-1] == (wanted,))
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    analysis = outside_run.analyse
    monkeypatch.setattr(outside_run, "analyse", analyse)
    monkeypatch.setattr(schedule, "SETTLE_S", 0.1)
    request = Request(
        (),
        dsn=server.dsn(),
        outside=True,
        duration_s=60,
        window_s=2,
        switches=(SETTING,),
        allow=ALLOWED,
        seed=7,
    )
    threading.Thread(target=interrupt).start()
    done = run.weigh(request, ["pgtare"], Console(stderr=True))
    assert done.result.design.partial
    assert seen == [[("4MB",)]]


def test_a_server_that_is_back_after_long_has_its_setting_back_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 50:
            raise InterruptedError

    away = Changer(f"host={tmp_path}", [SETTING], [Before(None, "4MB", "7/1")], touched=[True])
    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(InterruptedError):
        guardian._try_to_put_back(away, 1e9, lambda: True)
    assert max(pauses) < 1


@pytest.mark.slow
def test_a_command_that_needs_the_server_is_not_run_all_the_time_while_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, now = tmp_path / "ran", [0.0]
    ran.touch()
    needs = Switch("x", "commands", on=f"echo >> {ran}; false", off="true")
    before = [Before(None, "4MB", "7/1"), None]
    away = Changer(f"host={tmp_path}", [SETTING, needs], before, touched=[True, True])

    def sleep(pause_s: float) -> None:
        now[0] += pause_s
        if now[0] > 60:
            raise InterruptedError

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(guardian, "time", clock)
    with pytest.raises(InterruptedError):
        guardian._try_to_put_back(away, 1e9, lambda: True)
    assert 5 < len(ran.read_text()) < 20


@pytest.mark.slow
def test_a_guardian_that_is_killed_while_it_tries_a_command_leaves_nothing_half_done(
    server: Cluster, own_place: Path, tmp_path: Path
) -> None:
    """The command is run again: it may have been in the middle."""
    ran = tmp_path / "ran"
    slow = Switch("x", "commands", on=f"echo on >> {ran}; sleep 2", off="true")
    guard = SwitchGuard(server.dsn(), restore_file.make("a server", [slow], [None]))

    def kill() -> None:
        eventually(ran.exists)
        psutil.Process(guard.pid).kill()

    threading.Thread(target=kill).start()
    with pytest.raises(MeasurementError, match="was killed, so it was done at once"):
        guard.try_as_it_is(0)
    assert [one.text for one in guard.put_back()] == ["x is on again"]
    assert ran.read_text() == 2 * "on\n"


@pytest.mark.slow
def test_a_slow_load_is_no_command_that_was_stopped(
    server: Cluster, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian_client, "LEASE_S", 1.0)
    switch = Switch("x", "commands", on="true", off="true")
    guard = SwitchGuard(server.dsn(), restore_file.make("a server", [switch], [None]))
    guard.allow(10.0)
    guard.set([False])
    time.sleep(2.5)
    guard.check()
    assert [one.text for one in guard.put_back()] == ["x is on again"]


@pytest.mark.slow
def test_a_slow_command_that_puts_back_is_waited_for(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "own"))
    monkeypatch.setattr(guardian_client, "PATIENCE_S", 0.5)
    slow = Switch("x", "commands", on="sleep 1.5", off="true")
    guard = SwitchGuard(server.dsn(), restore_file.make("a server", [slow], [None]))
    guard.set([False])
    assert [one.text for one in guard.put_back()] == ["x is on again"]
    assert not restore_files(tmp_path)


def test_a_setting_is_put_back_before_slow_commands_run(server: Cluster, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    psql = shlex.join([str(server.binaries.psql), "-XAtqc", "SHOW work_mem", server.dsn()])
    slow = Switch("x", "commands", on=f"{psql} > {shlex.quote(str(seen))}", off="true")
    with session(server) as conn:
        before = looked(conn)
    changer = Changer(server.dsn(), [slow, SETTING], [None, before])
    changer.switch(0, False)
    changer.switch(1, True)
    changer.put_back()
    changer.close()
    assert seen.read_text() == "4MB\n"


def test_what_a_command_leaves_running_outlives_the_guardian(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on writing where the command wrote."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "own"))
    lines, pid = tmp_path / "lines", tmp_path / "pid"
    on = (
        f"(while true; do echo on || exit; echo on >> {shlex.quote(str(lines))}; sleep 0.1; done) &"
        f" echo $! > {shlex.quote(str(pid))}"
    )
    switch = Switch("x", "commands", on=on, off="true")
    guard = SwitchGuard(server.dsn(), restore_file.make("a server", [switch], [None]))
    guard.set([False])
    guard.put_back()
    psutil.wait_procs([psutil.Process(guard.pid)], 10)
    written = lines.stat().st_size
    try:
        eventually(lambda: lines.stat().st_size > written + 6)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def daemon(pid: Path, line: str = "sleep 300") -> str:
    """A command that starts something that detaches itself, and returns."""
    file = shlex.quote(str(pid))
    starts = f"setsid sh -c {shlex.quote(f'echo $$ > {file}; exec {line}')}"
    ready = f"until test -s {file}; do sleep 0.02; done; sleep 0.3"
    return f"rm -f {file}; {starts} > /dev/null 2>&1 < /dev/null & {ready}"


def test_a_watcher_that_was_restored_outlives_the_end_of_another(
    server: Cluster, own_place: Path, tmp_path: Path
) -> None:
    """The one's command starts a daemon while the other's process runs."""
    pid = tmp_path / "pid"
    switches = [
        Switch("a", "commands", on=daemon(pid), off="true"),
        Switch("b", "process", on="sleep 300"),
    ]
    guard = SwitchGuard(server.dsn(), restore_file.make("a server", switches, [None, None]))
    for states in ([False, True], [True, True], [True, False]):
        guard.set(states)
    guard.put_back()
    process = psutil.Process(int(pid.read_text()))
    try:
        assert process.status() != psutil.STATUS_ZOMBIE
    finally:
        process.kill()


@pytest.mark.slow
def test_a_daemon_that_was_ended_is_gone(server: Cluster, own_place: Path, tmp_path: Path) -> None:
    """Scripts of services wait until its process is no longer there."""
    pid = tmp_path / "pid"
    off = (
        f"p=$(cat {pid}); kill $p; n=0; "
        "while kill -0 $p && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done; ! kill -0 $p"
    )
    switch = Switch("a", "commands", on=daemon(pid), off=off)
    subprocess.run(["sh", "-c", switch.on], check=True)
    guard = SwitchGuard(server.dsn(), restore_file.make("a server", [switch], [None]))
    for state in (False, True, False):
        guard.set([state])
    guard.put_back()
    process = psutil.Process(int(pid.read_text()))
    assert process.status() != psutil.STATUS_ZOMBIE
    process.kill()


def _on_and_off(changer: Changer, pid: Path) -> None:
    changer.switch(0, True)
    eventually(lambda: pid.exists() and pid.read_text())
    time.sleep(2)  # the command returns a little later
    changer.switch(0, False)


def test_a_command_that_detaches_itself_leaves_nothing(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    changer = Changer("", [Switch("x", "process", on=daemon(pid))], [None])
    # on a slow machine it may not be seen to have returned when it is switched on
    with pytest.raises(MeasurementError, match="needs a second one that switches off"):
        _on_and_off(changer, pid)
    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.slow
def test_a_command_that_has_returned_is_said_so_while_what_it_left_is_ended(
    tmp_path: Path,
) -> None:
    """Its daemon ignores SIGTERM and takes seconds to end; the switch goes off meanwhile."""
    pid = tmp_path / "pid"
    waits = "trap '' TERM; sleep 5"
    changer = Changer(
        "", [Switch("x", "process", on=daemon(pid, f"sh -c {shlex.quote(waits)}"))], [None]
    )
    with pytest.raises(MeasurementError, match="needs a second one that switches off"):
        _on_and_off(changer, pid)
    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("sees", [False, True], ids=["put back", "switched off"])
def test_a_killed_keeper_is_not_said_to_have_left_nothing(tmp_path: Path, sees: bool) -> None:
    """What has detached itself is no child of ours any more; as if memory had run out."""
    pid = tmp_path / "pid"
    changer = Changer("", [Switch("x", "process", on=f"{daemon(pid)}; sleep 300")], [None])
    changer.switch(0, True)
    eventually(lambda: pid.exists() and pid.read_text())
    os.kill(changer.leaders[0], signal.SIGKILL)
    try:
        if sees:
            with pytest.raises(MeasurementError, match="its keeper was killed"):
                changer.switch(0, False)
        (said,) = changer.put_back()
        assert "what it started may still run" in said.text
        assert not said.as_before
    finally:
        psutil.Process(int(pid.read_text())).kill()


@pytest.mark.slow
def test_a_process_of_another_user_is_named(
    tmp_path: Path, as_root: None, open_directory: Path
) -> None:
    """As behind sudo: it cannot be ended, and says so before anything is measured."""
    on = open_directory / "as_root"
    subprocess.run(["cc", "-xc", "-", "-o", on], input=_AS_ROOT, text=True, check=True)
    on.chmod(0o4755)
    program = (
        "from pgtare.weighing.switches import Switch\n"
        "from pgtare.weighing.whole_server.changer import Changer\n"
        f"changer = Changer('', [Switch('x', 'process', on={str(on)!r})], [None])\n"
        "changer.switch(0, True)\n"
        "try: changer.switch(0, False)\n"
        "except Exception as ex: print(type(ex).__name__, ex)\n"
        "changer.on[0] = False; changer.switch(0, True)\n"
        "print(changer.put_back())\n"
    )
    # it may read the interpreter, wherever that is
    nobody = "--reuid 65534 --regid 65534 --clear-groups --inh-caps=+dac_read_search"
    command = ["setpriv", *nobody.split(), "--ambient-caps=+dac_read_search"]
    command += [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    ended, put_back = done.stdout.splitlines()
    assert re.match(r"MeasurementError .*process \d+ \(.*of root\) cannot be ended: end it", ended)
    assert "as_before=False" in put_back


_AS_ROOT = """
#define _GNU_SOURCE
#include <unistd.h>
int main(void) { return setresgid(0, 0, 0) || setresuid(0, 0, 0) || sleep(30); }
"""


@pytest.mark.slow
def test_processes_that_leave_or_do_not_listen_end_as_well(server: Cluster, tmp_path: Path) -> None:
    mark = f"13{os.getpid() % 10_000:04}"
    stubborn = Switch(
        "x",
        "process",
        on=f"trap '' TERM; setsid sleep 3{mark} & (sleep 4{mark}; true) & sleep 5{mark}",
    )

    def left() -> list[str]:
        lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
        return [line for line in lines if line.startswith("sleep") and line.endswith(mark)]

    weighed = windows.start(server.dsn(), [stubborn], tmp_path)
    eventually(lambda: len(left()) == 3)
    weighed.send_signal(signal.SIGTERM)
    weighed.communicate(timeout=60)
    eventually(lambda: not left())


@pytest.mark.slow
def test_what_cannot_be_put_back_is_in_the_result(server: Cluster, tmp_path: Path) -> None:
    """The command that switches on stops working when the trial is under way."""
    on = shlex.quote(str(tmp_path / "on"))
    (tmp_path / "on").write_text("exit 0\n")
    switch = Switch("x", "commands", on=f"sh {on}", off="true")
    weighed = windows.start(server.dsn(), [SETTING, switch], tmp_path)
    for value in ("5MB", "4MB", "5MB"):
        eventually(lambda wanted=value: entries(server)[-1] == (wanted,))
    (tmp_path / "on").write_text("exit 3\n")
    out, err = weighed.communicate(timeout=60)
    assert weighed.returncode == 1
    assert "switching x on: the command failed (status 3)" in " ".join(err.split())
    assert "Not everything is as it was before" in " ".join(out.split()), out
    windows_of = read(tmp_path / "w" / "result.json")["design"]["outside"]["windows"]
    assert windows_of["put_back"] is False
    guardian_of(tmp_path).kill()


def provided(server: Cluster, before: str = "") -> Switch:
    """What a provider offers: commands that change a setting, after what runs before."""
    psql = shlex.join([str(server.binaries.psql), "-Xq", "-d", server.dsn()])

    def command(statement: str) -> str:
        words = f"{psql} -c {shlex.quote(statement)} -c 'SELECT pg_reload_conf()' > /dev/null"
        return f"setsid sh -c {shlex.quote(before + words)} > /dev/null &" if before else words

    on, off = command("ALTER SYSTEM SET work_mem = '5MB'"), command("ALTER SYSTEM RESET work_mem")
    return Switch("mem", "commands", on, off, "work_mem", "5MB")


def set_and_reload(cluster: Cluster, statement: str) -> None:
    with session(cluster) as conn:
        conn.execute(statement.encode())
        conn.execute("SELECT pg_reload_conf()")


@pytest.mark.slow
@pytest.mark.parametrize("is_on", [True, False], ids=["on before", "off before"])
def test_a_providers_commands_are_waited_for(server: Cluster, tmp_path: Path, is_on: bool) -> None:
    """They return at once, and the server shows the value later."""
    if is_on:
        set_and_reload(server, "ALTER SYSTEM SET work_mem = '5MB'")
    eventually(lambda: entries(server)[-1] == ("5MB" if is_on else "4MB",))
    try:
        switch = provided(server, "sleep 0.3; ")
        weighed = windows.start(server.dsn(), [switch], tmp_path, seconds=20, sql=SLOWER)
        _, err = weighed.communicate(timeout=120)
        assert weighed.returncode == 0, err
        found = {a["name"]: a for a in read(tmp_path / "w" / "result.json")["arms"]}
        cost_us = found["mem"]["answer"]["us"]
        assert cost_us["lo"] < 6_000
        assert cost_us["hi"] > 2_000
        eventually(lambda: entries(server)[-1] == ("5MB" if is_on else "4MB",))
    finally:
        set_and_reload(server, "ALTER SYSTEM RESET work_mem")


@pytest.mark.slow
def test_what_a_provider_has_off_is_off_again(server: Cluster, tmp_path: Path) -> None:
    weighed = windows.start(server.dsn(), [provided(server)], tmp_path)
    eventually(lambda: restore_files(tmp_path))
    (file,) = restore_files(tmp_path)
    assert "which switches mem off:" in file.read_text()
    for value in ("5MB", "4MB", "5MB"):  # the first time it is only tried out
        eventually(lambda wanted=value: entries(server)[-1] == (wanted,))
    weighed.kill()
    weighed.communicate(timeout=60)
    eventually(lambda: entries(server)[-1] == ("4MB",))
    eventually(lambda: not restore_files(tmp_path))


def test_what_commands_switch_is_shown_before(server: Cluster) -> None:
    asked = "weigh --dsn {} --switch 'x: true | false | track_io_timing = TRUE' --dry-run"
    done = in_process(asked, server.dsn())
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert (
        "x: track_io_timing = TRUE, which is not so now (off), and will be not so again after"
        in words
    )
    assert "x on: true x off: false" in words


def test_what_cannot_be_switched_on_is_not_switched_off(server: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    switch = Switch("x", "commands", on="no_such_cmd", off=f"rm {shlex.quote(str(file))}")
    weighed = windows.start(server.dsn(), [switch], tmp_path)
    _, err = weighed.communicate(timeout=60)
    assert weighed.returncode == 1
    assert "switching x on: the command failed (status 127)" in " ".join(err.split()), err
    assert file.exists()
    assert not restore_files(tmp_path)


def test_somebody_elses_change_is_left_alone(server: Cluster, tmp_path: Path) -> None:
    weighed = windows.start(server.dsn(), [SETTING], tmp_path)
    eventually(lambda: entries(server)[-1] == ("5MB",))

    def ended() -> bool:
        """Nothing changes an entry only if it is still the same, so it may have to be set anew."""
        if weighed.poll() is None and ("work_mem", "6MB") not in entries(server):
            with session(server) as conn:
                conn.execute("ALTER SYSTEM SET work_mem = '6MB'")
                conn.execute("SELECT pg_reload_conf()")
        return weighed.poll() is not None

    try:
        eventually(ended, 60)
        _, err = weighed.communicate(timeout=60)
        assert weighed.returncode == 1
        assert "somebody else has set it to 6MB" in " ".join(err.split()), err
        assert entries(server)[0] == ("work_mem", "6MB")
    finally:
        with session(server) as conn:
            conn.execute("ALTER SYSTEM RESET work_mem")
            conn.execute("SELECT pg_reload_conf()")


def test_what_somebody_else_has_set_is_not_repeated_if_it_may_be_secret(server: Cluster) -> None:
    with session(server) as conn:
        for name in ("primary_conninfo", "ext.api_key"):
            conn.execute(f"ALTER SYSTEM SET {name} = 'password=hush17'".encode())
        conn.execute("SELECT pg_reload_conf()")
        try:
            for name in ("primary_conninfo", "ext.api_key"):
                said = configuration.put_back(conn, name, "ours", Before(None, "", "7/1")).text
                assert said.endswith("somebody else has set it to another value")
                with pytest.raises(MeasurementError, match="to another value meanwhile"):
                    configuration.change(conn, name, "ours", None)
        finally:
            for name in ("primary_conninfo", "ext.api_key"):
                conn.execute(f"ALTER SYSTEM RESET {name}".encode())
            conn.execute("SELECT pg_reload_conf()")


def test_an_entry_that_was_there_is_there_again(server: Cluster, tmp_path: Path) -> None:
    with session(server) as conn:
        conn.execute("ALTER SYSTEM SET work_mem = '3MB'")
        conn.execute("SELECT pg_reload_conf()")
    try:
        weighed = windows.start(server.dsn(), [SETTING], tmp_path)
        eventually(lambda: entries(server)[-1] == ("5MB",))
        weighed.send_signal(signal.SIGINT)
        weighed.communicate(timeout=60)
        assert entries(server) == [("work_mem", "3MB"), ("3MB",)]
    finally:
        with session(server) as conn:
            conn.execute("ALTER SYSTEM RESET work_mem")
            conn.execute("SELECT pg_reload_conf()")


def test_two_weighings_do_not_switch_one_server(server: Cluster, tmp_path: Path) -> None:
    """While the first has its setting on, which looks like the server's own configuration."""
    # the others are slow to begin on a busy machine, and it is stopped meanwhile
    first = windows.start(server.dsn(), [SETTING], tmp_path, lease_s=600)

    def held() -> bool:
        first.send_signal(signal.SIGCONT)
        eventually(lambda: entries(server)[-1] == ("5MB",))
        first.send_signal(signal.SIGSTOP)
        time.sleep(1)  # its guardian may be about to switch off
        return entries(server)[-1] == ("5MB",)

    try:
        eventually(held)
        second = windows.start(server.dsn(), [SETTING], tmp_path)
        _, err = second.communicate(timeout=60)
        assert second.returncode == 1
        assert "another weighing switches this server" in " ".join(err.split())
        (tmp_path / "b").mkdir()
        elsewhere = windows.start(server.dsn(), [SETTING], tmp_path / "b")
        _, err = elsewhere.communicate(timeout=60)
        assert elsewhere.returncode == 1
        assert "another weighing switches this server" in " ".join(err.split()), err
        assert "another weighing switches this server" in refused(
            "weigh --dsn {} --reload 'mem: work_mem = 5MB' --allow work_mem --dry-run", server.dsn()
        )
        with session(server) as conn, pytest.raises(UsageError, match="another weighing"):
            check_alone(conn)  # as a guardian does, if both began at once
    finally:
        first.send_signal(signal.SIGCONT)
        first.terminate()
        first.communicate(timeout=60)
    assert entries(server) == [("4MB",)]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--reload 'x: no_such = 1'", "the server has no setting no_such"),
        ("--reload 'x: shared_buffers = 1GB'", "changes with a restart only"),
        ("--reload 'x: log_connections = on'", "holds for new sessions"),
        ("--reload 'x: search_path = a'", "holds for new sessions"),
        ("--reload 'x: fsync = off'", "--allow fsync"),
        ("--reload 'x: work_mem = 2GB'", "--allow work_mem"),
        ("--reload 'x: seq_page_cost = 9'", "--allow seq_page_cost"),
        ("--reload 'x: statement_timeout = 1s' --allow fsync", "--allow statement_timeout"),
        ("--reload 'x: log_statement = all'", "fill the log"),
        ("--reload 'x: fsync = off' --allow fsync --period 1m -d 60", "add --duration"),
        ("--reload 'x: track_io_timing = maybe'", "cannot be 'maybe'; it can be off, on"),
        ("--reload 'x: bytea_output = loud' --allow bytea_output", "it can be escape, hex"),
        ("--reload 'x: work_mem = 4MB' --allow work_mem", "is 4MB already"),
        ("--reload 'x: work_mem = 4096' --allow work_mem", "is 4MB already"),
        ("--reload 'x: track_io_timing = no'", "is off already"),
        ("--reload 'x'", "as in --reload"),
        ("--reload 'control: work_mem = 1MB'", "none of them base or control"),
        ("--switch 'x: a | b | c | d'", "put a pipeline into a script"),
        ("--switch 'x: true' --server 'a: y' --server 'b: z'", "leave out"),
        ("--switch 'x: true' --at-most 3%", "leave out --at-most"),
        ("--switch 'x: true' --window 5s", "15s at least"),
        ("--period 10s", "are for --switch and --reload"),
        ("--switch 'x: true' -d 60", "add --duration 8m or more"),
        (
            f"{RELOAD} --dry-run --sql 'garbage'",
            "begins with GARBAGE",
        ),
        (
            f"{RELOAD} --dry-run --sql 'SET LOCAL Work_Mem = 1'",
            "overrides a setting that is weighed",
        ),
    ],
)
def test_what_cannot_be_switched_says_why(server: Cluster, option: str, words: str) -> None:
    assert words in refused(f"weigh --dsn {{}} {option}", server.dsn())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("idle_session_timeout", "9min"),
        pytest.param("lock_timeout", "6s", marks=pytest.mark.slow),
        pytest.param("idle_in_transaction_session_timeout", "6s", marks=pytest.mark.slow),
        pytest.param("client_connection_check_interval", "6s", marks=pytest.mark.slow),
        ("default_transaction_isolation", "repeatable read"),
    ],
)
def test_a_setting_that_is_weighed_is_not_set_in_our_sessions(
    wheel: Binaries, setting: str, value: str
) -> None:
    """The server's value is what is there without it, and in the session that pays."""
    with Cluster(wheel, {setting: value}) as cluster:
        ours = "0" if value.endswith(("s", "min")) else "read committed"
        option = f"--reload 'x: {setting} = {ours}' --allow {setting} --dry-run"
        done = in_process(f"weigh --dsn {{}} {option}", cluster.dsn())
        assert done.returncode == 0, done.stderr
        assert f"{setting} is {value} now" in " ".join(done.stdout.split())
        with control_session(cluster.dsn()) as control:
            before = one(control, f"SHOW {setting}")
            with driven_session(cluster.dsn(), control, writes=False, weighed=[setting]) as driven:
                require_follows(driven, "--reload x", setting)
                assert one(driven, f"SHOW {setting}") == value
            with without_own(control, setting):
                assert one(control, f"SHOW {setting}") == value
            assert one(control, f"SHOW {setting}") == before


def test_a_setting_that_our_session_needs_is_not_weighed(server: Cluster) -> None:
    name = "default_transaction_read_only"
    option = f"--reload 'x: {name} = on' --allow {name}"
    sentence = refused(f"weigh --dsn {{}} {option}", server.dsn())
    assert f"--reload x: {name} is set by pgtare" in sentence
    assert "add --writes" in sentence


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        (Switch("x", "process", on="echo out of order; exit 3"), "out of order"),
        (Switch("x", "commands", on="true", off="echo no way; exit 3"), "no way"),
        (Switch.parse_reload("x: work_mem = lots"), 'invalid value for parameter "work_mem"'),
        (Switch.parse_reload("x: datestyle = ISO"), "with and without it"),
    ],
)
def test_what_fails_does_so_before_anything_is_measured(
    server: Cluster, tmp_path: Path, switch: Switch, words: str
) -> None:
    weighed = windows.start(server.dsn(), [switch], tmp_path)
    out, err = weighed.communicate(timeout=60)
    assert weighed.returncode == 1
    assert words in " ".join(err.split()), err
    assert not out
    assert entries(server) == [("4MB",)]
    assert not restore_files(tmp_path)


def test_only_what_is_known_to_be_harmless_is_not_asked_about(server: Cluster) -> None:
    """Some that end, lose, hide or change something."""
    for name in (
        "bytea_output",
        "default_transaction_isolation",
        "exit_on_error",
        "hot_standby_feedback",
        "log_temp_files",
        "max_stack_depth",
        "max_standby_streaming_delay",
        "recovery_min_apply_delay",
        "ssl_ca_file",
        "standard_conforming_strings",
        "temp_file_limit",
        "track_activities",
        "track_counts",
        "work_mem",
    ):
        reload = Switch.parse_reload(f"x: {name} = 1")
        with session(server) as conn, pytest.raises(UsageError, match=f"--allow {name} if"):
            configuration.look(conn, reload)
    with session(server) as conn:
        assert configuration.look(conn, Switch.parse_reload("x: track_io_timing = on"))


def test_what_counts_is_not_kept_without_being_asked_about(wheel: Binaries) -> None:
    """With save off, a restart in a window loses all statistics."""
    with Cluster(wheel, {}, ["pg_stat_statements"]) as cluster, session(cluster) as conn:
        utility = Switch.parse_reload("x: pg_stat_statements.track_utility = off")
        assert configuration.look(conn, utility)
        with pytest.raises(UsageError, match=r"--allow pg_stat_statements\.save if"):
            configuration.look(conn, Switch.parse_reload("x: pg_stat_statements.save = off"))


@pytest.mark.slow
def test_pending_edits_are_not_put_into_force(wheel: Binaries, tmp_path: Path) -> None:
    with Cluster(wheel, {}) as cluster:
        time.sleep(1.1)  # the server knows the times of files to the second
        with session(cluster) as conn:
            conn.execute("ALTER SYSTEM SET maintenance_work_mem = '99MB'")
            assert "a reload would put that into force" in refused(
                f"weigh --dsn {{}} {RELOAD}", cluster.dsn()
            )
            conn.execute("ALTER SYSTEM RESET maintenance_work_mem")
            conn.execute("SELECT pg_reload_conf()")
        with session(cluster) as conn:
            hba = one(conn, "SHOW hba_file")
            config = Path(one(conn, "SHOW config_file"))
        written, before = config.read_text(), config.stat()
        config.write_text(f"{written}\nmaintenance_work_mem = 77MB\n")
        os.utime(config, (before.st_atime, before.st_mtime))  # as if it was moved there
        assert "pgtare.conf was changed" in refused(f"weigh --dsn {{}} {RELOAD}", cluster.dsn())
        config.write_text(written)
        os.utime(config, (before.st_atime, before.st_mtime))
        subprocess.run(["touch", "-d", "+1 minute", hba], check=True)
        assert "pg_hba.conf was changed" in refused(f"weigh --dsn {{}} {RELOAD}", cluster.dsn())


def test_who_manages_the_configuration_is_told(server: Cluster) -> None:
    """Before anything else, and to a role that may do nothing."""
    with (
        session(server) as conn,
        session(server, application_name="Patroni restapi"),
    ):
        conn.execute("CREATE ROLE nothing_much LOGIN")
        try:
            sentence = refused(
                "weigh --dsn {} --reload 'x: work_mem = 5MB'", server.dsn(user="nothing_much")
            )
        finally:
            conn.execute("DROP ROLE nothing_much")
    assert "Patroni writes this server's configuration" in sentence
    assert "--switch 'x: COMMAND ON | COMMAND OFF | work_mem = 5MB'" in sentence


def test_a_role_without_rights_is_told_which(server: Cluster) -> None:
    with session(server) as conn:
        conn.execute("CREATE ROLE nobody_much LOGIN")
    try:
        sentence = refused(
            f"weigh --dsn {{}} {RELOAD}",
            server.dsn(user="nobody_much"),
        )
        assert 'GRANT ALTER SYSTEM ON PARAMETER "work_mem" TO "nobody_much";\n' in sentence
    finally:
        with session(server) as conn:
            conn.execute("DROP ROLE nobody_much")


def grant_what_is_named(cluster: Cluster, conn: Connection[Any]) -> None:
    """To the role weigher, of what its refusal lists."""
    asked = f"weigh --dsn {{}} {RELOAD} --dry-run"
    sentence = refused(asked, cluster.dsn(user="weigher"))
    conn.execute(sentence[sentence.index("\nGRANT") :].encode())


def test_a_role_with_the_rights_that_are_named_sees_pending_edits(wheel: Binaries) -> None:
    with Cluster(wheel, {}) as cluster, session(cluster) as conn:
        conn.execute("CREATE ROLE weigher LOGIN")
        grant_what_is_named(cluster, conn)
        asked = f"weigh --dsn {{}} {RELOAD} --dry-run"
        assert in_process(asked, cluster.dsn(user="weigher")).returncode == 0
        conn.execute("REVOKE pg_read_all_settings FROM weigher")
        assert "one of them is missing" in refused(asked, cluster.dsn(user="weigher"))
        conn.execute("GRANT pg_read_all_settings TO weigher")
        subprocess.run(["touch", "-d", "+1 minute", one(conn, "SHOW hba_file")], check=True)
        assert "pg_hba.conf was changed" in refused(asked, cluster.dsn(user="weigher"))


@pytest.mark.slow
def test_a_reload_by_somebody_else_hides_no_edits(wheel: Binaries) -> None:
    """A session that was idle then reads the files when it is asked again."""
    with Cluster(wheel, {}) as cluster, session(cluster) as idle, session(cluster) as conn:
        config = Path(one(conn, "SHOW config_file"))
        loaded = "SELECT pg_conf_load_time()::text"
        before = one(conn, loaded)
        conn.execute("SELECT pg_reload_conf()")
        eventually(lambda: one(conn, loaded) != before)
        time.sleep(1.1)  # the server knows the times of files to the second
        config.write_text(f"{config.read_text()}\nmaintenance_work_mem = 77MB\n")
        time.sleep(1.1)
        with pytest.raises(UsageError, match=r"pgtare\.conf was changed"):
            configuration.refuse_pending(idle)


def test_a_server_without_the_time_of_a_change_is_told_by_that_of_creation(
    server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows; files have no time of creation elsewhere."""
    query = configuration._IDENTITY.replace("(change,", "(NULL::timestamptz,")
    monkeypatch.setattr(configuration, "_IDENTITY", query)
    with session(server) as conn, pytest.raises(UsageError, match="cannot be told from its copies"):
        looked(conn)
    monkeypatch.setattr(configuration, "_IDENTITY", query.replace("creation", "modification"))
    with session(server) as conn:
        assert looked(conn).server.partition("/")[2].isdigit()


@pytest.mark.slow
def test_a_role_with_the_rights_that_are_named_may_reload(server: Cluster, tmp_path: Path) -> None:
    with session(server) as conn:
        conn.execute("CREATE ROLE weigher LOGIN")
        grant_what_is_named(server, conn)
    try:
        weighed = windows.start(server.dsn(user="weigher"), [SETTING], tmp_path)
        for value in ("5MB", "4MB", "5MB", "4MB", "5MB"):
            eventually(lambda wanted=value: entries(server)[-1] == (wanted,))
        weighed.send_signal(signal.SIGINT)
        out, err = weighed.communicate(timeout=60)
        assert "the role needs pg_monitor" in " ".join(out.split()), out + err
        assert entries(server) == [("4MB",)]
    finally:
        with session(server) as conn:
            conn.execute("REVOKE ALTER SYSTEM ON PARAMETER work_mem FROM weigher")
            conn.execute("DROP OWNED BY weigher; DROP ROLE weigher")


def test_the_plan_is_printed_and_nothing_done(server: Cluster) -> None:
    done = in_process(
        f"weigh --dsn {{}} {RELOAD} --period 20s --dry-run",
        server.dsn(),
    )
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "584 s: 24 windows of 20 s in random order. x: on for the whole server in 8" in words
    assert "x: work_mem is 4MB now, and 5MB for all sessions in its windows" in words
    assert entries(server) == [("4MB",)]


def test_a_server_elsewhere_has_the_time_of_its_sessions_sampled(server: Cluster) -> None:
    with (
        session(server) as control,
        session(server, application_name="exporter") as busy,
    ):
        watch = WatcherTime(control, [control.info.backend_pid])
        assert watch.sees_processes
        watch._postmaster = None
        with asleep(busy):
            eventually(lambda: one(control, _ACTIVE) == 1)
            watch.begin(0, 2, {})
            for _ in range(3):
                watch.look()
            watch.end(1.0, {})
    (window,) = watch.windows
    assert window.server_ns is None
    assert active_share(window, set()) == 1.0
    assert active_share(window, {("postgres", "exporter", "")}) == 0.0


def test_what_the_server_runs_counts_as_the_server_s(server: Cluster) -> None:
    """Whoever ran it has not ended yet."""
    # until it has had a second of a processor, which others may want as well
    program = "sh -c 'ulimit -c 0; ulimit -t 1; while :; do :; done' || true"
    with session(server) as control, session(server) as other:
        watch = WatcherTime(control, [control.info.backend_pid])
        watch.begin(0, 2, {})
        other.execute(f"COPY (SELECT 1) TO PROGRAM $p${program}$p$".encode())
        watch.end(1.0, {})
    server_ns = watch.windows[0].server_ns
    assert server_ns is not None
    assert server_ns > 0.5e9


_ACTIVE = """
SELECT count(*) FROM pg_stat_activity WHERE application_name = 'exporter' AND state = 'active'
"""


def test_a_role_that_sees_nobody_is_told_so(server: Cluster) -> None:
    with session(server) as conn:
        conn.execute("CREATE ROLE blind LOGIN")
        try:
            with session(server, user="blind") as control:
                watch = WatcherTime(control, [control.info.backend_pid])
                assert not watch.sees_sessions
                watch.begin(0, 2, {})
                watch.end(1.0, {})
                assert watch.windows[0].server_ns is None
        finally:
            conn.execute("DROP ROLE blind")
