"""Which processes are watched where not all can be."""

from __future__ import annotations

import random

import pytest

from pgtare.observing.flame.record import choose


def test_all_are_watched_where_that_can_be_read() -> None:
    found = choose({1: 100.0, 2: 0.0, 3: 800.0}, 1000, 150, random.Random(1))
    assert found == {1: 1, 2: 1, 3: 1}


def test_quiet_ones_are_all_watched_and_some_of_the_busy_stand_for_the_rest() -> None:
    quiet = dict.fromkeys(range(10), 5.0)
    busy = dict.fromkeys(range(100, 116), 2000.0)
    found = choose(quiet | busy, 5000, 150, random.Random(1))
    assert set(quiet) <= set(found)
    chosen = [pid for pid in found if pid in busy]
    assert len(chosen) == 2
    assert sum(found[pid] for pid in chosen) == pytest.approx(16)
    assert all(found[pid] == 1 for pid in quiet)


def test_who_is_drawn_differs() -> None:
    busy = dict.fromkeys(range(16), 2000.0)
    drawn = {tuple(choose(busy, 2000, 150, random.Random(seed))) for seed in range(20)}
    assert len(drawn) > 5


def test_no_more_than_can_be_distinguished() -> None:
    many = dict.fromkeys(range(1000), 0.0) | dict.fromkeys(range(2000, 2500), 100.0)
    found = choose(many, 10_000, 150, random.Random(1))
    assert len(found) == 150
    assert sum(found.values()) == pytest.approx(1500)
