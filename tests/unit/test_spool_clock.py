"""A clock that jumps ahead: it ages nothing at once, and leaves roll-ups as they should be."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from pgtare.keeping.spool.believed_clock import BelievedClock
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.writer import Spool
from tests.unit.spool_rows import (
    UNLIMITED,
    at,
    catch_up,
    check_rolled,
    held,
    newest,
    random_rows,
    sums,
    up_to,
)

DAY, YEAR = 86400, 365 * 86400
ROLLED = ("ticks_1m", "ticks_1h")


def tick(spool: Spool, index: int, ahead_s: float = 0) -> None:
    """A tick of 60 s with its upkeep. ahead_s: how far the clock is ahead."""
    now = at(60 * index + ahead_s)
    spool.commit({"ticks": random_rows("ticks", [now], index, each=2)}, {})
    steps = 0
    while spool.maintain(now, 60.0 * index):
        steps += 1
        assert steps < 100


def in_buckets(rows: pa.Table, table: str) -> int:
    """Different keys of rows: as many as there are rows, if none is a correcting row."""
    keys = [c.name for c in TABLES[table].columns if c.rule == "key" and c.name != "segment"]
    return len({tuple(row[key] for key in keys) for row in rows.to_pylist()})


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_two_years_ahead_for_three_ticks(tmp_path: Path, restart: bool) -> None:
    spool = Spool.open(tmp_path, UNLIMITED)
    spool.commit({"waits_1h": random_rows("waits_1h", [at(-300 * DAY)])}, {})
    spool.commit({"sessions": random_rows("sessions", [at(-DAY)])}, {})
    for index in range(1, 70):
        wrong = 30 <= index < 33
        if restart and index in (31, 33):
            spool.close()
            spool = Spool.open(tmp_path, UNLIMITED)
        tick(spool, index, ahead_s=2 * YEAR if wrong else 0)
    assert not newest(tmp_path).dropped
    end_us = int(at(4200).timestamp()) * 10**6
    for table in ROLLED:
        assert newest(tmp_path).rolled_us[table] <= end_us
        check_rolled(tmp_path, table)
        rows = held(tmp_path, table)
        assert rows.num_rows == in_buckets(rows, table)
    catch_up(spool, at(4200 + 3700))
    spool.close()
    expected = sums(up_to(held(tmp_path, "ticks"), end_us), "ticks")
    for table in ROLLED:
        assert sums(held(tmp_path, table), table) == expected


@pytest.mark.parametrize("restart", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_hours_ahead_for_twenty_minutes(tmp_path: Path, restart: bool) -> None:
    """Long enough to be believed: then it is set right, and three hours later that time comes."""
    spool = Spool.open(tmp_path, UNLIMITED)
    for index in range(1, 280):
        if restart and index in (45, 50, 52, 200):
            spool.close()
            spool = Spool.open(tmp_path, UNLIMITED)
        tick(spool, index, ahead_s=3 * 3600 if 30 <= index < 50 else 0)
        if index == 49:
            assert newest(tmp_path).rolled_us["ticks_1m"] > at(3 * 3600).timestamp() * 1e6
        if index == 60:
            assert newest(tmp_path).rolled_us["ticks_1m"] == at(59 * 60).timestamp() * 1e6
    catch_up(spool, at(280 * 60 + 7300))
    spool.close()
    expected = sums(held(tmp_path, "ticks"), "ticks")
    for table in ROLLED:
        assert sums(held(tmp_path, table), table) == expected
        rows = held(tmp_path, table)
        # a correcting row or two when it was set right, and where both times meet
        assert rows.num_rows - in_buckets(rows, table) < 20
    assert not newest(tmp_path).rolled_early


@pytest.mark.slow
def test_years_back_for_twenty_minutes(tmp_path: Path) -> None:
    """What is summed up already is neither read nor summed up again."""
    with Spool.open(tmp_path, UNLIMITED) as spool:
        spool.commit({"waits": random_rows("waits", [at(-DAY)])}, {})
        for index in range(1, 100):
            tick(spool, index, ahead_s=-2 * YEAR if 30 <= index < 50 else 0)
        early = next(one for one in newest(tmp_path).of_table("waits"))
        assert all(newest(tmp_path).is_rolled_up(early, name) for name in ("waits_1m", "waits_1h"))
        catch_up(spool, at(100 * 60 + 7300))
    expected = sums(held(tmp_path, "ticks"), "ticks")
    for table in ROLLED:
        assert sums(held(tmp_path, table), table) == expected


def test_after_years_without_an_agent_a_day_an_hour_goes(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for day in range(5):
            spool.commit({"sessions": random_rows("sessions", [at(day * DAY)], day)}, {})
    with Spool.open(tmp_path, UNLIMITED) as spool:
        left = []
        for hour in range(8):
            while spool.maintain(at(YEAR), 3600.0 * hour):
                pass
            left.append(held(tmp_path, "sessions").num_rows)
    # two days are old at once by the rows' own time
    assert left == sorted(left, reverse=True)
    assert left[0] == 9
    assert all(before - after <= 3 for before, after in itertools.pairwise(left))
    assert left[-1] == 0


def test_a_clock_that_is_right_is_followed() -> None:
    clock = BelievedClock(None, 600, DAY)
    us = 10**6
    assert clock.read(0, 0.0) == 0
    assert clock.read(500 * us, 1.0) == 500 * us
    assert clock.read(400 * us, 2.0) == 400 * us
    assert clock.read(YEAR * us, 3.0) == 401 * us
    assert clock.read(YEAR * us, 602.0) == 1000 * us
    assert clock.read(YEAR * us, 603.0) == (1001 + DAY) * us
    assert clock.read(YEAR * us, 1202.0) == (1600 + DAY) * us
    assert clock.read(YEAR * us, 1203.0) == (1601 + 2 * DAY) * us
    assert clock.read(1500 * us, 1204.0) == 1500 * us
