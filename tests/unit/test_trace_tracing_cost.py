"""What a trace takes itself: counted from its records, taken from the CPU time around them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.profile import GROUPINGS
from pgtare.observing.trace.analysis.tracing_cost import Costs, of_recording
from pgtare.observing.trace.file.records import CallKind
from tests.sample_trace import by
from tests.unit.made_traces import MS, NOTHING, US, StreamBuilder, session_stream, trace

OWN = "pgtare itself (estimated)"


def cursor() -> StreamBuilder:
    """A cursor of one node, begun in 1 ms, with 3 ms of fetches; all of it on the processor."""
    b = session_stream()
    b.plan(5, [{"id": 0, "parent": -1, "kind": "Seq Scan", "relation": "public.a"}])
    b.call(CallKind.UTILITY, 0, MS, call=9, cpu=0)
    b.call(
        CallKind.FETCH,
        3 * MS,
        6 * MS,
        call=3,
        execution=2,
        parent=1,
        depth=1,
        busy=3 * MS,
        fetches=1001,
    )
    b.rowsources(2, 5, [(0, 0, 12_864, 1000, 1, 2 * MS, MS, 3 * MS)], 7 * MS, 128)
    b.call(CallKind.EXECUTE, MS, 2 * MS, call=2, parent=1, depth=1, plan=5)
    b.call(CallKind.UTILITY, MS, 7 * MS, call=1, cpu=6 * MS)
    b.request(0, 7 * MS)
    return b


@pytest.mark.parametrize(
    ("costs", "ns"),
    [
        # 64 calls and one in 128 of all are timed: 164.5, and 12,699.5 are counted
        (replace(NOTHING, execution_ns=10 * US, node_ns=5 * US), 15 * US),
        (replace(NOTHING, timed_ns=100.0), 16_450),
        (replace(NOTHING, timed_ns=90.0, reading_ns=5.0), 16_450 + 1000 * 10),
        (replace(NOTHING, counted_ns=10.0), 126_995),
        (replace(NOTHING, fetch_ns=20.0), 1000 * 20),
        # of the first call no reading of CPU time tells
        (replace(NOTHING, call_ns=2 * US), 3 * 2 * US),
        (replace(NOTHING, request_ns=30 * US), 30 * US),
    ],
)
def test_each_cost_is_counted_once(tmp_path: Path, costs: Costs, ns: float) -> None:
    found = trace(tmp_path / "t.pgtrace", cursor().data)
    lines = by(ledgers.ledger(found, costs))
    # a little of the request lies before the first reading of CPU time
    assert lines[OWN] == pytest.approx(ns, rel=0.15)
    assert lines[OWN] + lines["CPU outside waits"] == pytest.approx(6 * MS, rel=1e-6)


def test_it_never_takes_more_than_the_cpu_time_that_is_there(tmp_path: Path) -> None:
    found = trace(tmp_path / "t.pgtrace", cursor().data)
    lines = by(ledgers.ledger(found, replace(NOTHING, execution_ns=1e9, request_ns=1e9)))
    assert lines[OWN] == pytest.approx(6 * MS, rel=1e-6)
    assert sum(lines.values()) == pytest.approx(7 * MS)


def test_each_grouping_adds_up_with_it(tmp_path: Path) -> None:
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", cursor().data), Costs())
    for grouping in GROUPINGS:
        assert sum(by(book, grouping).values()) == pytest.approx(7 * MS)


def test_a_recording_notes_costs_and_one_without_has_the_usual_ones() -> None:
    mine = Costs(reading_ns=17.0)
    assert of_recording({"costs": asdict(mine)}) == mine
    assert of_recording({}) == Costs()
    assert of_recording({"costs": {"call_ns": "much", "wait_ns": -1, "other": 3}}) == Costs()


def test_workers_calls_are_not_the_leaders(tmp_path: Path) -> None:
    costs = replace(NOTHING, counted_ns=10.0)
    b = cursor()
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    (run,) = book.processes[0].stream.rowsources
    alone = costs.of_row_sources(run)
    parallel = replace(run, nodes=tuple(replace(node, flags=2) for node in run.nodes))
    assert costs.of_row_sources(parallel) == pytest.approx(alone / 3, rel=0.02)
    assert costs.of_waits(np.array([3.0])).tolist() == [0.0]
