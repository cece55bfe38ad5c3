"""What is dropped, in which order, and that it is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.watching.spool.limits import PRESSURE_ORDER, SpoolLimits
from pgtare.watching.spool.spool import Spool
from pgtare.watching.spool.tables import TABLES
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
    gaps = [row for row in held(tmp_path, "gaps").to_pylist() if row["detail"].startswith(table)]
    (gap,) = (row for row in gaps if f"{table}:" in row["detail"])
    assert (gap["kind"], gap["server"], gap["from_ts"]) == ("dropped", "one", at(0))
    assert gap["covered_ns"] == 3600 * 10**9
    assert gap["detail"] == f"{table}: 6 rows of 2026-11-02 (by age)"
    assert newest(tmp_path).dropped[table].rows == 6


def test_texts_stay_and_gaps_go_without_a_gap(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        spool.commit({name: random_rows(name, [at(0)]) for name in ("texts", "gaps")}, {})
        catch_up(spool, at(1000 * DAY))
    assert held(tmp_path, "texts").num_rows == 3
    assert held(tmp_path, "gaps").num_rows == 0
    assert newest(tmp_path).dropped["gaps"].rows == 3


def test_sessions_go_first_and_waits_last(tmp_path: Path) -> None:
    assert set(PRESSURE_ORDER) == set(TABLES) - {"gaps"}
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for hour in range(3):
            rows = {
                name: random_rows(name, [at(3600 * hour)], hour, each=20)
                for name in TABLES
                if TABLES[name].source is None and name != "gaps"
            }
            spool.commit(rows, {})
            while any(
                spool._roll_up(t, at(3600 * hour + 7300)) for t in TABLES.values() if t.source
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
