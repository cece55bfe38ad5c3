"""What a weighing changed is put back by whoever is left, though others came or went meanwhile."""

from __future__ import annotations

import contextlib
import random
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.trial.design import Arm, Design
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.weighing.switches import Switch
from pgtare.weighing.whole_server import changer, configuration, run
from pgtare.weighing.whole_server.schedule import Schedule
from tests import windows
from tests.commands import in_process, refused
from tests.server.test_weigh_windows import (
    SETTING,
    entries,
    guardian_of,
    looked,
    provided,
    restore_files,
    set_and_reload,
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


@pytest.mark.slow
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
        before = looked(conn)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("was_on", [True, False])
def test_a_value_that_somebody_changes_meanwhile_is_not_taken_for_ours(
    server: Cluster, was_on: bool
) -> None:
    """Else it would be put back to what it was not when it was looked at."""
    switch = replace(provided(server), was_on=was_on)
    if not was_on:
        set_and_reload(server, "ALTER SYSTEM SET work_mem = '5MB'")
        eventually(lambda: entries(server)[-1] == ("5MB",))
    try:
        with contextlib.closing(changer.Changer(server.dsn(), [switch], [None])) as ours:
            with pytest.raises(UsageError, match="somebody has changed work_mem"):
                ours.try_as_it_is(0)
            assert not any(ours.touched)
    finally:
        set_and_reload(server, "ALTER SYSTEM RESET work_mem")
        eventually(lambda: entries(server) == [("4MB",)])


def test_what_a_provider_puts_back_is_waited_for(server: Cluster) -> None:
    """A weighing that begins before it is shown would take it for what was there."""
    switch = replace(provided(server, "sleep 1; "), was_on=False, shown="4096kB")
    set_and_reload(server, "ALTER SYSTEM SET work_mem = '5MB'")
    eventually(lambda: entries(server)[-1] == ("5MB",))
    try:
        with contextlib.closing(changer.Changer(server.dsn(), [switch], [None])) as ours:
            ours.on, ours.touched = [True], [True]
            assert [done.as_before for done in ours.put_back()] == [True]
            assert one(ours.connect(), "SHOW work_mem") == "4MB"
            assert not ours.left_alone
    finally:
        set_and_reload(server, "ALTER SYSTEM RESET work_mem")


def test_off_that_leaves_another_value_than_there_was_is_found_out(server: Cluster) -> None:
    switch = replace(provided(server), was_on=False, shown="6144kB")
    set_and_reload(server, "ALTER SYSTEM SET work_mem = '6MB'")
    eventually(lambda: entries(server)[-1] == ("6MB",))
    words = "work_mem was 6144kB, and OFF leaves it at 4096kB: let it set 6144kB"
    try:
        with contextlib.closing(changer.Changer(server.dsn(), [switch], [None])) as ours:
            with pytest.raises(MeasurementError, match=words):
                ours.try_as_it_is(0)
            assert ours.put_back() == [configuration.PutBack(words, as_before=False)]
            assert not ours.left_alone  # by the file, this OFF would be run again
            ours.touched, ours.done = [True], []
            (done,) = ours.put_back()
            assert words in done.text
            assert not done.as_before
            assert ours.left_alone  # the file that says what it was is kept
    finally:
        set_and_reload(server, "ALTER SYSTEM RESET work_mem")
        eventually(lambda: entries(server) == [("4MB",)])


def test_what_switches_on_is_tried_after_what_switches_off() -> None:
    """Else a command that brings back another value is found out in the first window."""
    asked: list[Any] = []
    guard = SimpleNamespace(allow=lambda _: None, try_as_it_is=asked.append, set=asked.append)
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


def test_a_value_that_is_spelled_otherwise_is_on_all_the_same(
    five: Cluster, tmp_path: Path
) -> None:
    """Else OFF would run, as if that changed nothing."""
    ran = tmp_path / "ran"
    of = f"x: true | touch {ran} | work_mem = 5120 kB"
    done = in_process(f"weigh --dsn {{}} --switch '{of}' --dry-run", five.dsn())
    assert "work_mem = 5120 kB, which is so now" in " ".join(done.stdout.split()), done.stderr
    assert not ran.exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("log_connections = on", "holds for new sessions"),
        ("wal_level = minimal", "changes with a restart only"),
        ("wal_compression = on", "wal_compression cannot be 'on'"),
        ("work_mem = 5 lots", "'5 lots' is no value of work_mem: write it as SHOW does"),
    ],
)
def test_a_value_that_cannot_be_seen_to_change_is_refused(
    server: Cluster, value: str, words: str
) -> None:
    switch = f"x: true | true | {value}"
    assert words in refused(f"weigh --dsn {{}} --switch '{switch}' --dry-run", server.dsn())


def test_lines_that_wait_for_a_restart_are_in_nobodys_way(wheel: Binaries) -> None:
    """Also those that have gone from the file."""
    with Cluster(wheel, {"max_wal_senders": "7", "max_connections": "30"}) as cluster:
        with session(cluster) as conn:
            config = Path(one(conn, "SHOW config_file"))
            lines = [line for line in config.read_text().splitlines() if "max_wal" not in line]
            config.write_text("\n".join(lines).replace("max_connections = '30'", "") + "\n")
            conn.execute("SELECT pg_reload_conf()")
            waiting = "SELECT count(*) FROM pg_file_settings WHERE error LIKE '%restarting%'"
            eventually(lambda: one(conn, waiting) >= 1)
        done = in_process(
            "weigh --dsn {} --reload 'x: track_io_timing = on' --dry-run", cluster.dsn()
        )
        assert done.returncode == 0, done.stderr


def test_a_file_of_anybodys_is_not_taken_for_an_operators(wheel: Binaries) -> None:
    with Cluster(wheel, {}) as cluster, session(cluster) as conn:
        config = Path(one(conn, "SHOW config_file"))
        custom = config.parent / "custom.conf"
        custom.write_text("log_checkpoints = on\n")
        config.write_text(f"{config.read_text()}\ninclude 'custom.conf'\n")
        conn.execute("SELECT pg_reload_conf()")
        asked = "weigh --dsn {} --reload 'x: track_io_timing = on' --dry-run"
        time.sleep(1.1)  # the server knows the times of files to the second
        assert in_process(asked, cluster.dsn()).returncode == 0
        custom.write_text("cnpg.config_sha256 = 'abc'\n")
        assert "CloudNativePG writes this server's configuration" in refused(asked, cluster.dsn())


def test_a_server_that_became_a_standby_is_still_the_one_to_put_back(server: Cluster) -> None:
    with session(server) as conn:
        pinned = run._pinned(f"{server.dsn()} target_session_attrs=read-write", conn)
    assert conninfo_to_dict(pinned)["target_session_attrs"] == "any"


def test_somebodys_later_edits_are_not_put_into_force_for_a_setting_they_changed(
    server: Cluster,
) -> None:
    """The setting has a new value of theirs, and they go on editing."""
    with session(server) as conn:
        before = replace(looked(conn), value="3MB")
        time.sleep(1.1)  # the server knows the times of files to the second
        conn.execute("ALTER SYSTEM SET maintenance_work_mem = '99MB'")
        try:
            said = configuration.put_back(conn, "work_mem", "5MB", before)
            assert said.text == "work_mem has another value by now, which is left so"
            assert one(conn, "SHOW maintenance_work_mem") == "64MB"
        finally:
            conn.execute("ALTER SYSTEM RESET maintenance_work_mem")


def test_what_is_only_for_the_terminal_is_not_in_the_result(
    server: Cluster, tmp_path: Path
) -> None:
    """A command that prints its password as it fails, in the middle of the trial."""
    file, fails = tmp_path / "file", tmp_path / "fails"
    file.touch()
    both = toggled(file)
    off = f"test ! -e {fails} || {{ echo hush17; exit 3; }}; {both.off}"
    weighed = windows.start(server.dsn(), [Switch("x", "commands", both.on, off)], tmp_path)
    for _ in range(2):
        eventually(lambda: not file.exists())
        eventually(file.exists)
    fails.touch()
    out, err = weighed.communicate(timeout=60)
    assert "switching x off: the command failed (status 3)" in " ".join(out.split()), out + err
    assert "it printed: hush17" in err
    assert "hush17" not in out
    assert "hush17" not in (tmp_path / "w" / "result.json").read_text()
