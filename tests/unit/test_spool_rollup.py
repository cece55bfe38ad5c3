"""Minutes and hours are the sums of ticks: in every column, exactly, whatever comes late."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgtare.keeping.spool import rollup
from pgtare.keeping.spool.segments import times_us
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.writer import Spool
from tests.unit.spool_rows import (
    START,
    UNLIMITED,
    at,
    catch_up,
    check_rolled,
    held,
    random_rows,
    sums,
)

ROLLED = [table.name for table in TABLES.values() if table.source]
ROOTS = ("waits", "statements", "activity", "ticks")


def covering(rows: pa.Table, *seconds: float) -> pa.Table:
    """Rows that cover so many seconds: all the same, or each its own."""
    given = [round(each * 10**9) for each in seconds]
    covered = given * (rows.num_rows // len(given))
    index = rows.schema.get_field_index("covered_ns")
    return rows.set_column(index, rows.schema.field("covered_ns"), pa.array(covered, pa.int64()))


def only_row(table: str, ts: float, covered_s: float, **columns: Any) -> pa.Table:
    """One row, all of whose figures are 0 but these."""
    (row,) = random_rows(table, [at(ts)], each=1).to_pylist()
    zero = {column.name: 0 for column in TABLES[table].columns if column.rule == "sum"}
    values = {**row, **zero, "covered_ns": round(covered_s * 10**9), **columns}
    return pa.Table.from_pylist([values], schema=TABLES[table].row_schema)


def by_bucket(rows: pa.Table, name: str) -> dict[float, Any]:
    """A column by the seconds at which buckets end."""
    start_us = int(START.timestamp()) * 10**6
    times = [(us - start_us) / 10**6 for us in times_us(rows).tolist()]
    assert len(set(times)) == len(times)
    return dict(sorted(zip(times, rows[name].to_pylist(), strict=True)))


def test_a_row_that_covers_long_is_spread_over_the_minutes_that_it_covers() -> None:
    row = only_row(
        "waits", 150, 120, active_ns=121, total_ns=-121, calls=1, h05=(1 << 63) - 1, max_ns=77
    )
    found = rollup.summed(row, TABLES["waits_1m"])
    assert by_bucket(found, "covered_ns") == {60: 30 * 10**9, 120: 60 * 10**9, 180: 30 * 10**9}
    assert by_bucket(found, "active_ns") == {60: 30, 120: 61, 180: 30}
    assert by_bucket(found, "total_ns") == {60: -30, 120: -61, 180: -30}
    assert by_bucket(found, "calls") == {60: 0, 120: 1, 180: 0}  # in the midst, not at the end
    assert by_bucket(found, "max_ns") == {60: 77, 120: 77, 180: 77}
    parts = by_bucket(found, "h05")
    assert sum(parts.values()) == (1 << 63) - 1
    assert abs(parts[60] - (1 << 61)) <= 1


def test_a_row_that_ends_with_a_minute_has_no_part_behind_it() -> None:
    found = rollup.summed(only_row("ticks", 120, 120, ticks=1), TABLES["ticks_1m"])
    assert by_bucket(found, "covered_ns") == {60: 60 * 10**9, 120: 60 * 10**9}


def test_rows_of_a_minute_and_a_half_stay_whole() -> None:
    found = rollup.summed(only_row("waits", 61, 90, active_ns=90), TABLES["waits_1m"])
    assert by_bucket(found, "active_ns") == {120: 90}


def test_minutes_are_not_spread_again() -> None:
    row = only_row("waits", 3660, 200, active_ns=90)  # two rows of a slow server
    assert by_bucket(rollup.summed(row, TABLES["waits_1h"]), "active_ns") == {7200: 90}


def test_only_the_last_part_has_the_settings() -> None:
    row = only_row("activity", 5400, 5400, commits=90, settings="{}", sessions=5)
    found = rollup.summed(row, TABLES["activity_1h"])
    assert by_bucket(found, "commits") == {3600: 60, 7200: 30}
    assert by_bucket(found, "settings") == {3600: None, 7200: "{}"}
    assert by_bucket(found, "sessions") == {3600: 5, 7200: 5}


def test_an_absence_of_months_becomes_few_parts() -> None:
    month_s = 30 * 86400
    found = rollup.summed(only_row("waits", 30, month_s, active_ns=10**15), TABLES["waits_1m"])
    assert found.num_rows <= rollup.MOST_PARTS + 1
    assert sum(by_bucket(found, "active_ns").values()) == 10**15
    assert sum(by_bucket(found, "covered_ns").values()) == month_s * 10**9


def test_an_absence_of_an_hour_is_in_its_minutes_and_hours(tmp_path: Path) -> None:
    """Its row comes behind the watermarks, and yet every minute and hour has its share."""
    with Spool.open(tmp_path, UNLIMITED) as spool:
        calls = {}
        for ts, covered_s, number in ((10, 10, 5), (5410, 5400, 54_000), (5420, 10, 7)):
            row = {"calls": number, "active_ns": number * 1000 + 1}
            ticks = only_row("ticks", ts, covered_s, ticks=1)
            spool.commit({"waits": only_row("waits", ts, covered_s, **row), "ticks": ticks}, {})
            catch_up(spool, at(ts + 3600 if ts > 20 else ts))
        catch_up(spool, at(2 * 86400))
    for table in ("waits_1m", "waits_1h"):
        assert sums(held(tmp_path, table), table) == sums(held(tmp_path, "waits"), table)
        calls[table] = summed_by(held(tmp_path, table), "calls")
        covered = summed_by(held(tmp_path, table.replace("waits", "ticks")), "covered_ns")
        assert covered == summed_by(held(tmp_path, table), "covered_ns")
    # 10 a second: 50 s of the first minute are in the gap, and 10 s of the last
    assert calls["waits_1m"][60] == 5 + 500
    assert {calls["waits_1m"][minute] for minute in range(120, 5401, 60)} == {600}
    assert calls["waits_1m"][5460] == 100 + 7
    assert calls["waits_1h"] == {3600: 5 + 10 * 3590, 7200: 10 * 1810 + 7}


def summed_by(rows: pa.Table, name: str) -> dict[float, int]:
    """Sums of a column by the seconds at which buckets end."""
    start_us = int(START.timestamp()) * 10**6
    found: dict[float, int] = {}
    for us, value in zip(times_us(rows).tolist(), rows[name].to_pylist(), strict=True):
        end = (us - start_us) / 10**6
        found[end] = found.get(end, 0) + value
    return found


def test_a_tick_belongs_to_the_minute_that_it_ends_in() -> None:
    start_us = int(START.timestamp()) * 10**6
    minutes = TABLES["ticks_1m"]
    assert rollup.bucket_end(start_us, minutes) == start_us
    assert rollup.bucket_end(start_us + 1, minutes) == start_us + 60 * 10**6
    assert rollup.last_closed(start_us + 59_999_999, minutes) == start_us
    rows = covering(random_rows("ticks", [at(0), at(0.000001), at(30), at(60)], each=1), 10)
    found = rollup.summed(rows, minutes)
    assert set(times_us(found)) == {start_us, start_us + 60 * 10**6}


@pytest.mark.parametrize("table", ROLLED)
def test_sums_of_groups_are_the_sums(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup, "_FOLDED_ROWS", 5)
    rolled = TABLES[table]
    assert rolled.source is not None
    times = range(9, 190, 7)
    groups = [random_rows(rolled.source, [at(ts), at(ts + 3)], each=3) for ts in times]
    whole = rollup.summed(pa.concat_tables(groups), rolled)
    found = rollup.summed_groups(iter(groups), rolled)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, whole.to_pylist()))


def test_an_hour_of_statements_is_never_in_memory_as_a_whole() -> None:
    one = random_rows("statements", [at(60)], each=1000)
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    try:
        # other memory for each group: take copies
        groups = (one.take(pa.array(range(one.num_rows))) for _ in range(60))
        found = rollup.summed_groups(groups, TABLES["statements_1h"])
    finally:
        pa.set_memory_pool(before)
    assert sum(found["calls"].to_pylist()) == 60 * sum(one["calls"].to_pylist())
    assert counted.max_memory() < 30 * one.nbytes


@pytest.mark.parametrize("table", ROLLED)
def test_a_sum_is_exact_beyond_floats(table: str) -> None:
    rows = random_rows(str(TABLES[table].source), [at(i) for i in range(1, 200)], 5, span=1 << 54)
    found = rollup.summed(rows, TABLES[table])
    assert found.num_rows < rows.num_rows
    exact = sums(rows, table)
    assert any(total > 1 << 60 for total in exact.values() if isinstance(total, int))
    assert sums(found, table) == exact


def test_the_last_settings_stay() -> None:
    rows = covering(random_rows("activity", [at(3000), at(100)], each=1), 60)
    for name in ("database", "quality", "agent", "settings"):
        index = rows.schema.get_field_index(name)
        values = ["later", "earlier"] if name == "settings" else ["same", "same"]
        rows = rows.set_column(index, rows.schema.field(name), [values])
    for name in ("epoch", "database_oid"):
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(name), [[1, 1]])
    found = rollup.summed(rows, TABLES["activity_1h"])
    assert found["settings"].to_pylist() == ["later"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_ticks_minutes_and_hours_agree(tmp_path: Path, seed: int) -> None:
    """Random ticks, late ones by up to two hours, upkeep now and then, and a writer that dies."""
    rng = random.Random(seed)
    spool = Spool.open(tmp_path, UNLIMITED)
    now = 0.0
    for index in range(40):
        now += rng.choice([10, 10, 60, 900])
        late = rng.choice([0, 0, 0, 70, 3700, 7300])
        covered_s = rng.choice([10, 60, 300, 9000])
        rows = {
            name: random_rows(
                name, [at(now - late)], 1000 * seed + index, each=2, covered_s=covered_s
            )
            for name in ROOTS
        }
        spool.commit(rows, {})
        for _ in range(rng.randrange(4)):
            spool.maintain(at(now))
        if rng.random() < 0.2:
            spool._lock.release()  # as a kill does: nothing else is told
            spool = Spool.open(tmp_path, UNLIMITED)
        if index % 20 == 19:
            for table in ROLLED:
                check_rolled(tmp_path, table)
    catch_up(spool, at(now + 2 * 86400))
    spool.close()
    for root in ROOTS:
        exact = sums(held(tmp_path, root), root)
        for table in ROLLED:
            if table.startswith(root):
                assert sums(held(tmp_path, table), table) == exact, table
