"""A trace of waits alone: statements come from the marks between the waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.over_time import over_time
from pgtare.observing.trace.analysis.profile import GROUPINGS, profile
from pgtare.observing.trace.analysis.statements import report
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.records import FAILED
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.file.writer import Writer
from pgtare.postgres.wait_ring import RingRecordKind
from tests.unit.made_traces import BEGAN_NS, MS, NO_RESERVE, define_events, ring, waits

pytestmark = pytest.mark.timeout(180)
#: Event, begin and length in ms: two requests, and what the client did before each.
WAITS = [(2, 0, 10), (0, 11, 4), (3, 18, 1), (2, 20, 10), (1, 32, 8)]
BEGIN, END, CPU, ABORT = (
    RingRecordKind.STATEMENT_BEGIN,
    RingRecordKind.STATEMENT_END,
    RingRecordKind.CPU,
    RingRecordKind.ABORT,
)
#: Kind, moment in ms and value: one that ends, one that fails, and one that is still open.
MARKS = [
    (BEGIN, 10.5, 101),
    (CPU, 16, 1_000_000),
    (END, 16, 7),
    (BEGIN, 16.5, 102),
    (ABORT, 17, 0),
    (BEGIN, 31, 101),
]


def recorded(path: Path) -> Path:
    writer = Writer(path, b'{"calls": false, "level": 8}', NO_RESERVE)
    writer.define(Table.RINGS, ring(1, 4711, "waits", user="app"))
    define_events(writer)
    writer.add(Table.WAITS, waits(1, [(event, at * MS, n * MS) for event, at, n in WAITS]))
    kind, when, value = zip(*MARKS, strict=True)
    writer.add(
        Table.MARKS,
        {
            "ring": np.ones(len(MARKS), np.int64),
            "kind": np.array([int(k) for k in kind]),
            "depth": np.zeros(len(MARKS), np.int64),
            "when_ns": np.array([BEGAN_NS + round(w * MS) for w in when]),
            "value": np.array(value),
        },
    )
    writer.add(Table.TEXTS, {"query_id": np.array([101]), "text": [b"SELECT a FROM t"]})
    writer.close(b"{}")
    return path


def test_statements_come_from_marks(tmp_path: Path) -> None:
    book = ledger(load(recorded(tmp_path / "t.pgtrace")))
    assert not book.notes
    calls = book.calls
    assert calls["query_id"].tolist() == [101, 102, 101]
    assert (calls["flags"] & FAILED).tolist() == [0, FAILED, 0]
    assert calls["rows"].tolist() == [7, 0, 0]
    assert (calls["end"] - BEGAN_NS).tolist() == [16 * MS, 17 * MS, 40 * MS]
    found = {s.query_id: s for s in report(book)}
    assert found[101].text == "SELECT a FROM t"
    assert found[101].calls["execute"].count == 2
    assert {w.event: w.waits for w in found[101].waits} == {
        "IO/DataFileRead": 1,
        "Timeout/PgSleep": 1,
    }
    assert found[102].text == "query 102"


def test_all_groupings_add_up_and_the_client_is_apart(tmp_path: Path) -> None:
    book = ledger(load(recorded(tmp_path / "t.pgtrace")))
    for by in GROUPINGS:
        assert sum(line.ns for line in profile(book, by).lines) == pytest.approx(40 * MS)
    lines = {line.name: line.ns for line in profile(book, "class").lines}
    assert lines["IO"] == pytest.approx(5 * MS, abs=100)
    assert lines["Timeout"] == pytest.approx(8 * MS, abs=100)
    assert lines["client"] == pytest.approx(20 * MS, abs=100)
    by_statement = {line.name: line.ns for line in profile(book, "statement").lines}
    # the commit's wait, and what is before and after it
    assert by_statement["between calls"] > 3 * MS
    # what is drawn over time is what the profile has
    times = over_time(book)
    lines.pop("client")
    drawn = {name: float(v.mean()) * 40 * MS for name, v in times.active.items()}
    assert drawn == pytest.approx(lines, rel=1e-6)
    assert times.heat.sum() == 3  # without the client's
