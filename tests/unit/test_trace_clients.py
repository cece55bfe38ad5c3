"""Clients of pooled sessions: whose call it was that parallel workers worked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import UsageError
from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis import merge
from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.analysis.profile import Scope, profile
from pgtare.observing.trace.analysis.statements import report
from pgtare.observing.trace.file.disk_limits import Limits
from pgtare.observing.trace.file.reader import Integers, load
from pgtare.observing.trace.file.records import CallKind
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.file.writer import Writer
from tests.unit.made_traces import BEGAN_NS, MS, StreamBuilder, define_events, ring, waits

pytestmark = pytest.mark.timeout(180)

FIRST, SECOND = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319c"
#: One pid, of two sessions one after the other, that begin so much later.
LATER = 1000 * MS


def traced(query: str, trace_id: str) -> str:
    return f"{query} /*traceparent='00-{trace_id}-b7ad6b7169203331-01'*/"


def session(application: str = "app") -> bytes:
    """0-10 ms: a query of one trace; 20-30: of another; 40-50: of none."""
    b = StreamBuilder()
    b.session(application=application)
    for i, text in enumerate((traced("SELECT 1", FIRST), traced("SELECT 1", SECOND), "SELECT 2")):
        b.text(i + 1, text)
        b.call(CallKind.EXECUTE, 20 * i * MS, (20 * i + 10) * MS, text=i + 1)
        b.request(20 * i * MS, (20 * i + 10) * MS)
    return b.data


def marks(number: int, begin: int, end: int) -> dict[str, Integers]:
    """A statement's begin and end in the ring of a parallel worker."""
    return {
        "ring": np.full(2, number),
        "kind": np.array([2, 3]),
        "depth": np.zeros(2, np.int64),
        "when_ns": np.array([begin, end]) + BEGAN_NS,
        "value": np.zeros(2, np.int64),
    }


def add_worker(writer: Writer, number: int, begin: int, end: int) -> None:
    """A worker of process 4711, which waits for half of its time."""
    writer.define(Table.RINGS, ring(number, 4700 + number, "waits", leader_pid=4711))
    writer.add(Table.MARKS, marks(number, begin, end))
    writer.add(Table.WAITS, waits(number, [(0, begin, (end - begin) // 2)]))


def add_session(writer: Writer, number: int, data: bytes, since: int = 0) -> None:
    columns = ring(number, 4711, "sql")
    columns["started_ns"] = columns["started_ns"] + since
    writer.define(Table.RINGS, columns)
    rows = {"ring": np.array([number]), "position": np.array([0]), "data": [data]}
    writer.add(Table.STREAM, rows)


def written(path: Path) -> Writer:
    writer = Writer(path, b"{}", Limits(reserve=0))
    define_events(writer)
    return writer


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    """Two workers of the first trace's query, one of the second's, one of no trace."""
    writer = written(tmp_path / "t.pgtrace")
    add_session(writer, 1, session())
    for number, begin in ((2, 2), (3, 3), (4, 22), (5, 42)):
        add_worker(writer, number, begin * MS, (begin + 4) * MS)
    writer.close(b"{}")
    return ledgers.ledger(load(tmp_path / "t.pgtrace"))


def test_parallel_workers_work_for_the_trace_of_their_leaders_call(book: Ledger) -> None:
    found = {client.name: client for client in merge.clients(book, "trace")}
    assert {name: c.busy_ns for name, c in found.items()} == pytest.approx(
        {FIRST: 18 * MS, SECOND: 14 * MS, merge.NOBODY: 14 * MS}
    )
    assert [found[name].waited_ns for name in (FIRST, SECOND)] == [4 * MS, 2 * MS]
    assert {(c.sessions, c.calls) for c in found.values()} == {(1, 1)}


def test_parallel_workers_of_one_trace_have_a_profile(book: Ledger) -> None:
    workers = Scope(workers=True)
    assert profile(merge.only(book, "trace", FIRST), scope=workers).total_ns == 8 * MS
    assert profile(merge.only(book, "trace", SECOND), scope=workers).total_ns == 4 * MS


def test_a_worker_of_a_call_that_was_not_recorded_is_nobodys(tmp_path: Path) -> None:
    """As where the recording ends in mid-call: its leader's time is nobody's then, too."""
    writer = written(tmp_path / "t.pgtrace")
    add_session(writer, 1, session())
    add_worker(writer, 2, 62 * MS, 66 * MS)
    writer.close(b"{}")
    book = ledgers.ledger(load(tmp_path / "t.pgtrace"))
    found = {client.name: client.busy_ns for client in merge.clients(book, "trace")}
    assert found == pytest.approx({FIRST: 10 * MS, SECOND: 10 * MS, merge.NOBODY: 14 * MS})


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_worker_is_of_the_session_that_had_its_leaders_pid_then(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    writer = written(tmp_path / "t.pgtrace")
    for number in order:
        later = StreamBuilder()
        later.session(application="later", since=LATER)
        later.text(1, traced("SELECT 1", SECOND))
        later.call(CallKind.EXECUTE, 0, 10 * MS, text=1)
        later.request(0, 10 * MS)
        data, since = (session("earlier"), 0) if number == 1 else (later.data, LATER)
        add_session(writer, number, data, since)
    add_worker(writer, 3, 2 * MS, 6 * MS)
    add_worker(writer, 4, LATER + 2 * MS, LATER + 8 * MS)
    writer.close(b"{}")
    book = ledgers.ledger(load(tmp_path / "t.pgtrace"))
    found = {client.name: client.busy_ns for client in merge.clients(book, "application")}
    assert found == pytest.approx({"earlier": 34 * MS, "later": 16 * MS})
    found = {client.name: client.busy_ns for client in merge.clients(book, "trace")}
    assert found == pytest.approx({FIRST: 14 * MS, SECOND: 26 * MS, merge.NOBODY: 10 * MS})


def test_statements_of_a_parallel_worker_are_its_leaders(book: Ledger) -> None:
    with pytest.raises(UsageError, match=r"process 4702 is a parallel worker.*of process 4711"):
        report(book, pids=frozenset({4702}))
    assert report(book, pids=frozenset({4711}))
