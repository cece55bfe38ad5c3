"""Which processes are watched where not all can be."""

from __future__ import annotations

import random

import pytest

from pgtare.seeing.flame.process_sample import choose


def test_all_are_watched_where_that_can_be_read() -> None:
    found = choose({1: 100.0, 2: 0.0, 3: 800.0}, 1000, 150, random.Random(1))
    assert found.all
    assert sorted(found.pids) == [1, 2, 3]
    assert found.weights == {}


def test_quiet_ones_are_all_watched_and_some_of_the_busy_stand_for_the_rest() -> None:
    quiet = dict.fromkeys(range(10), 5.0)
    busy = dict.fromkeys(range(100, 116), 2000.0)
    found = choose(quiet | busy, 5000, 150, random.Random(1))
    assert not found.all
    assert set(quiet) <= set(found.pids)
    chosen = [pid for pid in found.pids if pid in busy]
    assert len(chosen) == 2
    assert found.drawn == (2, 16)
    assert found.rate == pytest.approx(32_050)
    assert sum(found.weights[pid] for pid in chosen) == pytest.approx(16)
    assert all(found.weights[pid] == 1 for pid in quiet)


def test_who_is_drawn_differs() -> None:
    busy = dict.fromkeys(range(16), 2000.0)
    drawn = {tuple(choose(busy, 2000, 150, random.Random(seed)).pids) for seed in range(20)}
    assert len(drawn) > 5


def test_no_more_than_can_be_distinguished() -> None:
    many = dict.fromkeys(range(1000), 0.0) | dict.fromkeys(range(2000, 2500), 100.0)
    found = choose(many, 10_000, 150, random.Random(1))
    assert len(found.pids) == 150
    assert sum(found.weights.values()) == pytest.approx(1500)
