"""CPU time of statements from readings that come now and then."""

from __future__ import annotations

import numpy as np
import pytest

from pgtare.seeing.waits.recorded_cpu import CpuTime
from pgtare.server.wait_ring import RingRecordKind

Record = tuple[
    int, RingRecordKind, int, int
]  # us since the beginning, kind, value, query identifier
Part = tuple[dict[str, np.ndarray], np.ndarray]


def part(*records: Record, session: int = 0, depth: int = 0) -> Part:
    when, kind, value, query_id = np.array(records, np.int64).T
    same = np.ones(len(records), np.int64)
    columns = {
        "kind": kind,
        "value": value,
        "query_id": query_id,
        "session": session * same,
        "depth": depth * same,
    }
    return columns, when * 1000


def spent(*parts: Part) -> dict[int, float]:
    """CPU time by query identifier, in us."""
    found: dict[int, float] = {}
    cpu = CpuTime()
    for columns, start in parts:
        for shares in cpu.add(columns, start):
            assert (shares.end > shares.begin).all()
            for query_id in np.unique(shares.query_id):
                of = shares.query_id == query_id
                us = float((shares.rate * (shares.end - shares.begin))[of].sum()) / 1000
                found[int(query_id)] = found.get(int(query_id), 0) + us
    return found


BEGIN, END, CPU = RingRecordKind.STATEMENT_BEGIN, RingRecordKind.STATEMENT_END, RingRecordKind.CPU


def test_statements_between_two_readings_share_by_their_time() -> None:
    found = spent(
        part(
            (0, CPU, 1_000_000, 0),
            (10, BEGIN, 1, 1),
            (30, END, 0, 1),
            (40, BEGIN, 2, 2),
            (100, CPU, 1_080_000, 2),
            (101, END, 0, 2),
        )
    )
    assert found == pytest.approx({1: 20, 2: 60})


def test_a_statement_goes_on_in_the_next_part() -> None:
    found = spent(
        part((0, CPU, 0, 0), (10, BEGIN, 1, 1), (20, END, 0, 1), (30, BEGIN, 2, 2)),
        part((90, CPU, 35_000, 2), (91, END, 0, 2)),
    )
    assert found == pytest.approx({1: 5, 2: 30})


def test_without_a_statement_it_belongs_to_none() -> None:
    assert spent(part((0, CPU, 0, 0), (50, CPU, 40_000, 0))) == pytest.approx({0: 40})


def test_before_the_first_reading_nothing_is_known() -> None:
    found = spent(
        part(
            (0, BEGIN, 1, 1),
            (9, CPU, 77_000_000, 1),
            (10, END, 0, 1),
            (20, BEGIN, 2, 2),
            (29, CPU, 77_005_000, 2),
            (30, END, 0, 2),
        )
    )
    assert found == pytest.approx({2: 5})


def test_an_abort_ends_a_statement() -> None:
    found = spent(
        part(
            (0, CPU, 0, 0),
            (10, BEGIN, 1, 1),
            (20, RingRecordKind.ABORT, 0, 1),
            (90, BEGIN, 2, 2),
            (100, CPU, 20_000, 2),
            (101, END, 0, 2),
        )
    )
    assert found == pytest.approx({1: 10, 2: 10})


def test_nested_statements_are_their_outermost_ones() -> None:
    outer = part((0, CPU, 0, 0), (10, BEGIN, 1, 1))
    nested = part((20, BEGIN, 7, 1), (30, CPU, 9_000, 1), depth=1)
    assert spent(outer, nested, part((50, CPU, 30_000, 1), (51, END, 0, 1))) == pytest.approx(
        {1: 30}
    )
