"""How long a session of a weighing from outside rests, by the loops that send to it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from pgtare.estimate.trial.bursts import RUN
from pgtare.estimate.trial.design import Arm, Design
from pgtare.weighing.outside.loops import PAUSE_S, REST, Lengths, Loops, RunBlock, Seat
from pgtare.weighing.outside.recording import _rest_s, record, warm_up
from pgtare.weighing.outside.wire import Answers

#: What a transaction takes, by the value of its arm's setting.
TAKES_US = {"off": 100, "on": 400, "600 ms": 600_000, "16 s": 16_000_000}


class StandIn:
    """In the place of a session: it answers at once, and keeps how long it was to be left alone."""

    def __init__(self) -> None:
        self.now, self.now_us = "", 0
        self.rests: list[tuple[str, float]] = []
        self.asked: list[str] = []
        self.stamps = 0
        self.sent: list[str] = []

    def simple(self, text: bytes) -> None:
        self.sent.append(text.decode())

    def setting(self, _name: str, value: str) -> None:
        self.now = value
        self.asked.append(value)

    def value(self, _: str) -> None:
        self.asked.append(self.now)

    def stamp(self) -> None:
        self.stamps += 1

    def transaction(self, _: Any) -> None:
        self.sent.append(self.now)

    def exchange(self, sleep_s: float = 0.0) -> Answers:
        answers = Answers(values=self.asked)
        if self.stamps:
            self.rests.append((self.now, sleep_s))
            end = self.now_us + TAKES_US[self.now]
            answers.stamps_us = [self.now_us, end - 10, end]
            self.now_us = end + 200
        self.asked, self.stamps = [], 0
        return answers


def test_sessions_are_made_anew_for_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to connect, which counts as work of the server."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    block = RunBlock(np.empty(0, RUN), 0.0, 0.0)
    monkeypatch.setattr(Loops, "burst", lambda self: block)
    monkeypatch.setattr(Loops, "paced", lambda self: block)

    def anew(seats: Sequence[Seat]) -> Sequence[Seat]:
        now[0] += 2.0
        return seats

    arms = (Arm("a", "base"), Arm("control", "control"))
    design = Design(arms, (0, 1), 1)
    loops = Loops([], cast(Any, None), design, [], random.Random(1), anew=anew, anew_s=1.0)
    busy_s = 0.0
    while now[0] < 1000.0:
        busy_s += sum(block.busy_s for block in loops.renew(now[0]))
        now[0] += 0.1
    assert 45 < loops.epoch < 55
    assert busy_s == 2.0 * loops.epoch


def loops_of(*values: str) -> tuple[StandIn, Loops]:
    """Arms that set x to these values; the first one is the base."""
    wire = StandIn()
    seat = Seat(cast(Any, wire))
    arms = tuple(Arm(f"arm{n}", "instrument" if n else "base") for n in range(len(values)))
    source: Any = type("Source", (), {"next": staticmethod(lambda: ())})()
    design = Design(arms, tuple(range(len(arms))), 1)
    settings = [{"x": value} for value in values]
    return wire, Loops([seat] * len(arms), source, design, settings, random.Random(1))


def test_each_run_of_any_arm_makes_its_own_plans_if_settings_decide_about_them() -> None:
    """The control has the settings of the base, and is to do the same."""
    wire, loops = loops_of("off", "off", "on")
    loops.plan_anew = True
    assert not loops.paced().error
    runs = " ".join(wire.sent).split("DISCARD PLANS")[1:]
    each = loops.lengths.paced_dropped + loops.lengths.paced
    assert sorted(len(run.split()) for run in runs) == [each] * 3
    loops.plan_anew, wire.sent = False, []
    assert not loops.paced().error
    assert "DISCARD PLANS" not in wire.sent


def test_runs_are_as_short_as_the_slowest_arm_needs() -> None:
    _, loops = loops_of("off", "off", "600 ms")
    assert not loops.fit(10.0).error
    assert (loops.lengths.longest, loops.lengths.dropped) == (1, 0)
    assert 4 < loops.pair_s < 10


def test_what_is_too_slow_for_the_time_is_refused_before_anything_else() -> None:
    """Not after hours of warming up; the first transaction may be slow for other reasons."""
    wire, loops = loops_of("16 s", "16 s", "on")
    error = loops.fit(30.0).error
    assert "a transaction takes 16" in error
    assert "raise --duration" in error
    assert wire.sent == ["16 s", "16 s"]


def test_how_long_it_takes_is_said_before_anything_is_run_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, loops = loops_of("off", "600 ms")
    happened: list[object] = []

    def block(_: Loops) -> RunBlock:
        happened.append("block")
        return RunBlock(np.empty(0, RUN), 0.0, 1.0)

    monkeypatch.setattr(Loops, "burst", block)
    monkeypatch.setattr(Loops, "paced", block)
    monkeypatch.setattr(Loops, "in_transaction", False)
    warm_up(loops, 10.0, happened.append)
    assert happened[:2] == [loops.pair_s, "block"]


def test_slow_blocks_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block begins that cannot end, and the rest after the last one is for nothing."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def block(_: Loops) -> RunBlock:
        now[0] += 4.0
        return RunBlock(np.empty(0, RUN), 4.0, 0.0)

    monkeypatch.setattr(Loops, "burst", block)
    monkeypatch.setattr(Loops, "paced", block)
    monkeypatch.setattr(Loops, "in_transaction", False)
    for seconds, blocks, took_s in ((10.0, 1, 10.0), (30.0, 2, 30.0), (33.0, 2, 32.0)):
        now[0] = 0.0
        _, loops = loops_of("off", "on")
        got = record(loops, {}, seconds, look=lambda *_: None, tick=lambda *_: None)
        assert (got.blocks, got.duration_s) == (blocks, took_s), seconds


def test_a_dear_arm_has_as_long_a_pause_as_the_base() -> None:
    """The client sleeps until the arm has surely done, and then for the pause."""
    wire, loops = loops_of("off", "on")
    for _ in range(2):
        assert not loops.paced().error
    latest = dict(wire.rests)
    assert latest == {value: TAKES_US[value] / 1e6 + PAUSE_S for value in ("off", "on")}


def test_the_server_rests_after_a_block_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout ends a statement on which the server was at work."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    wire, loops = loops_of("off", "on")

    def canceled(sleep_s: float = 0.0) -> Answers:
        now[0] += 0.2
        return Answers(error="canceling statement", sqlstate="57014")

    monkeypatch.setattr(wire, "exchange", canceled)
    for block in (loops.burst(), loops.paced()):
        assert block.error
        assert block.failed_arm in (0, 1)
        assert _rest_s(block) == pytest.approx(REST * 0.2)


@pytest.mark.parametrize("size", [100, 1_000, 5_000, 40_000])
def test_a_block_s_answers_fit_into_a_local_socket(size: int) -> None:
    """It has room for 277 small ones, and for 158 kB of large ones."""
    for arms in range(3, 150_000 // size + 1 if size > 5_000 else 25):
        lengths = Lengths.of(1e-5, arms, size)
        each = lengths.longest + lengths.dropped
        assert arms * (each + 3) <= 240
        assert arms * each * size <= 150_000
    assert Lengths.of(1e-5, 13, 100) == Lengths()


def test_how_much_a_transaction_may_return_depends_on_the_arms() -> None:
    """A block has at least one of each, and all of it waits in the socket."""
    sizes = iter([20_000, 40_000, 20_000])

    class Large(StandIn):
        measure = False

        def exchange(self, sleep_s: float = 0.0) -> Answers:
            answers = super().exchange(sleep_s)
            answers.size = next(sizes, 20_000)
            return answers

    source: Any = type("Source", (), {"next": staticmethod(lambda: ())})()
    for count, refused in ((3, False), (4, True)):
        sizes = iter([20_000, 40_000, 20_000])
        seat = Seat(cast(Any, Large()))
        arms = tuple(Arm(f"a{n}", "instrument" if n else "base") for n in range(count))
        design, settings = Design(arms, tuple(range(count)), 1), [{"x": "off"}] * count
        found = Loops([seat] * count, source, design, settings, random.Random(1)).fit()
        assert ("returns 40 kB, more than a socket holds" in found.error) == refused


def test_after_a_lock_was_waited_for_the_rest_is_short() -> None:
    """The server did no work, and the guardian hears nothing from us while we rest."""
    block = RunBlock(np.empty(0, RUN), 20.0, 0.0)
    assert _rest_s(block) == 60.0
    assert _rest_s(replace(block, error="SQLSTATE 55P03")) == 15.0
