"""What watchers take themselves, and how long they hold transactions up, from windows."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pgtare.estimate.arrays import Floats, Ints
from pgtare.estimate.trial.bursts import BURST, PACED, RUN
from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.windows import difference, held_up, windows_that_stand_out
from pgtare.kit import machine
from pgtare.kit.interval import Interval
from pgtare.weighing.outside.loops import Loops
from pgtare.weighing.switches import Switch
from pgtare.weighing.weigh.outside_schema import WatcherInfo
from pgtare.weighing.weigh.report import wording
from pgtare.weighing.whole_server.commands import Process
from pgtare.weighing.whole_server.schedule import AFTER_OFF_S, GONE_S, Schedule
from pgtare.weighing.whole_server.watcher_time import (
    NOTHING_ON,
    UNKNOWN,
    Kind,
    Origin,
    WatcherTime,
    WindowTime,
    own_time,
)
from tests.sessions import eventually
from tests.unit.estimate_textbook import clopper_pearson

TRIALS = 1_000
Made = Callable[[np.random.Generator, Ints], Floats]


def seldom(rng: np.random.Generator, arms: Ints) -> Floats:
    """One window in ten has all of it: 1 on average."""
    return 10.0 * ((arms == 2) & (rng.random(len(arms)) < 0.1)) + rng.normal(0, 0.05, len(arms))


def often(rng: np.random.Generator, arms: Ints) -> Floats:
    """In each window, so little that hardly one stands out: 0.2 on average."""
    return 0.2 * (arms == 2) + rng.normal(0, 0.05, len(arms))


def always(rng: np.random.Generator, arms: Ints) -> Floats:
    return 1.0 * (arms == 2) + rng.normal(0, 0.05, len(arms))


def busy_neighbour(rng: np.random.Generator, arms: Ints) -> Floats:
    """Nothing of the watcher's; one window in fifteen has something of others'."""
    return (rng.random(len(arms)) < 1 / 15) * rng.exponential(20, len(arms))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "least", "most"),
    [
        (seldom, 0.98, 1.0),
        pytest.param(often, 0.0, 0.02, marks=pytest.mark.slow),
        (always, 0.0, 0.0),
        pytest.param(busy_neighbour, 0.0, 0.3, marks=pytest.mark.slow),
    ],
)
def test_what_acts_seldom_is_seen(made: Made, least: float, most: float) -> None:
    """Of trials in which it acted at all, or seemed to."""
    rng, marked, acted = np.random.default_rng(3), 0, 0
    blocks, arms = np.repeat(np.arange(20), 3), np.tile([0, 1, 2], 20)
    for _ in range(TRIALS):
        values = made(rng, arms)
        found = windows_that_stand_out(values, blocks, arms, 2, (0, 1))
        happened = bool((values[arms == 2] > 5).any()) if made is seldom else True
        acted += happened
        marked += found is not None
        if made is seldom and found is not None:
            assert abs(found - (values[arms == 2] > 5).sum()) <= 1
    assert least <= marked / acted <= most, (marked, acted)


def test_a_window_that_stands_out_is_not_most_of_nothing() -> None:
    """What it took in one window it took less in the others."""
    blocks, arms = np.repeat(np.arange(11), 3), np.tile([0, 1, 2], 11)
    values = np.where(arms == 2, -0.1, 0.0) + 0.01 * (arms == 1)
    values[2] = 0.9
    assert windows_that_stand_out(values, blocks, arms, 2, (0, 1)) is None
    values[arms == 2] += 0.1
    assert windows_that_stand_out(values, blocks, arms, 2, (0, 1)) == 1


def test_a_skewed_cost_has_fewer_degrees_of_freedom() -> None:
    """Windows whose cost is lognormal: one block may make up most of the error."""
    blocks, arms = np.repeat(np.arange(8), 3), np.tile([0, 1, 2], 8)
    values = np.zeros(24)
    values[arms == 2] = [0, 0, 0, 0, 0, 0, 0, 8.0]
    found = difference(values, blocks, arms, 2, (0, 1))
    assert found.half_width > 2.37 * found.se  # of seven degrees of freedom


def test_a_window_that_is_not_known_leaves_its_block_in() -> None:
    blocks, arms = np.repeat(np.arange(8), 3), np.tile([0, 1, 2], 8)
    values = 1.0 * (arms == 2) + 0.01 * blocks
    values[0] = math.nan
    assert difference(values + 0.001 * arms, blocks, arms, 2, (0, 1)).lo > 0.9


def test_what_is_held_up_is_a_share_of_the_time() -> None:
    """A stall of 1 s in one window of 10 s, which the session meets once, in either loop."""
    rows = np.zeros(40_000, RUN)
    rows["transactions"], rows["loop"] = 8, np.repeat([BURST, PACED], 20_000)
    rows["run_us"], rows["stamp_us"] = 400, 10
    rows["arm"] = np.tile([0, 1], 20_000)
    rows["run_us"][[1, 30_001]] += 1_000_000
    rows["transactions"][20_000:] = 1
    found = held_up(rows, [(0, 0, 10.0), (0, 1, 10.0)], (0,))
    assert found == pytest.approx([0.0, 0.2], abs=1e-3)


def test_what_is_held_up_often_is_known_by_the_base() -> None:
    rows = np.zeros(40_000, RUN)
    rows["transactions"], rows["loop"], rows["run_us"] = 1, BURST, 400
    rows["arm"] = np.tile([0, 1], 20_000)
    rows["run_us"][1::20] += 5_000
    found = held_up(rows, [(0, 0, 100.0), (0, 1, 100.0)], (0,))
    assert found == pytest.approx([0.0, 0.1], abs=1e-3)


def test_a_process_that_acts_seldom_has_no_interval() -> None:
    often, seldom = (
        processes([0.02 + n / 1e4 if n % every == 0 else 0.001 for n in range(8)])
        for every in (1, 3)
    )
    assert often.lo is not None
    assert (seldom.lo, seldom.hi) == (None, None)
    assert seldom.estimate is not None


def test_ticks_that_are_open_at_both_ends_of_a_window_are_no_time() -> None:
    found = processes([0.01 + 0.0001 * n for n in range(8)], unread_ns=20_000_000)
    exact = processes([0.01 + 0.0001 * n for n in range(8)])
    assert found.estimate == pytest.approx(exact.estimate)
    assert (found.lo or 0.0) < (exact.lo or 0.0)
    assert (found.hi or 0.0) > (exact.hi or 0.0)


def processes(shares: list[float], unread_ns: float = 0.0) -> Interval:
    """What is said of a process that took these shares of a processor in its windows."""
    windows = []
    for block, share in enumerate(shares):
        for arm in range(3):
            window = WindowTime(block, arm, seconds=15.0)
            if arm == 2:
                window.processes_ns[0] = 15e9 * share
                window.unread_ns[0] = window.unread_before_ns[0] = unread_ns
            windows.append(window)
    watch = SimpleNamespace(windows=windows, sees_sessions=False, at_first=set())
    of = schedule(Switch.parse("some: work"), watch)
    found = of._watcher(0, np.zeros(len(windows))).processes_pct
    assert found is not None
    return found


def schedule(switch: Switch, watch: SimpleNamespace, guard: Any = None) -> Schedule:
    arms = (Arm("base", "base"), Arm("control", "control"), Arm(switch.name, "instrument"))
    design = Design(arms, (0, 1, 2), 1, driven=True, grouping="windows")
    return Schedule(
        cast(Loops, None), guard, cast(WatcherTime, watch), design, [switch], 15.0, 8, Random(1)
    )


@pytest.mark.parametrize(
    "switch",
    [
        Switch.parse("some: work"),
        Switch.parse("some: start | stop"),
        Switch.parse_reload("some: a.period = 1"),  # a worker wakes up at the reload
    ],
    ids=lambda switch: switch.kind,
)
def test_a_window_is_no_fixed_part_of_what_begins_anew(
    monkeypatch: pytest.MonkeyPatch, switch: Switch
) -> None:
    slept: list[float] = []

    def sleep(pause_s: float) -> None:
        slept[-1] += pause_s

    monkeypatch.setattr("time.sleep", sleep)
    guard = SimpleNamespace(set=lambda states: None, check=lambda: None)
    watch = SimpleNamespace(switching=lambda block, arm: None, left_behind=lambda arm: set())
    one = schedule(switch, watch, guard)
    for block in range(50):
        one._on = None
        slept.append(0.0)
        one._switch_to(0, block)
    assert min(slept) < 4
    assert max(slept) > min(slept) + 10
    assert one.seconds >= 8 * (3 * 16 + 7.5)


@pytest.mark.parametrize("words", ["some: work", "some: start | stop"])
def test_a_window_without_it_begins_when_its_sessions_have_gone(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """The first one, too: all was tried out. What stays is not waited for again."""
    now = [0.0]
    monkeypatch.setattr("time.sleep", lambda pause_s: now.append(now[-1] + pause_s))
    monkeypatch.setattr("time.monotonic", lambda: now[-1])
    stay, off_at = set[Kind](), [0.0]

    def left_behind(arm: int) -> set[Kind]:
        return {WATCHER} - stay if now[-1] < off_at[-1] + lasts_s else set()

    guard = SimpleNamespace(set=lambda states: off_at.append(now[-1]), check=lambda: None)
    watch = SimpleNamespace(
        switching=lambda block, arm: None,
        left_behind=left_behind,
        wait_no_more=stay.update,
        all_off=lambda: None,
    )
    one = schedule(Switch.parse(words), watch, guard)
    least_s = AFTER_OFF_S if "|" in words else 0.0
    for lasts_s in (3.0, 20.0, 1e9, 1e9):
        one._after_trying()
        first_s, now = now[-1] - off_at[-1], [0.0]
        off_at = [0.0]
        one._switch_to(0, 0)
        one._switch_to(None, 0)
        waited_s = now[-1] - off_at[-1]
        for each_s in (first_s, waited_s) if not stay else ():
            assert max(least_s, lasts_s) <= each_s < max(least_s, lasts_s) + 2
        assert waited_s < least_s + GONE_S + 3
        off_at.append(now[-1])
    assert waited_s < least_s + 2


APPLICATION, WATCHER = ("app", "app", "10.0.0.1"), ("exporter", "", "")


def trial(
    rng: np.random.Generator, watcher: Callable[[WindowTime], None], blocks: int = 8
) -> list[WindowTime]:
    """Windows of an application that takes 20 % or so, and of a watcher; in the order of time."""
    windows = []
    for block in range(blocks):
        for arm in rng.permutation(3):
            others_ns = 15e9 * abs(rng.normal(0.005, 0.0005))
            one = WindowTime(block, int(arm), seconds=15.0, server_ns=others_ns)
            takes(one, APPLICATION, 0.2 + rng.normal(0, 0.01), UNKNOWN)
            takes(one, ("", "", ""), 0.01 + rng.normal(0, 0.0005), UNKNOWN)
            watcher(one)
            windows.append(one)
    return windows


def takes(window: WindowTime, kind: Kind, share: float, origin: Origin) -> None:
    """A session was there, began while that, and took such a share of a processor."""
    window.server_ns = (window.server_ns or 0.0) + 15e9 * share
    window.kinds_ns[kind] += 15e9 * share
    window.seen.add(kind)
    window.there[kind] += 1
    window.began[kind].add(origin)


def found_of(windows: list[WindowTime], *, words: str = "some: start | stop") -> WatcherInfo:
    watch = SimpleNamespace(
        windows=windows, sees_sessions=True, sees_processes=True, at_first={APPLICATION}
    )
    return schedule(Switch.parse(words), watch)._watcher(0, np.zeros(len(windows)))


def test_what_is_active_all_the_time_is_not_called_unseen() -> None:
    """As pg_receivewal is of a server elsewhere: nothing varies, so there is no interval."""
    windows = []
    for block in range(8):
        for arm in range(3):
            one = WindowTime(block, arm, seconds=15.0)
            if arm == 2:
                one.seen, one.active[WATCHER] = {WATCHER}, 1.0
                one.began[WATCHER] = {(2, block)}
            windows.append(one)
    watch = SimpleNamespace(
        windows=windows, sees_sessions=True, sees_processes=False, at_first={APPLICATION}
    )
    found = schedule(Switch.parse("some: work"), watch)._watcher(0, np.zeros(len(windows)))
    assert found.server_pct.lo is None
    said = wording._watcher(found)
    assert "nothing was seen of it" not in said
    assert "+100 % of one session’s time active on the server" in said
    assert "the same in each of its windows: no interval" in said


@pytest.mark.parametrize(
    ("least", "words"), [(0.004, "0.0040 %"), (0.0051, "0.0051 %"), (1.96, "1.9 %")]
)
def test_a_lower_bound_looks_no_larger_than_it_is(least: float, words: str) -> None:
    found = found_of(trial(np.random.default_rng(1), lambda one: None))
    held = Interval(estimate=2 * least, lo=least, hi=3 * least)
    said = wording._watcher(found.model_copy(update={"held_up_pct": held}))
    assert f"It holds transactions up at least {words} of the time" in said


def test_a_kind_that_is_seen_once_without_a_watcher_is_not_the_applications() -> None:
    """Somebody else connects by that role for a moment."""

    def watcher(one: WindowTime) -> None:
        if one.arm == 2:
            takes(one, WATCHER, 0.003, (2, one.block))
        if (one.block, one.arm) == (3, 0):
            takes(one, WATCHER, 0.0001, NOTHING_ON)

    found = found_of(trial(np.random.default_rng(1), watcher))
    assert found.server_pct.estimate == pytest.approx(0.3, abs=0.05)
    assert (found.server_pct.lo or 0) > 0.1
    assert not found.shared


def test_sessions_that_only_a_watcher_begins_are_its_own_whatever_their_name() -> None:
    """A kind of which one is always there."""

    def watcher(one: WindowTime) -> None:
        takes(one, WATCHER, 0.02, UNKNOWN)
        if one.arm == 2:
            takes(one, WATCHER, 0.003, (2, one.block))

    found = found_of(trial(np.random.default_rng(2), watcher))
    assert (found.server_pct.lo or 0) > 0.1
    assert found.sessions == ["of exporter"]


@pytest.mark.parametrize("more", [0.003, 0.0])
def test_a_kind_that_takes_more_or_has_more_sessions_is_named(more: float) -> None:
    """With sessions that begin in all windows: they are the application's, and perhaps its own."""
    rng = np.random.default_rng(3)

    def watcher(one: WindowTime) -> None:
        takes(one, WATCHER, 0.02 + rng.normal(0, 0.0005), NOTHING_ON)
        if one.arm == 2:
            takes(one, WATCHER, more, (2, one.block))

    found = found_of(trial(rng, watcher))
    assert found.shared == ["of exporter"]
    assert found.shared_pct is not None
    if more:
        assert (found.shared_pct.lo or 0) > 0.2
        text = wording._watcher(found)
        assert "which were there without it as well: of exporter (+0." in text
        assert "more while it was on)" in text


@pytest.mark.slow
def test_a_kind_of_the_application_is_seldom_named_by_chance() -> None:
    """Of ten kinds that vary; 5 % of trials at most, and half of that as they must take more."""
    rng, named = np.random.default_rng(4), 0
    kinds = [("app", f"app{n}", "") for n in range(10)]

    def watcher(one: WindowTime) -> None:
        for kind in kinds:
            takes(one, kind, rng.exponential(0.02), NOTHING_ON)

    trials = 300
    for _ in range(trials):
        named += bool(found_of(trial(rng, watcher)).shared)
    assert named <= 0.05 * trials, named


def test_sessions_that_go_on_without_a_watcher_leave_no_interval() -> None:
    def watcher(one: WindowTime) -> None:
        if one.arm == 2:
            takes(one, WATCHER, 0.3, (2, one.block))
        elif one.block % 3:
            takes(one, WATCHER, 0.2, (2, one.block))

    found = found_of(trial(np.random.default_rng(5), watcher))
    assert (found.server_pct.lo, found.server_pct.hi) == (None, None)
    assert found.lingered == ["of exporter"]
    assert "is not known, as its sessions (of exporter) went on" in wording._watcher(found)


def test_a_watcher_that_did_nothing_that_is_seen_is_said_to() -> None:
    """It acts less often than there are windows."""
    idle = found_of(trial(np.random.default_rng(6), lambda one: None))
    assert "Nothing shows that it acted in its windows" in wording._watcher(idle)

    def watcher(one: WindowTime) -> None:
        if one.arm == 2:
            takes(one, WATCHER, 0.0, (2, one.block))

    there = found_of(trial(np.random.default_rng(6), watcher))
    assert "Nothing shows" not in wording._watcher(there)


@pytest.mark.parametrize(
    "often", [pytest.param(one, marks=pytest.mark.slow) for one in (0.2, 0.5, 0.75, 0.9, 1.0)]
)
def test_intervals_hold_whatever_part_of_the_windows_an_application_is_in(often: float) -> None:
    """A job of the application's is in a window or not, at random; the watcher takes 0.3 %."""
    rng, covered, trials = np.random.default_rng(7), 0, 400

    def watcher(one: WindowTime) -> None:
        if one.arm == 2:
            takes(one, WATCHER, 0.003, (2, one.block))
        if rng.random() < often:
            takes(one, ("job", "", ""), 0.02 * rng.gamma(4) / 4, NOTHING_ON)

    for _ in range(trials):
        found = found_of(trial(rng, watcher, 10))
        if found.acted_in is not None:
            trials -= 1
            continue
        assert found.server_pct.lo is not None
        assert found.server_pct.hi is not None
        covered += found.server_pct.lo <= 0.3 <= found.server_pct.hi
    assert trials > 200
    assert clopper_pearson(covered, trials, 0.9998)[1] >= 0.95, (covered, trials)


@pytest.mark.parametrize(
    ("setting", "is_kept"),
    [("ext.api_key", False), ("primary_conninfo", False), ("pg_stat_statements.track", True)],
)
def test_a_value_that_may_be_secret_is_not_in_the_result(setting: str, is_kept: bool) -> None:
    windows = [WindowTime(block, arm, seconds=15.0) for block in range(8) for arm in range(3)]
    watch = SimpleNamespace(windows=windows, sees_sessions=False, at_first=set())
    one = schedule(Switch.parse_reload(f"key: {setting} = hush17"), watch)
    kept = one._watcher(0, np.zeros(len(windows))).model_dump_json()
    assert ("hush17" in kept) is is_kept
    (*_, proof) = one.proofs([9, 9, 9])
    assert proof is not None
    assert setting in proof.evidence
    assert ("hush17" in proof.evidence) is is_kept


FORKS = """
import os, resource, sys, time
for _ in range(20):
    if (child := os.fork()) == 0:
        until = time.process_time() + 0.006
        while time.process_time() < until:
            pass
        os._exit(0)
    os.waitpid(child, 0)
each = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(one.ru_utime + one.ru_stime for one in each), flush=True)
sys.stdin.read()
"""


def test_children_that_have_ended_are_read_with_what_ticks_leave_open() -> None:
    """The counters of both are whole ticks; what the process took itself is exact."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        truth_ns = 1e9 * float(process.stdout.readline())
        eventually(lambda: process.pid in machine.processes())
        own = own_time(machine.processes(), process.pid)
        process.communicate("")
    assert own.unread_ns == 2e9 * machine.tick_s()
    assert own.ns - 1e6 <= truth_ns <= own.ns + own.unread_ns + 1e6


def test_a_process_without_children_is_read_exactly() -> None:
    me = machine.processes()[os.getpid()]
    alone = {os.getpid(): me._replace(has_outlived=False, session=7)}
    assert own_time(alone, 7).unread_ns == 0


def test_where_only_ticks_are_known_they_leave_something_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "cpu_ns", lambda pid: None)
    me = machine.processes()[os.getpid()]
    alone = {os.getpid(): me._replace(has_outlived=False, session=7)}
    assert own_time(alone, 7).unread_ns == 2e9 * machine.tick_s()


THREADS = """
import threading, time

def burn():
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass

ended = threading.Thread(target=burn)
ended.start()
ended.join()
threading.Thread(target=burn).start()
time.sleep(300)
"""


def test_all_threads_of_a_process_count() -> None:
    """Also one that has ended."""
    process = Process(shlex.join(["exec", sys.executable, "-c", THREADS]), "--switch x")
    try:
        eventually(lambda: own_time(machine.processes(), process.pid).ns > 0.6e9, 120)
    finally:
        process.end()


BURNS = """
import time
until = time.process_time() + 0.2
while time.process_time() < until:
    pass
time.sleep(300)
"""


def test_what_detaches_itself_counts_as_well() -> None:
    """Two of them: one whose parent goes on, and one that is adopted."""
    burn = shlex.join([sys.executable, "-c", BURNS])
    process = Process(f"setsid {burn} & (setsid {burn} &); sleep 300", "--switch x")
    try:
        eventually(lambda: own_time(machine.processes(), process.pid).ns > 0.4e9, 120)
    finally:
        process.end()


NAMED = """
import ctypes, time
ctypes.CDLL(None).prctl(15, "überwachungsdö".encode())  # PR_SET_NAME keeps 15 bytes
time.sleep(60)
"""


def test_a_process_whose_name_is_cut_within_a_letter_is_read() -> None:
    with subprocess.Popen([sys.executable, "-c", NAMED]) as process:
        name = Path(f"/proc/{process.pid}/comm")
        eventually(lambda: name.read_bytes().startswith("überwachungsd".encode()))
        assert process.pid in machine.processes()
        process.kill()


def test_intervals_hold_with_a_noise_of_minutes() -> None:
    """An autoregression over windows of 16 s with a correlation time of 2 min; no cost."""
    rng, covered = np.random.default_rng(11), 0
    blocks = np.repeat(np.arange(10), 3)
    for _ in range(TRIALS):
        arms = np.concatenate([rng.permutation(3) for _ in range(10)])
        level = np.zeros(30)
        for i in range(1, 30):
            level[i] = math.exp(-16 / 120) * level[i - 1] + rng.normal()
        found = difference(level, blocks, arms, 2, (0, 1))
        covered += found.lo <= 0 <= found.hi
    low, high = clopper_pearson(covered, TRIALS, 0.9998)
    assert low <= 0.95 <= high, covered
