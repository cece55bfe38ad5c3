"""What is switched for the whole server: how it is written, windows, and differences by windows."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil
import pytest

from pgtare.cli import weigh
from pgtare.cli.command_line import command_line
from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.trial.windows import difference
from pgtare.postgres.directories import DIRECTORY_VARIABLE
from pgtare.weighing.switches import Switch, check_names
from pgtare.weighing.whole_server import commands, configuration, restore_file
from pgtare.weighing.whole_server.changer import Changer
from pgtare.weighing.whole_server.commands import Process
from pgtare.weighing.whole_server.configuration import Before
from pgtare.weighing.whole_server.schedule import block_s, least_s, window_s
from pgtare.weighing.whole_server.watcher_time import (
    NOTHING_ON,
    UNKNOWN,
    WindowTime,
    active_share,
    kinds_of_application,
    server_share,
    stayed,
)
from tests.sessions import eventually
from tests.unit.estimate_textbook import clopper_pearson

APPLICATION, WATCHER = ("app", "web", ""), ("monitor", "exporter", "")


def test_a_switch_is_a_process_or_two_commands() -> None:
    assert Switch.parse("x: run it || true") == Switch("x", "process", on="run it || true")
    assert Switch.parse("x: on it | off it") == Switch("x", "commands", "on it", "off it")
    assert Switch.parse("x: a | b | Work_Mem = '1 MB'") == Switch(
        "x", "commands", "a", "b", "work_mem", "1 MB"
    )
    assert Switch.parse_reload("x: a.b='it''s'") == Switch(
        "x", "setting", setting="a.b", value="it's"
    )
    assert Switch.parse("x: a | b").is_left_on
    assert not Switch.parse("x: a").is_left_on


@pytest.mark.parametrize("text", ["x", "x:", "x:a", " : a", "x: a | ", "x: a | b | c", "x y: a"])
def test_what_is_no_switch_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--switch"):
        Switch.parse(text)


@pytest.mark.parametrize(
    "text", ["x: touch a| rm a", "x: touch a |rm a", "x: a | b| work_mem = 1MB", "x: 'a'| b"]
)
def test_a_blank_that_is_missing_is_not_taken_for_a_pipeline(text: str) -> None:
    """The one command would be taken for a process, and what it stops never started again."""
    with pytest.raises(UsageError, match="a blank on one side only"):
        Switch.parse(text)


@pytest.mark.parametrize(
    "text", ["x: a|b", "x: a || b", "x: a||b", "x: a >| b", "x: sed 's/a| b//'", r"x: a\| b"]
)
def test_other_bars_of_a_shell_are_left_to_it(text: str) -> None:
    assert Switch.parse(text).kind == "process"


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        Switch.parse("x: touch fl\udce9g | true")


def test_commands_are_not_kept_in_results(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["pgtare", "weigh", "--switch", "x: PGPASSWORD=hush17 sh on.sh | sh off.sh"]
    monkeypatch.setattr("sys.argv", words)
    assert command_line() == ["pgtare", "weigh", "--switch", "x: (hidden)"]


@pytest.mark.parametrize("names", ["aa", "base a", "control"])
def test_names_are_of_one_each(names: str) -> None:
    each = names.split() if " " in names else list(names) if names == "aa" else [names]
    with pytest.raises(UsageError, match="a name of its own"):
        check_names("--switch", each)


def test_windows_hold_whole_periods() -> None:
    assert window_s(None, None) == 15
    assert window_s(None, 15) == 15
    assert window_s(None, 10) == 20
    assert window_s(60, 45) == 90
    assert window_s(None, 40) == 40
    assert window_s(20, None) == 20


def test_blocks_have_room_for_what_settles() -> None:
    setting, commands = Switch.parse_reload("a: work_mem = 1MB"), Switch.parse("b: on | off")
    process = Switch.parse("c: run")
    assert least_s([setting], 15) == 8 * (3 * 16 + 7.5)
    assert block_s([commands], 15) == 3 * 16 + 10 + 7.5
    assert block_s([setting, process], 15) == 4 * 16 + 2 * 7.5


def test_what_is_put_back_by_hand_names_psql_and_the_shell() -> None:
    assert configuration.statements("a.b", "it's") == (
        "ALTER SYSTEM SET a.b = 'it''s'; SELECT pg_reload_conf();"
    )
    switches = [
        Switch.parse_reload("x: work_mem = 1MB"),
        Switch.parse("y: start\nnow | stop"),
        Switch.parse("z: run"),
        Switch("w", "commands", "set", "reset", "work_mem", "1MB", was_on=False),
    ]
    before = [Before(None, "4MB", "s"), None, None, None]
    assert restore_file.by_hand(switches, before, "/srv/my place") == [
        "in psql: ALTER SYSTEM RESET work_mem; SELECT pg_reload_conf();",
        "in a shell, which switches y on:",
        "    cd '/srv/my place'",
        "    start",
        "    now",
        "in a shell, which switches w off:",
        "    cd '/srv/my place'",
        "    reset",
    ]


def test_what_a_weighing_holds_names_how_to_end_that_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    held = restore_file.make("7/1", [], [])
    other = restore_file.make("8/1", [], [])
    with pytest.raises(UsageError) as refusal:
        list(restore_file.left_over("7/1"))
    assert f"(fuser -k {held.path})" in str(refusal.value)
    assert str(other.path) not in str(refusal.value)
    os.close(held.lock)
    os.close(other.lock)


def test_a_file_that_cannot_be_written_whole_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a disk that is full after some bytes."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(MeasurementError, match="cannot write"):
            restore_file.make("7/1", [Switch.parse("y: start | stop")], [None])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "restore").iterdir())


def test_what_may_be_left_of_this_server_under_another_name_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The time of its files has changed, or it is a copy's."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    servers = ("7/1/2.5", "7/2/3.5", "7//3.5", "77/1/2.5", "//4.5")
    files = [restore_file.make(server, [], []) for server in servers]
    with pytest.raises(UsageError, match="another weighing switches this server"):
        list(restore_file.left_over("7/3/5.5"))  # one that is held may be of this one
    assert configuration.told_apart("7/1/2.5", "7/3/5.5")
    assert not configuration.told_apart("7//2.5", "7/3/5.5")
    for file in files:
        os.close(file.lock)
    found = {file.server for file in restore_file.left_over("7/2/3.5")}
    assert found == {"7/1/2.5", "7/2/3.5", "7//3.5", "//4.5"}
    assert {one for one in found if configuration.is_same(one, "7/2/3.5")} == {"7/2/3.5", "7//3.5"}
    assert configuration.is_same("7/2/3.5", "7/2/9.5")  # restarted
    assert not configuration.is_same("7//3.5", "7//9.5")  # or a copy: it is not seen
    assert not configuration.is_same("7//", "7//")


def test_a_file_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is damaged, or of another version; one that surely is of another server is no matter."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    for damage in (
        lambda text: text.replace('"off"', '"period": 1, "off"'),
        lambda text: text.replace("-- changed", "-- chan"),
        lambda text: text.replace("[null]", '["x"]'),
        lambda text: "",
    ):
        file = restore_file.make("7/1/2.5", [Switch.parse("y: start | stop")], [None])
        os.close(file.lock)
        file.path.write_text(damage(file.path.read_text()))
        with pytest.raises(UsageError, match="damaged or of another version") as refusal:
            list(restore_file.left_over("7/1/2.5"))
        assert str(file.path) in str(refusal.value)
        assert list(restore_file.left_over("8/1/2.5")) == []
        file.path.unlink()
    (tmp_path / "restore" / "notes.txt").write_text("of somebody else")
    assert list(restore_file.left_over("7/1/2.5")) == []


def test_files_that_were_never_whole_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    assert list(restore_file.left_over("7/1/2.5")) == []
    old, new = (tmp_path / "restore" / f"7-1-{number}-1.new" for number in (1, 2))
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 100,) * 2)
    assert list(restore_file.left_over("7/1/2.5")) == []
    assert not old.exists()
    assert new.exists()


def test_copies_of_a_disk_are_told_apart_by_their_start() -> None:
    assert configuration.has_same_start("7/2/3.5", "7/2/3.5")
    assert not configuration.has_same_start("7/2/3.5", "7/2/9.5")
    assert not configuration.has_same_start("7/2/", "7/2/")


def test_a_command_that_is_under_way_is_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    file = restore_file.make("7/1/2.5", [Switch.parse("y: start | stop")], [None])
    assert file.running.read() is None
    seen = tmp_path / "seen"
    commands.run(f"cp {file.path} {seen}; echo $$ >> {seen}", "x", file.running)
    assert file.running.read() is None
    lines = seen.read_text().splitlines()
    assert lines[1].startswith(f"-- running {lines[-1]} ")
    assert lines[2:-1] == file.path.read_text().splitlines()[2:]
    os.close(file.lock)


def test_what_a_killed_process_ran_is_waited_for_and_then_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    file = restore_file.make("7/1/2.5", [Switch.parse("y: start | stop")], [None])
    for command, limit_s in (
        ("sleep 1", 30.0),
        ("sleep 300", 0.2),
        ("sleep 0.1; sleep 300", 0.2),  # the second is started while the first is waited for
    ):
        monkeypatch.setattr(commands, "LONGEST_END_S", limit_s)
        started = commands.Started(f"trap '' TERM; {command}; true", file.running)
        os.close(started._pipe)
        commands.end_earlier(file.running)
        assert not commands._of_session(started.popen.pid)
        assert file.running.read() is None
        monkeypatch.setattr(commands, "LONGEST_END_S", 300.0)
        began = time.monotonic()
        commands.end_earlier(file.running)  # there is none
        assert time.monotonic() - began < 100  # on a busy machine
    os.close(file.lock)


def test_a_process_that_only_has_the_number_of_a_command_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    file = restore_file.make("7/1/2.5", [Switch.parse("y: start | stop")], [None])
    before = time.time() - 100
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        with monkeypatch.context() as context:
            context.setattr(os, "getpid", lambda: process.pid)
            context.setattr(time, "time", lambda: before)
            file.running.begins()
        commands.end_earlier(file.running)
        assert process.poll() is None
        process.kill()
    os.close(file.lock)


def test_what_a_command_starts_can_be_interrupted(tmp_path: Path) -> None:
    """By Ctrl-C, or by SIGINT for a quick end: shells ignore both in the background."""
    status = tmp_path / "status"
    commands.run(f"grep SigIgn /proc/self/status > {status}", "x")
    ignored = int(status.read_text().split()[1], 16)
    assert not ignored & (1 << signal.SIGINT - 1 | 1 << signal.SIGQUIT - 1)


def test_a_command_runs_without_a_place_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    done = tmp_path / "done"
    commands.run(f"echo on; touch {done}", "x")
    assert done.exists()
    with pytest.raises(MeasurementError, match=r"\(status 3\)$"):
        commands.run("echo on; exit 3", "x")


def test_a_command_that_hangs_is_ended_soon_if_everything_is_to_be_put_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "ENDS_S", 0.5)
    began = time.monotonic()
    with pytest.raises(MeasurementError, match="did not return"):
        commands.run("trap '' TERM; sleep 300; true", "x", hurry=lambda: True)
    assert time.monotonic() - began < 120  # on a busy machine


def test_what_was_changed_is_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    switches = [Switch.parse("x: run"), *(Switch.parse(f"{name}: a | b") for name in "yz")]
    held = restore_file.make("7/1", switches, [None] * 3)
    text = held.path.read_text()
    for index, changed in ((0, True), (1, True), (2, True), (2, False)):
        held.note(index, changed=changed)
    assert held.path.read_text().split("\n")[1:] == text.split("\n")[1:]
    os.close(held.lock)
    (left,) = restore_file.left_over("7/1")
    assert left.changed[0] is left.changed[2] is None
    assert left.changed[1] is not None
    assert abs(left.changed[1] - time.time()) < 60


def test_an_own_share_is_within_blocks() -> None:
    """Blocks drift; a difference of 2 is found all the same, and a window that is missing."""
    blocks = np.repeat(np.arange(8), 3)
    arms = np.tile([0, 1, 2], 8)
    values = 100.0 * blocks + 2.0 * (arms == 2) + 0.01 * ((blocks * 3 + arms) % 5)
    found = difference(values, blocks, arms, 2, (0, 1))
    assert found.lo < 2 < found.hi
    assert found.half_width < 0.05
    values[5] = np.nan
    again = difference(values, blocks, arms, 2, (0, 1))
    assert np.isnan(again.lo)  # seven blocks are too few
    values[5], values[4] = values[2], np.nan
    again = difference(values, blocks, arms, 2, (0, 1))
    assert again.lo < 2 < again.hi
    assert np.isnan(difference(values[:21], blocks[:21], arms[:21], 2, (0, 1)).lo)


@pytest.mark.slow
def test_intervals_of_an_own_share_hold() -> None:
    """2,000 trials of ten blocks, each with a level of its own."""
    rng, covered, trials = np.random.default_rng(5), 0, 2_000
    blocks, arms = np.repeat(np.arange(10), 3), np.tile([0, 1, 2], 10)
    for _ in range(trials):
        values = rng.normal(0, 5, 10)[blocks] + rng.exponential(1.0, 30) + 0.5 * (arms == 2)
        found = difference(values, blocks, arms, 2, (0, 1))
        covered += found.lo <= 0.5 <= found.hi
    low, high = clopper_pearson(covered, trials, 0.9998)
    assert low <= 0.95 <= high, covered


def windows() -> list[WindowTime]:
    """One without the watcher, and one with it; the application is there in both."""
    off = WindowTime(0, 0, 10.0, 3e9, defaultdict(float, {APPLICATION: 2e9}), defaultdict(float))
    off.seen = {APPLICATION}
    on = WindowTime(0, 2, 10.0, 4.5e9, defaultdict(float, {APPLICATION: 3e9, WATCHER: 0.4e9}))
    on.seen, on.active = {APPLICATION, WATCHER}, defaultdict(float, {APPLICATION: 2, WATCHER: 0.5})
    return [off, on]


def test_the_application_is_what_is_there_without_watchers() -> None:
    known = kinds_of_application(windows(), (0, 1))
    assert known == {APPLICATION}
    off, on = windows()
    assert server_share(off, known) == pytest.approx(0.10)
    assert server_share(on, known) == pytest.approx(0.15)
    assert active_share(on, known) == 0.5
    assert np.isnan(server_share(WindowTime(0, 0, 10.0), known))


def test_sessions_that_came_with_a_watcher_and_stayed_are_told() -> None:
    off, on = windows()
    later = WindowTime(1, 0, 10.0)
    later.seen = {APPLICATION, WATCHER}
    for window in (on, later):
        window.began[WATCHER] = {UNKNOWN}
    assert stayed([off, on, later], {APPLICATION}, 2, (0, 1)) == set()
    for window in (on, later):
        window.began[WATCHER] = {(2, 0)}
    others = [WindowTime(block, 2, 10.0) for block in range(1, 8)]
    assert stayed([off, on, later, *others], {APPLICATION}, 2, (0, 1)) == {WATCHER}
    assert stayed([off, on, *others], {APPLICATION}, 2, (0, 1)) == set()
    assert stayed([off, on, later, *others], {APPLICATION, WATCHER}, 2, (0, 1)) == set()
    later.began[WATCHER].add(NOTHING_ON)
    assert stayed([off, on, later, *others], {APPLICATION}, 2, (0, 1)) == set()


def test_a_shell_that_loses_a_signal_ends_all_the_same() -> None:
    """As one does that has just been forked: here the first does nothing but end its own trap."""
    watcher = "trap 'trap - TERM' TERM; while true; do sleep 0.01; done"
    started = commands.Started(watcher)
    popen = started.popen
    try:
        eventually(lambda: psutil.Process(popen.pid).children(recursive=True))
        os.close(started._pipe)  # as the kernel does when the guardian is killed
        popen.wait(60)
        eventually(
            lambda: not any(commands._group(one) == popen.pid for one in psutil.process_iter())
        )
    finally:
        commands.signal_group(popen.pid, signal.SIGKILL)


def test_the_end_of_a_process_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be ended is still there when everything is put back."""
    process = Process("sleep 300", "--switch x")
    monkeypatch.setattr(
        json, "loads", lambda text: {"left": ["7 (sleep, of root)"], "by_itself": False}
    )
    changer = Changer("", [Switch("x", "process", on="sleep 300")], [None], on=[True])
    changer._running[0] = process
    with pytest.raises(MeasurementError, match=r"process 7 \(sleep, of root\) cannot be ended"):
        changer.switch(0, False)
    (left,) = changer.put_back()
    assert not left.as_before
    assert "cannot be ended" in left.text


@pytest.mark.slow
def test_a_process_that_fails_as_it_is_ended_had_ended_by_itself(tmp_path: Path) -> None:
    """Its keeper still ends what it had started."""
    there = tmp_path / "there"
    process = Process(
        f"sh -c 'trap \"\" TERM; touch {there}; sleep 300' & "
        f"while ! test -e {there}; do sleep 0.1; done; sleep 0.7; exit 3",
        "--switch x",
    )
    children = psutil.Process(process.pid).children()
    (leader,) = (child for child in children if "read -r group" not in " ".join(child.cmdline()))
    eventually(lambda: not leader.is_running())
    with pytest.raises(MeasurementError, match=r"ended by itself \(status 3\)"):
        process.end()


def test_a_command_of_another_user_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(group: int, signum: int) -> None:
        raise PermissionError

    monkeypatch.setattr(commands, "ENDS_S", 0.2)
    monkeypatch.setattr("os.killpg", refused)
    began = time.monotonic()
    with pytest.raises(commands.NotReturned, match=r"cannot be ended: process \d+ still runs"):
        commands.run("exec sleep 600", "x", hurry=lambda: True)
    assert time.monotonic() - began < 100  # on a busy machine
    monkeypatch.undo()
    for process in psutil.process_iter(["cmdline", "ppid"]):  # others may run the same
        if process.info["cmdline"] == ["sleep", "600"] and process.info["ppid"] == os.getpid():
            process.kill()


class Noted:
    """A command that was under way in a session, some time ago."""

    def __init__(self, session: int, began_s: float) -> None:
        self.session, self.began_s, self.over = session, began_s, False

    def begins(self) -> None: ...

    def is_over(self) -> None:
        self.over = True

    def read(self) -> tuple[int, float] | None:
        return self.session, self.began_s


def test_what_began_before_a_command_is_not_ended_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's number was another's by then, of which the leader has ended."""
    monkeypatch.setattr(commands, "LONGEST_END_S", 0.2)
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        others = psutil.Process(int(leader.stdout.readline()))
    note = Noted(leader.pid, time.time() + 100)
    try:
        commands.end_earlier(note)
        assert others.is_running()
        assert note.over
        commands.end_earlier(Noted(leader.pid, others.create_time()))
        eventually(lambda: not others.is_running())
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            others.kill()


@pytest.mark.parametrize("after_s", [100, -100])
def test_a_session_of_another_leader_is_not_ended_with_a_command(
    monkeypatch: pytest.MonkeyPatch, after_s: int
) -> None:
    """Nor what its leader started: the session's number came again."""
    monkeypatch.setattr(commands, "LONGEST_END_S", 0.2)
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; wait"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        below = psutil.Process(int(leader.stdout.readline()))
        note = Noted(leader.pid, time.time() + after_s)
        try:
            commands.end_earlier(note)
            assert leader.poll() is None
            assert below.is_running()
            assert note.over
        finally:
            leader.kill()
            below.kill()


def test_what_a_command_prints_is_not_in_its_error() -> None:
    """The error is kept in results, and what was printed may hold a password."""
    with pytest.raises(commands.CommandFailed) as failed:
        commands.run("echo hush17; exit 3", "switching x on")
    assert str(failed.value) == "switching x on: the command failed (status 3)"
    assert commands.printed_by(failed.value) == "hush17"


def test_a_command_that_was_ended_half_way_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    changer = Changer("", [Switch("x", "commands", on="sleep 300", off="true")], [None])
    with monkeypatch.context() as hasty:
        hasty.setattr(commands, "COMMAND_S", 0.5)
        with pytest.raises(MeasurementError, match="did not return"):
            changer.try_as_it_is(0)
    assert changer.touched == [True]
    changer = Changer("", [Switch("x", "commands", on="false", off="true")], [None])
    with pytest.raises(MeasurementError, match="failed"):
        changer.try_as_it_is(0)
    assert changer.touched == [False]


def test_the_time_by_default_is_enough_for_all_that_is_switched() -> None:
    one = [Switch.parse_reload("x: log_min_messages = debug1")]
    assert weigh._default_s([], 15.0) == 60
    assert weigh._default_s(one, 15.0) == 600
    several = [*one, Switch.parse_reload("y: log_duration = on"), Switch.parse("z: exporter")]
    assert 600 < least_s(several, 15.0) <= weigh._default_s(several, 15.0)
    assert weigh._default_s(several, 15.0) % 60 == 0
