"""What is dropped, in which order, and that it is written down."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pgtare.keeping.spool import writer
from pgtare.keeping.spool.retention import PRESSURE_ORDER, SpoolLimits, total_bytes
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.volume import Volume
from pgtare.keeping.spool.writer import Spool
from tests.unit.spool_rows import UNLIMITED, at, catch_up, held, newest, random_rows

DAY = 86400


@pytest.mark.parametrize(
    ("table", "days"),
    [("sessions", 2), ("waits", 7), ("ticks", 7), ("waits_1m", 30), ("waits_1h", 400)],
)
def test_rows_go_by_age(tmp_path: Path, table: str, days: int) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        spool.commit({table: random_rows(table, [at(0), at(3600)])}, {})
        catch_up(spool, at(days * DAY + 3600))
        assert held(tmp_path, table).num_rows == 6
        catch_up(spool, at(days * DAY + 3601))
        assert held(tmp_path, table).num_rows == 0
        assert not spool.take_notes()
    assert newest(tmp_path).dropped[table] == 6
    assert held(tmp_path, "gaps").num_rows == 0, "they were meant to go"


def test_rows_that_go_for_room_are_a_gap(tmp_path: Path) -> None:
    with Spool.open(tmp_path, SpoolLimits(most_bytes=1, reserve_bytes=0)) as spool:
        spool.commit({"sessions": random_rows("sessions", [at(0), at(3600)])}, {})
        catch_up(spool, at(7300))
    (gap,) = held(tmp_path, "gaps").to_pylist()
    assert (gap["kind"], gap["server"], gap["from_ts"]) == ("dropped", "one", at(0))
    assert gap["covered_ns"] == 3600 * 10**9
    assert gap["detail"] == "sessions: 6 rows of 2026-11-02 (for room)"
    assert newest(tmp_path).dropped["sessions"] == 6


def test_texts_stay_and_gaps_go_without_a_gap(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        spool.commit({name: random_rows(name, [at(0)]) for name in ("texts", "gaps")}, {})
        catch_up(spool, at(1000 * DAY))
    assert held(tmp_path, "texts").num_rows == 3
    assert held(tmp_path, "gaps").num_rows == 0
    assert newest(tmp_path).dropped["gaps"] == 3


def test_sessions_go_first_and_waits_last(tmp_path: Path) -> None:
    assert set(PRESSURE_ORDER) == set(TABLES) - {"gaps", "servers"}
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for hour in range(3):
            rows = {
                name: random_rows(name, [at(3600 * hour)], hour, each=20)
                for name in TABLES
                if TABLES[name].source is None and name != "gaps"
            }
            spool.commit(rows, {})
            while any(
                spool._roll_up(t, int(at(3600 * hour + 7300).timestamp()) * 10**6)
                for t in TABLES.values()
                if t.source
            ):
                pass
    order: list[str] = []
    size = sum(segment.bytes for segment in newest(tmp_path).segments.values())
    while size > 0:
        size -= 4000
        before = newest(tmp_path).segments
        with Spool.open(tmp_path, SpoolLimits(most_bytes=size, reserve_bytes=0)) as spool:
            spool._make_room()
        after = newest(tmp_path).segments
        gone = [segment for name, segment in before.items() if name not in after]
        gone = [segment for segment in gone if segment.table != "gaps"]
        order += [s.table for s in sorted(gone, key=lambda s: PRESSURE_ORDER.index(s.table))]
    assert order[:3] == ["sessions"] * 3
    assert order[-1] == "ticks_1h"
    assert order == sorted(order, key=PRESSURE_ORDER.index)
    details = [row["detail"] for row in held(tmp_path, "gaps").to_pylist()]
    assert len(details) == len(order)
    assert all(detail.endswith("(for room)") for detail in details)


@pytest.mark.slow
def test_room_is_made_for_many_commits_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_LEFT_SHARE", 0.5)

    def commit(spool: Spool, second: int) -> None:
        spool.commit({"sessions": random_rows("sessions", [at(second)], second, each=5000)}, {})

    with Spool.open(tmp_path, UNLIMITED) as spool:
        for second in range(10):
            commit(spool, second)
        size = total_bytes(newest(tmp_path))
        spool._limits = SpoolLimits(most_bytes=size - 1, reserve_bytes=0)
        commit(spool, 10)
        dropped = held(tmp_path, "gaps").num_rows
        assert dropped >= 5
        for second in range(11, 14):
            commit(spool, second)
    assert held(tmp_path, "gaps").num_rows == dropped
    assert total_bytes(newest(tmp_path)) < size


def test_what_is_not_rolled_up_is_not_dropped(tmp_path: Path) -> None:
    with Spool.open(tmp_path, SpoolLimits(most_bytes=1, reserve_bytes=0)) as spool:
        spool.commit({"waits": random_rows("waits", [at(0)])}, {})
        spool.commit({"sessions": random_rows("sessions", [at(1)])}, {})
        spool.commit({"ticks": random_rows("ticks", [at(2)])}, {})
        assert spool.trouble is None
        assert held(tmp_path, "sessions").num_rows == 0
        assert held(tmp_path, "waits").num_rows == 3
        catch_up(spool, at(7300))
        assert held(tmp_path, "waits").num_rows == 0


class Shared(Volume):
    """A disk of which others take a part; the spool's files take as much as they hold."""

    capacity = 1 << 30
    others = 0

    def free_bytes(self) -> int:
        own = sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())
        return max(self.capacity - self.others - own, 0)


RESERVE = SpoolLimits(most_bytes=1 << 60, reserve_bytes=1 << 20)
HISTORY = ("waits", "statements", "ticks")


def with_history(spool: Spool) -> None:
    """Hours of rows of several tables, rolled up."""
    for hour in range(3):
        times = [at(3600 * hour + 10 * tick) for tick in range(100)]
        names = (*HISTORY, "sessions", "texts")
        spool.commit({name: random_rows(name, times, hour) for name in names}, {})
        catch_up(spool, at(3600 * hour + 7300))


def test_a_disk_that_others_fill_costs_sessions_only(tmp_path: Path) -> None:
    volume = Shared(tmp_path)
    with Spool.open(tmp_path, RESERVE, volume) as spool:
        with_history(spool)
        before = newest(tmp_path)
        volume.others = volume.capacity
        for index in range(3):
            spool.commit({"ticks": random_rows("ticks", [at(10800 + index)])}, {})
            catch_up(spool, at(10800 + index))
        assert spool.held == 3
        assert spool.trouble == (
            f"{tmp_path} was not written: less than 1 MiB of its disk is free, which the spool "
            "leaves to others; free some space there, or name a place on another volume"
        )
        left = {segment.table for segment in newest(tmp_path).segments.values()}
        assert left ^ {segment.table for segment in before.segments.values()} == {
            "sessions",
            "gaps",
        }
        assert set(newest(tmp_path).dropped) == {"sessions"}
        volume.others = 0
        spool.commit({}, {})
        assert (spool.held, spool.trouble) == (0, None)


class Snapshots(Shared):
    """A disk whose snapshots keep what is removed."""

    removed = 0

    def remove(self, name: str) -> None:
        if self.path(name).exists():
            self.removed += self.path(name).stat().st_size
        super().remove(name)

    def free_bytes(self) -> int:
        return max(super().free_bytes() - self.removed, 0)


def test_a_disk_that_gives_nothing_back_does_not_cost_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    volume = Snapshots(tmp_path)
    with Spool.open(tmp_path, RESERVE, volume) as spool:
        for day in range(20):
            spool.commit({"sessions": random_rows("sessions", [at(86400 * day)], each=2000)}, {})
        size = min(segment.bytes for segment in newest(tmp_path).of_table("sessions"))
        volume.others = volume.free_bytes() - RESERVE.reserve_bytes + round(1.5 * size)
        left = []
        for second in (0.0, 10.0, 20.0, 40.0, 50.0):
            now = second
            spool.commit({}, {})
            left.append(len(newest(tmp_path).of_table("sessions")))
        assert left[:3] == [18, 18, 18]
        assert left[3] == left[4]
        assert 15 <= left[3] <= 17


def test_what_helps_others_goes_but_no_minutes_and_hours(tmp_path: Path) -> None:
    volume = Shared(tmp_path)
    with Spool.open(tmp_path, RESERVE, volume) as spool:
        with_history(spool)
        sizes = {name: 0 for name in TABLES}
        for segment in newest(tmp_path).segments.values():
            sizes[segment.table] += segment.bytes
        free = volume.free_bytes()
        # all that may go for others is just enough
        needed = sum(sizes[name] for name in (*HISTORY, "sessions")) - 40_000
        volume.others = free - RESERVE.reserve_bytes + needed
        for _ in range(5):
            spool.maintain(at(10800))
        assert volume.free_bytes() >= RESERVE.reserve_bytes
        dropped = set(newest(tmp_path).dropped)
        assert {"sessions", "statements"} <= dropped <= {*HISTORY, "sessions"}
        volume.others += 60_000
        spool.commit({}, {("one", "waits"): None})
        kept = {segment.table for segment in newest(tmp_path).segments.values()}
        assert {"ticks_1m", "waits_1h", "statements_1h", "texts"} <= kept
