"""What rings hold of before a recording: it is kept out of the recording, and out of reports."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.profile import profile
from pgtare.observing.trace.capture.before_recording import Earlier
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.record_decoder import decode
from pgtare.observing.trace.file.records import CallKind
from tests.unit.made_traces import BEGAN_NS, MS, StreamBuilder, session_stream, trace, write

pytestmark = pytest.mark.timeout(180)
_SECOND = 1000 * MS


def used_twice() -> tuple[StreamBuilder, int]:
    """A statement of before and of the recording, one of before only; how much is of before."""
    b = session_stream()
    b.data, b.number = b.data[:8] + bytes(8) + b.data[16:], 0  # the reading function makes it
    b.waitring()
    b.level(0, 12, 2, 1.0)
    b.text(1, "SELECT 'again'")
    b.text(2, "SELECT 'secret'")
    b.plan(7, [{"node": 0}], text=2)  # statements share plans
    b.call(CallKind.EXECUTE, 0, 5 * MS, text=2)
    b.call(CallKind.EXECUTE, 5 * MS, 6 * MS, text=1, plan=7)
    before = len(b.data) - 304  # the record SESSION is not in the ring
    b.call(CallKind.EXECUTE, 9 * MS, 10 * MS, text=1, plan=7)
    b.call(CallKind.EXECUTE, 10 * MS, 11 * MS, text=1, plan=7)
    return b, before


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_only_what_later_records_name_is_kept(pieces: int) -> None:
    b, before = used_twice()
    earlier, chunks = Earlier(before), []
    bounds = [304]  # each piece ends with a record
    while bounds[-1] < len(b.data):
        bounds.append(bounds[-1] + int.from_bytes(b.data[bounds[-1] : bounds[-1] + 4], "little"))
    inner = [bounds[1 + i * (len(bounds) - 2) // pieces] for i in range(1, pieces)]
    for start, end in itertools.pairwise([0, *inner, len(b.data)]):
        chunks += earlier.without(max(start - 304, 0), 0, b.data[start:end])
    assert b"secret" not in b"".join(data for _, data in chunks)
    found = decode(sorted(chunks, key=lambda chunk: chunk[0]))
    assert {text.text for text in found.texts.values()} == {"SELECT 'again'"}
    assert list(found.plans) == [7]
    assert found.calls["end"].tolist() == [10 * MS, 11 * MS]
    assert found.passed == 6 * MS
    assert [level for _, level, *_ in found.levels] == [12]
    assert len(found.wait_rings) == 1
    # nothing is missing behind what has passed
    assert all(until <= 6 * MS for _, until, *_ in found.gaps)
    assert not found.notes


def test_losses_of_before_are_none_of_the_recording() -> None:
    earlier = Earlier(1000)
    assert earlier.lost(0, 900) == 0
    assert earlier.lost(0, 1500) == 500
    assert earlier.lost(2000, 300) == 300
    assert Earlier(0).lost(0, 300) == 300


def began(after: int) -> str:
    return datetime.fromtimestamp((BEGAN_NS + after) / 1e9, UTC).isoformat()


def test_waits_whose_tie_is_lost_stay_with_their_session(tmp_path: Path) -> None:
    """And begin with the recording, whatever their ring holds of before."""
    b = session_stream()
    b.execution(60 * _SECOND, 61 * _SECOND)
    rows = [(1, 1 * _SECOND, 20 * _SECOND), (1, 60 * _SECOND + 1, 500 * MS)]
    path = write(tmp_path / "t", b.data, rows, began=began(59 * _SECOND))
    found_in = load(path)
    # somebody else had the waits traced before the calls
    found_in.rings[2] = dataclasses.replace(found_in.rings[2], started_ns=BEGAN_NS - MS)
    book = ledgers.ledger(found_in)
    (process,) = book.processes
    assert process.begin == BEGAN_NS + 59 * _SECOND
    found = {line.name: line.total_ns for line in profile(book).lines}
    assert found["Timeout/PgSleep"] == 500 * MS
    assert sum(found.values()) == pytest.approx(2 * _SECOND)


def test_waits_alone_begin_with_the_recording(tmp_path: Path) -> None:
    rows = [(1, 1 * _SECOND, 20 * _SECOND), (1, 60 * _SECOND, 1 * _SECOND)]
    path = write(tmp_path / "t", b"", rows, began=began(59 * _SECOND))
    (process,) = ledgers.ledger(load(path)).processes
    assert process.begin == BEGAN_NS + 59 * _SECOND
    path = write(tmp_path / "u", b"", rows[:1], began=began(59 * _SECOND))
    assert not ledgers.ledger(load(path)).processes


def test_waits_of_another_process_of_that_number_are_its_own(tmp_path: Path) -> None:
    b = session_stream()
    b.execution(1 * MS, 2 * MS)
    found = trace(tmp_path / "t", b.data, [(1, 50 * MS, 10 * MS)])
    found.rings[2] = dataclasses.replace(found.rings[2], started_ns=BEGAN_NS + 40 * MS)
    assert len(ledgers.ledger(found).processes) == 2


def test_time_without_a_reading_of_cpu_is_not_the_run_queues(tmp_path: Path) -> None:
    """It may as well have been CPU."""
    b = session_stream(waits=True)
    b.execution(0, 10 * MS)
    found = trace(tmp_path / "t", b.data)
    when = np.array([BEGAN_NS - MS, BEGAN_NS + 20 * MS])
    found.processor[1] = {
        "when_ns": when,
        "cpu_ns": np.array([0, 5 * MS]),
        "queue_ns": np.array([0, 8 * MS]),
    }
    by = {line.name: line.total_ns for line in profile(ledgers.ledger(found)).lines}
    assert ledgers.NAMES[ledgers.QUEUE] not in by
    assert by[ledgers.NAMES[ledgers.UNACCOUNTED]] == pytest.approx(10 * MS)


def unnumbered(data: bytes) -> bytes:
    """A record as the reading function makes it."""
    return data[:8] + bytes(8) + data[16:]


def test_what_the_reading_function_adds_comes_once() -> None:
    """And only if something names it; the answers of before are those of a ring of before."""
    b = session_stream()
    head = unnumbered(b.data)
    added = b""
    for number, text in ((1, "SELECT 'again'"), (2, "SELECT 'never named'")):
        made = StreamBuilder()
        made.session()
        begin = len(made.data)
        made.text(number, text)
        added += unnumbered(made.data[begin:])
    calls = StreamBuilder()
    calls.session()
    begin = len(calls.data)
    calls.call(CallKind.EXECUTE, 0, 5 * MS, text=1)
    first = calls.data[begin:]
    calls.call(CallKind.EXECUTE, 5 * MS, 6 * MS, text=1)
    second = calls.data[begin + len(first) :]
    earlier = Earlier(0)
    chunks = earlier.without(0, 0, head + added + first)
    chunks += earlier.without(len(first), 0, added + second)
    data = b"".join(part for _, part in chunks)
    assert data.count(b"SELECT 'again'") == 1
    assert b"never named" not in data
    found = decode(chunks)
    assert {text.text for text in found.texts.values()} == {"SELECT 'again'"}
    assert len(found.calls) == 2
