"""A trace of waits alone: statements come from the marks between the waits."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.profile import GROUPINGS, profile
from pgtare.observing.trace.analysis.statements import report
from pgtare.observing.trace.capture import drain as drains
from pgtare.observing.trace.capture.ring_selection import Choice
from pgtare.observing.trace.capture.server import Server, Unread
from pgtare.observing.trace.capture.target import Target
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.records import FAILED
from pgtare.observing.trace.file.tables import NO_RING, Table
from pgtare.observing.trace.file.writer import Writer
from pgtare.observing.trace.output.active_sessions import over_time
from pgtare.postgres.wait_ring import RECORD, RingRecordKind
from tests.unit.made_traces import BEGAN_NS, MS, NO_RESERVE, US, define_events, moment, ring, waits

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


def recorded(
    path: Path,
    began_s: float | None = None,
    end: bytes = b"{}",
    more: tuple[tuple[int, int, int], ...] = (),
) -> Path:
    """began_s: when the recording began, after the ring. more: waits."""
    recording: dict[str, object] = {"calls": False, "level": 8}
    if began_s is not None:
        recording["began"] = moment(began_s)
    writer = Writer(path, json.dumps(recording).encode(), NO_RESERVE)
    writer.define(Table.RINGS, ring(1, 4711, "waits", user="app"))
    define_events(writer)
    writer.add(
        Table.WAITS, waits(1, [(event, at * MS, n * MS) for event, at, n in (*WAITS, *more)])
    )
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
    writer.close(end)
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
        assert sum(line.total_ns for line in profile(book, by).lines) == pytest.approx(40 * MS)
    lines = {line.name: line.total_ns for line in profile(book, "class").lines}
    assert lines["IO"] == pytest.approx(5 * MS, abs=100)
    assert lines["Timeout"] == pytest.approx(8 * MS, abs=100)
    assert lines["client"] == pytest.approx(20 * MS, abs=100)
    by_statement = {line.name: line.total_ns for line in profile(book, "statement").lines}
    # the commit's wait, and what is before and after it
    assert by_statement["between calls"] > 3 * MS
    # what is drawn over time is what the profile has
    times = over_time(book)
    lines.pop("client")
    drawn = {name: float(v.mean()) * 40 * MS for name, v in times.active.items()}
    assert drawn == pytest.approx(lines, rel=1e-6)


@pytest.mark.parametrize(
    ("behind_ms", "open_ms"),
    [(60_000, 0), (59_998, 0), (60_000, 100), (59_998, 100), (60_500, 100)],
)
def test_times_of_a_clock_that_was_behind_are_moved(
    tmp_path: Path, behind_ms: int, open_ms: int
) -> None:
    """By a minute. A wait that is under way at the end limits what is known of that.

    open_ms: so long the client is waited for at the end, by the server's clock; 0: it is not.
    """
    end = {"behind": {"1": behind_ms * MS}, "until": moment(60.042 + open_ms / 1e3)}
    more = ((2, 60_042, open_ms),) if open_ms else ()
    path = recorded(tmp_path / "t.pgtrace", 60, json.dumps(end).encode(), more)
    book = ledger(load(path))
    (process,) = book.processes
    assert process.begin - BEGAN_NS - 60_000 * MS <= 2 * MS
    assert process.end - process.begin == pytest.approx((40 + open_ms) * MS, abs=2 * MS + 1000)
    lines = {line.name: line.total_ns for line in profile(book, "class").lines}
    assert lines["Timeout"] == pytest.approx(8 * MS, abs=100)
    assert len(book.calls) == 3


@pytest.mark.parametrize("behind", [{"1": -5}, {"1": "x"}, {"9": 5}, 7, None])
def test_whatever_a_file_says_of_its_clock(tmp_path: Path, behind: object) -> None:
    path = recorded(tmp_path / "t.pgtrace", end=json.dumps({"behind": behind}).encode())
    (found,) = load(path).waits.values()
    assert np.diff(found.start).tolist() == [11 * MS, 7 * MS, 2 * MS, 12 * MS]


@pytest.mark.parametrize("lost_us", [(10_000_020, 40_000_500), (10_002_000, 40_000_000)])
def test_what_was_overwritten_unread_is_not_recorded(
    tmp_path: Path, lost_us: tuple[int, int]
) -> None:
    """For a minute, a statement of 1 ms begins every 10 ms.

    Around the first gap are the begin of one execution and the end of another: they are not one.
    """
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b'{"calls": false}', NO_RESERVE)
    writer.define(Table.RINGS, ring(1, 4711, "waits"))
    define_events(writer)
    begin, end = (us * US for us in lost_us)
    starts = range(0, 60_000 * MS, 10 * MS)
    rows = [(2, at + MS + US, 9 * MS - 2 * US) for at in starts]
    rows = [row for row in rows if not begin <= row[1] + row[2] < end]
    made = [(kind, at + after) for at in starts for kind, after in ((BEGIN, 0), (END, MS))]
    kinds, times = zip(*(mark for mark in made if not begin <= mark[1] < end), strict=True)
    first = min(at for at in (*times, *(row[1] for row in rows)) if at >= end)
    writer.add(Table.WAITS, waits(1, rows))
    writer.add(
        Table.MARKS,
        {
            "ring": np.ones(len(kinds), np.int64),
            "kind": np.array([int(k) for k in kinds]),
            "depth": np.zeros(len(kinds), np.int64),
            "when_ns": np.array(times) + BEGAN_NS,
            "value": np.full(len(kinds), 101),
        },
    )
    writer.add(
        Table.LOSSES,
        {
            "ring": np.array([1]),
            "when_ns": np.array([BEGAN_NS + first]),
            "lost": np.array([9000]),
        },
    )
    writer.close(b"{}")
    book = ledger(load(path))
    lines = {line.name: line.total_ns for line in profile(book).lines}
    assert lines["not recorded"] == pytest.approx(30_000 * MS, abs=10 * MS)
    assert lines["client"] == pytest.approx(0.9 * 30_000 * MS, abs=20 * MS)
    assert sum(lines.values()) == pytest.approx(60_000 * MS, abs=10 * MS)
    (statement,) = report(book)
    assert statement.calls["execute"].max_ns == MS
    assert over_time(book).mean == pytest.approx(0.05, abs=0.001)


class _Rings:
    """A server with one session, whose ring gives a batch of records (kind, when in s) a look.

    lost: how many records were overwritten before each batch but the first.
    """

    has_calls = False

    def __init__(self, *batches: list[tuple[RingRecordKind, float]], lost: int = 0) -> None:
        self.batches = list(batches)
        self.lost = lost
        self.started = datetime.fromtimestamp(BEGAN_NS / 1e9, UTC)
        self.read = 0

    def unread(self) -> Unread:
        return Unread()

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        if "pg_stat_wait_event_timing_sessions" in query:
            names = ("app", "shop", "web", None)
            return [(4711, self.started, None, *names, 8, None, None, self.started)]
        if "wait_event_timing_rings" in query:
            return [(4711, self.started, None, None, "client backend")]
        if "wait_event_timing_event" in query:
            return [(7, "Timeout", "PgSleep")]
        records = [
            (i, int(kind), 0, 7, 1, round(when * 1e9), 0)
            for i, (kind, when) in enumerate(self.batches.pop(0))
        ]
        lost = self.lost if self.read else 0
        self.read += len(records) + lost
        return [(self.read, lost, self.started, np.array(records, RECORD).tobytes())]


WAIT = RingRecordKind.WAIT


@pytest.mark.parametrize(
    ("batches", "behind_s"),
    [
        # set forward by a minute since the ring began; the first look finds what was before
        (([(END, 39.0)], [(WAIT, 40.3), (END, 41.0)], [(END, 41.5)]), 60),
        # right, and idle until the last look
        (([(WAIT, 39.0)], [], [(END, 101.9)]), None),
        # right, and in one statement: its waits are written late
        (([(END, 39.0)], [(WAIT, 40.0)], [(BEGIN, 50.0), (WAIT, 50.1)]), None),
    ],
)
def test_a_clock_that_is_behind_is_noticed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batches: tuple[list[tuple[RingRecordKind, float]], ...],
    behind_s: float | None,
) -> None:
    """The ring has been there for 100 s when the recording begins; a look each second."""
    server = _Rings(*batches)
    began = server.started + timedelta(seconds=100)
    passed = iter(range(100))
    monkeypatch.setattr(drains.time, "monotonic_ns", lambda: next(passed) * 10**9)
    writer = Writer(tmp_path / "t.pgtrace", b"{}", NO_RESERVE)
    choice = Choice(Target(8, armed_only=True), began)
    drain = drains.Drain(cast(Server, server), writer, choice, waits=True)
    for _ in batches:
        drain.look()
    writer.abandon()
    found = [ns for _, ns in drain.behind().values()]
    assert found == ([] if behind_s is None else [pytest.approx(behind_s * 1e9)])
    assert writer.taken[Table.WAITS] == sum(k == WAIT for batch in batches[1:] for k, _ in batch)


def test_a_loss_is_written_with_the_begin_of_the_next_record(tmp_path: Path) -> None:
    server = _Rings([(BEGIN, 1.0)], [(WAIT, 40.0), (END, 41.0)], lost=9000)
    writer = Writer(tmp_path / "t.pgtrace", b"{}", NO_RESERVE)
    choice = Choice(Target(8, armed_only=True), server.started)
    drain = drains.Drain(cast(Server, server), writer, choice, waits=True)
    drain.look()
    drain.look()
    writer.close(b"{}")
    found = load(tmp_path / "t.pgtrace")
    assert (found.losses, found.gaps) == ({1: 9000}, {1: [BEGAN_NS + 40_000 * MS]})


def test_what_a_session_did_under_another_name_is_left_out(tmp_path: Path) -> None:
    """It took the name 20 s after the recording had begun; settings had it traced all along."""
    before = [(BEGIN, 1.0), (WAIT, 2.0), (END, 3.0), (WAIT, 19.9)]
    server = _Rings([*before, (WAIT, 20.1)], [(BEGIN, 21.0), (WAIT, 22.0)])
    choice = Choice(Target(8, application="shop"), server.started)
    session = 4711, server.started
    assert not choice.means(*session, "app", "shop", "web")
    assert choice.means(*session, "app", "shop", "shop")
    choice.found(session, server.started, server.started + timedelta(seconds=20))
    writer = Writer(tmp_path / "t.pgtrace", b"{}", NO_RESERVE)
    drain = drains.Drain(cast(Server, server), writer, choice, waits=True)
    drain.look()
    drain.look()
    writer.close(b"{}")
    found = load(tmp_path / "t.pgtrace")
    assert (found.waits[1].start - BEGAN_NS).tolist() == [20_100 * MS, 22_000 * MS]
    assert (found.marks[1]["when_ns"] - BEGAN_NS).tolist() == [21_000 * MS]
    assert not found.losses


class _EndedUnread(_Rings):
    """A session ends unread at each look. Its clock is an hour ahead of ours."""

    ended = -1

    def unread(self) -> Unread:
        self.ended += 1
        return Unread(self.ended, self.ended, 100 * self.ended)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        if query == "SELECT clock_timestamp()":
            return [(self.started + timedelta(hours=1),)]
        return super().rows(query, *values)


def test_a_loss_is_noticed_by_the_servers_clock(tmp_path: Path) -> None:
    server = _EndedUnread([(BEGIN, 1.0)])
    writer = Writer(tmp_path / "t.pgtrace", b"{}", NO_RESERVE)
    choice = Choice(Target(8, armed_only=True), server.started)
    drains.Drain(cast(Server, server), writer, choice, waits=True).look()
    writer.close(b"{}")
    found = load(tmp_path / "t.pgtrace")
    assert found.losses == {NO_RING: 100}
    assert found.gaps == {NO_RING: [BEGAN_NS + 3_600_000 * MS]}
