"""What a weighing changed is put back by whoever is left, though others came or went meanwhile."""

from __future__ import annotations

import random
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pgtare.errors import UsageError
from pgtare.estimate.trial.design import Arm, Design
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.weighing.switches import Switch
from pgtare.weighing.whole_server import changer, configuration
from pgtare.weighing.whole_server.schedule import Schedule
from tests import windows
from tests.server.test_weigh_windows import (
    SETTING,
    entries,
    guardian_of,
    restore_files,
    toggled,
)
from tests.sessions import eventually, one, session

pytestmark = pytest.mark.server

OTHER = Switch.parse_reload("mem: work_mem = 6MB")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Path]]:
    """Of two hosts; no guardian outlives the test."""
    found = [tmp_path / name for name in "ab"]
    for place in found:
        place.mkdir()
    yield found
    for place in found:
        try:
            guardian_of(place).kill()
        except LookupError:
            continue


@pytest.fixture(scope="module")
def server(wheel: Binaries) -> Iterator[Cluster]:
    with Cluster(wheel, {}) as cluster:
        yield cluster


def set_and_reload(cluster: Cluster, statement: str) -> None:
    with session(cluster) as conn:
        conn.execute(statement.encode())
        conn.execute("SELECT pg_reload_conf()")


@pytest.fixture
def five(server: Cluster) -> Iterator[Cluster]:
    """A server that goes on showing 5MB."""
    set_and_reload(server, "ALTER SYSTEM SET work_mem = '5MB'")
    yield server
    set_and_reload(server, "ALTER SYSTEM RESET work_mem")
    eventually(lambda: entries(server) == [("4MB",)])


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=60)


def on_and_command_killed(cluster: Cluster, place: Path) -> psutil.Process:
    """The setting is on, the server is down, the command is killed; its guardian, suspended."""
    weighed = windows.start(cluster.dsn(), [SETTING], place)
    guardian = None
    while guardian is None or entries(cluster)[-1] != ("5MB",):  # it may just switch off
        if guardian is not None:
            guardian.resume()
        eventually(lambda: entries(cluster)[-1] == ("5MB",))
        guardian = guardian_of(place)
        guardian.suspend()
        time.sleep(0.2)  # what it has asked for is done by then
    cluster.stop(mode="immediate")
    kill(weighed)
    return guardian


def test_a_second_weighing_does_not_keep_a_guardian_from_its_work(
    wheel: Binaries, places: list[Path]
) -> None:
    """It began while the first guardian had no session, and took 5MB for the value before."""
    with Cluster(wheel, {}) as cluster:
        guardian = on_and_command_killed(cluster, places[0])
        cluster.start()
        second = windows.start(cluster.dsn(), [OTHER], places[1])
        eventually(lambda: entries(cluster)[-1] == ("6MB",))
        guardian.resume()
        eventually(lambda: not restore_files(places[0]))
        words = " ".join("".join(second.communicate(timeout=60)).split())
        assert "another weighing switches" in words or "somebody else has set" in words, words
        assert second.returncode == 1
        eventually(lambda: entries(cluster) == [("4MB",)])


def test_two_guardians_that_were_away_do_not_wait_for_each_other(
    server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has set a third value meanwhile."""
    monkeypatch.setattr(changer, "_OTHERS_S", 0.0)
    with session(server) as conn:
        before = configuration.look(conn, SETTING)
    guardians = [
        changer.Changer(server.dsn(), [switch], [before], touched=[True], resumes=True)
        for switch in (SETTING, OTHER)
    ]
    for guardian in guardians:
        guardian.connect()
    set_and_reload(server, "ALTER SYSTEM SET work_mem = '9MB'")
    try:
        with pytest.raises(UsageError, match="another weighing"):
            guardians[1].put_back()
        for guardian in guardians:
            (said,) = guardian.put_back()
            assert said.text.endswith("left alone: somebody else has set it to 9MB")
            assert guardian.left_alone
            session_id = guardian.connect().info.backend_pid
            guardian.close()
            with session(server) as conn:
                gone = f"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {session_id}"
                eventually(lambda query=gone, on=conn: one(on, query))
    finally:
        set_and_reload(server, "ALTER SYSTEM RESET work_mem")
        eventually(lambda: entries(server) == [("4MB",)])


@pytest.mark.slow
def test_what_a_guardian_left_alone_is_said_by_the_next_weighing(
    wheel: Binaries, places: list[Path]
) -> None:
    """Its host was cut off; the value may be of a weighing that will put back 5MB."""
    with Cluster(wheel, {}) as cluster:
        guardian = on_and_command_killed(cluster, places[0])
        written = cluster.data_directory / "postgresql.auto.conf"
        written.write_text(written.read_text().replace("5MB", "6MB"))
        cluster.start()
        guardian.resume()
        eventually(lambda: not guardian.is_running())
        (kept,) = restore_files(places[0])
        for _ in range(2):
            again = windows.start(cluster.dsn(), [SETTING], places[0], seconds=1)
            _, err = again.communicate(timeout=60)
            assert "somebody else has set it to 6MB" in " ".join(err.split())
            assert f"{kept}iskept" in "".join(err.split()), err
            assert restore_files(places[0]) == [kept]


def test_a_server_that_may_be_a_copy_has_its_setting_back_and_the_record_stays(
    wheel: Binaries, places: list[Path]
) -> None:
    """A copy of the disk has the same times of files; it was not started at the same time."""
    with Cluster(wheel, {}) as cluster:
        on_and_command_killed(cluster, places[0]).kill()
        cluster.start()
        again = windows.start(cluster.dsn(), [OTHER], places[0], seconds=1)
        _, err = again.communicate(timeout=60)
        words = " ".join(err.split())
        assert "work_mem was put back" in words
        assert "may be a copy of the one that was changed" in words
        assert entries(cluster) == [("4MB",)]
        assert len(restore_files(places[0])) == 1


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_value_that_goes_on_being_shown_delays_nothing(
    five: Cluster, places: list[Path], tmp_path: Path, signum: signal.Signals
) -> None:
    file = tmp_path / "file"
    file.touch()
    both = toggled(file)
    switch = Switch("x", "commands", both.on, both.off, "work_mem", "5MB")
    weighed = windows.start(five.dsn(), [switch], places[0])
    eventually(lambda: not file.exists())
    weighed.send_signal(signum)
    eventually(file.exists, 15)
    _, err = weighed.communicate(timeout=60)
    eventually(lambda: not restore_files(places[0]))
    if signum == signal.SIGTERM:
        assert "x is on again" in " ".join(err.split())


def test_a_command_that_hangs_delays_little(
    server: Cluster, places: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    switch = Switch("x", "commands", on=toggled(file).on, off=f"{toggled(file).off}; sleep 600")
    weighed = windows.start(server.dsn(), [switch], places[0])
    eventually(lambda: not file.exists())
    kill(weighed)
    eventually(file.exists, 30)


@pytest.mark.parametrize("victims", [pytest.param("guardian", marks=pytest.mark.slow), "both"])
def test_a_command_that_goes_on_is_waited_for(
    server: Cluster, places: list[Path], tmp_path: Path, victims: str
) -> None:
    file, begun = tmp_path / "file", tmp_path / "begun"
    file.touch()
    off = f"trap '' TERM; touch {begun}; sleep 4; rm {shlex.quote(str(file))}"
    switch = Switch("x", "commands", on=toggled(file).on, off=off)
    weighed = windows.start(server.dsn(), [switch], places[0])
    eventually(begun.exists)
    guardian = guardian_of(places[0])
    if victims == "both":
        weighed.kill()
    guardian.kill()
    weighed.communicate(timeout=60)
    if victims == "both":
        again = windows.start(server.dsn(), [switch], places[0], seconds=1)
        again.communicate(timeout=60)
    assert file.exists()
    time.sleep(4.5)
    assert file.exists()
    assert not restore_files(places[0])


def test_a_command_runs_though_the_place_for_temporary_files_is_gone(
    server: Cluster, places: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, place = tmp_path / "file", tmp_path / "tmp1"
    file.touch()
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    weighed = windows.start(server.dsn(), [toggled(file)], places[0])
    eventually(lambda: not file.exists())
    weighed.send_signal(signal.SIGSTOP)
    shutil.rmtree(place)
    kill(weighed)
    eventually(file.exists, 15)
    eventually(lambda: not restore_files(places[0]))


def test_a_value_that_is_not_shown_is_found_before_anything_is_switched(
    server: Cluster, places: list[Path], tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    switch = Switch("x", "commands", f"touch {ran}", f"touch {ran}", "work_mem", "5MB")
    weighed = windows.start(server.dsn(), [switch], places[0])
    _, err = weighed.communicate(timeout=60)
    assert weighed.returncode == 1
    assert "--switch x: it must be on now, but work_mem is 4MB" in " ".join(err.split()), err
    assert not ran.exists()
    assert not restore_files(places[0])


def test_what_switches_on_is_tried_after_what_switches_off() -> None:
    """Else a command that brings back another value is found out in the first window."""
    asked: list[Any] = []
    guard = SimpleNamespace(allow=lambda _: None, try_on=asked.append, set=asked.append)
    switches = [Switch("x", "commands", "a", "b", "work_mem", "5MB"), Switch.parse("y: a | b")]
    arms = (Arm("base", "base"), Arm("control", "control"))
    arms += (Arm("x", "instrument"), Arm("y", "instrument"))
    design = Design(arms, (0, 1, 2, 3), 1, driven=True, grouping="windows")
    unused: Any = None
    schedule = Schedule(unused, guard, unused, design, switches, 60, 1, random.Random())  # type: ignore[arg-type]
    schedule.try_out(lambda _: None, 0.0)
    off = [False, False]
    assert asked == [0, 1, off, [True, False], off, [False, True], off]


def test_only_the_file_of_alter_system_counts_as_its_file(wheel: Binaries) -> None:
    """An included file has a name that ends alike."""
    with Cluster(wheel, {}) as cluster, session(cluster) as conn:
        config = Path(one(conn, "SHOW config_file"))
        (config.parent / "my-postgresql.auto.conf").write_text("work_mem = '9MB'\n")
        with config.open("a") as file:
            file.write("\ninclude 'my-postgresql.auto.conf'\n")
        assert configuration._entry(conn, "work_mem") is None
        conn.execute("ALTER SYSTEM SET work_mem = '3MB'")
        assert configuration._entry(conn, "work_mem") == "3MB"
