"""Minutes and hours are the sums of ticks: in every column, exactly, whatever comes late."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pgtare.watching.spool import rollup
from pgtare.watching.spool.segments import times_us
from pgtare.watching.spool.spool import Spool
from pgtare.watching.spool.tables import TABLES
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


def test_a_tick_belongs_to_the_minute_that_it_ends_in() -> None:
    start_us = int(START.timestamp()) * 10**6
    minutes = TABLES["ticks_1m"]
    assert rollup.bucket_end(start_us, minutes) == start_us
    assert rollup.bucket_end(start_us + 1, minutes) == start_us + 60 * 10**6
    assert rollup.last_closed(start_us + 59_999_999, minutes) == start_us
    rows = random_rows("ticks", [at(0), at(0.000001), at(30), at(60)], each=1)
    found = rollup.summed(rows, minutes)
    assert set(times_us(found)) == {start_us, start_us + 60 * 10**6}


@pytest.mark.parametrize("table", ROLLED)
def test_a_sum_is_exact_beyond_floats(table: str) -> None:
    rows = random_rows(str(TABLES[table].source), [at(i) for i in range(1, 200)], 5, span=1 << 54)
    found = rollup.summed(rows, TABLES[table])
    assert found.num_rows < rows.num_rows
    exact = sums(rows, table)
    assert any(total > 1 << 60 for total in exact.values() if isinstance(total, int))
    assert sums(found, table) == exact


def test_the_last_settings_stay() -> None:
    rows = random_rows("activity", [at(3000), at(100)], each=1)
    for name in ("database", "quality", "agent", "settings"):
        index = rows.schema.get_field_index(name)
        values = ["later", "earlier"] if name == "settings" else ["same", "same"]
        rows = rows.set_column(index, rows.schema.field(name), [values])
    for name in ("epoch", "database_oid"):
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(name), [[1, 1]])
    found = rollup.summed(rows, TABLES["activity_1h"])
    assert found["settings"].to_pylist() == ["later"]


@pytest.mark.parametrize("seed", range(3))
def test_ticks_minutes_and_hours_agree(tmp_path: Path, seed: int) -> None:
    """Random ticks, late ones by up to two hours, upkeep now and then, and a writer that dies."""
    rng = random.Random(seed)
    spool = Spool.open(tmp_path, UNLIMITED)
    now = 0.0
    for index in range(40):
        now += rng.choice([10, 10, 60, 900])
        late = rng.choice([0, 0, 0, 70, 3700, 7300])
        rows = {
            name: random_rows(name, [at(now - late)], 1000 * seed + index, each=2) for name in ROOTS
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
