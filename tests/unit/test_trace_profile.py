"""Whether a profile's figures are right where a machine is busy or a trace knows only parts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import UsageError
from pgtare.observing.trace.analysis import kernel_time, merge, statements
from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.profile import GROUPINGS, Scope, bucket, profile
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.records import BEGIN, COMMITTED, CallKind
from pgtare.observing.trace.output.page import page
from tests.sample_trace import by
from tests.unit.made_traces import MS, US, moment, session_stream, trace, write

pytestmark = pytest.mark.timeout(180)


def test_lengths_are_counted_by_powers_of_two() -> None:
    lengths = [0, 1, 2, 3, 4, 977, 2**40 - 1, 2**40]
    assert bucket(np.array(lengths)).tolist() == [0, 0, 1, 1, 2, 9, 39, 40]


def test_a_busy_machine_hides_nothing_of_the_kernels_work(tmp_path: Path) -> None:
    """In half of all executions the process was preempted: that says nothing of its reads."""
    rng = np.random.default_rng(6)
    b = session_stream(waits=True)
    rows, now, cpu = [], 0, 0
    for _ in range(400):
        read, work = (int(x) for x in rng.integers(100 * US, MS, 2))
        away = int(rng.exponential(2 * MS)) if rng.random() < 0.5 else 0
        rows.append((0, now + work + away, read))
        start, now = now, now + work + away + read
        cpu += work + read
        b.execution(start, now, cpu)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, rows))
    assert book.kernel_share[0] == pytest.approx(1, abs=0.03)


def test_no_more_kernel_work_than_there_was_cpu(tmp_path: Path) -> None:
    """Few reads from a slow disk take most of the time and no CPU, many from the cache all of it"""
    rng = np.random.default_rng(7)
    b = session_stream(waits=True)
    rows, now, cpu = [], 0, 0
    for i in range(400):
        work = int(rng.integers(100 * US, MS))
        read = 5 * MS if i % 10 == 0 else int(rng.integers(5 * US, 20 * US))
        rows.append((0, now + work, read))
        start, now = now, now + work + read
        cpu += work + (0 if i % 10 == 0 else read)
        b.execution(start, now, cpu)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, rows))
    assert book.kernel_share[0] < 0.05


def test_a_wait_that_is_cut_is_one_wait(tmp_path: Path) -> None:
    b = session_stream(waits=True)
    b.text(1, "SELECT a FROM t", 1)
    b.text(2, "SELECT b FROM t", 2)
    b.call(CallKind.EXECUTE, 0, 5 * MS, text=1, query_id=1)
    b.call(CallKind.EXECUTE, 5 * MS, 9 * MS, text=2, query_id=2)
    b.request(0, 10 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, [(1, 2 * MS, 6 * MS)]))
    (line,) = [line for line in profile(book).lines if line.name == "Timeout/PgSleep"]
    assert (line.times, line.min_ns, line.max_ns, line.mean_ns) == (1, 6 * MS, 6 * MS, 6 * MS)
    assert sum(line.histogram) == 1
    calls = by(book, "call")
    assert calls["execute"] == pytest.approx(9 * MS)
    # apart from the rest of it, a statement's own wait is the only one that is its
    rows = [(1, 2 * MS, 6 * MS), (1, 8 * MS, MS // 2)]
    book = ledgers.ledger(trace(tmp_path / "u.pgtrace", b.data, rows))
    found = profile(book, scope=Scope(statement="2"))
    (line,) = [line for line in found.lines if line.name == "Timeout/PgSleep"]
    assert line.total_ns == pytest.approx(3.5 * MS)
    assert (line.times, line.min_ns, line.max_ns, line.mean_ns) == (1, *(MS // 2,) * 3)


def test_requests_that_were_not_drawn_are_not_the_clients_time(tmp_path: Path) -> None:
    """One in five requests is traced: between those, others ran of which nothing is known."""
    b = session_stream(waits=True)
    b.level(0, 12, 1, 0.2)
    b.execution(0, 1 * MS, 0)
    b.call(CallKind.EXECUTE, 20 * MS, 22 * MS, cpu=15 * MS)
    b.call(CallKind.EXECUTE, 22 * MS, 23 * MS, cpu=16 * MS)
    b.request(20 * MS, 23 * MS, 16 * MS)
    b.level(23 * MS, 12, 1, 1.0)
    b.execution(29 * MS, 30 * MS, 17 * MS)
    found = by(ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data)))
    assert found["not recorded"] == pytest.approx(19 * MS)
    assert found["client"] == pytest.approx(6 * MS)
    # 15 ms of CPU were spent up to 22 ms, but not in these calls, as far as is known
    assert found["CPU outside waits"] == pytest.approx(2 * MS)
    assert sum(found.values()) == pytest.approx(30 * MS)


def test_between_statements_found_by_their_identifier_nothing_is_known(tmp_path: Path) -> None:
    b = session_stream()
    b.level(0, 12, 4, 1.0)
    b.execution(0, 1 * MS)
    b.execution(5 * MS, 6 * MS)
    found = by(ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data)))
    assert found["not recorded"] == pytest.approx(4 * MS)
    assert "client" not in found


def test_waits_of_requests_that_were_not_traced_are_not_recorded(tmp_path: Path) -> None:
    """A session's ring of waits goes on while its requests are not traced."""
    b = session_stream(waits=True)
    b.level(0, 12, 4, 1.0)
    for at in (0, 10 * MS):
        b.execution(at, at + 2 * MS)
    b.end(20 * MS)
    rows = [(0, 1 * MS, MS), (1, 3 * MS, 5 * MS), (0, 9 * MS, 2 * MS), (1, 13 * MS, 4 * MS)]
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, rows))
    found = by(book)
    # of the wait that lasts into the second request, that part of it is its
    assert found == pytest.approx(
        {"not recorded": 16 * MS, "IO/DataFileRead": 2 * MS, "unaccounted": 2 * MS}
    )
    assert by(book, scope=Scope(busy=True)).keys() == {"IO/DataFileRead", "unaccounted"}
    (client,) = merge.clients(book, "application")
    assert (client.busy_ns, client.waited_ns) == (4 * MS, 2 * MS)
    for grouping in GROUPINGS:
        assert sum(by(book, grouping).values()) == pytest.approx(20 * MS)


def test_waits_over_which_calls_were_overwritten_are_not_recorded(tmp_path: Path) -> None:
    b = session_stream(waits=True)
    b.call(CallKind.EXECUTE, 0, 1 * MS)
    b.request(0, 2 * MS)
    b.lost(0, 4096, 40)
    b.request(8 * MS, 9 * MS)
    b.execution(10 * MS, 12 * MS)
    rows = [(1, 3 * MS, 4 * MS), (1, 10 * MS, MS)]
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, rows))
    found = {line.name: line for line in profile(book).lines}
    assert found["not recorded"].total_ns == pytest.approx(7 * MS)
    assert any("4,096 bytes" in note for note in book.notes)
    assert (found["Timeout/PgSleep"].total_ns, found["Timeout/PgSleep"].times) == (1 * MS, 1)
    assert sum(line.total_ns for line in found.values()) == pytest.approx(12 * MS)


def test_a_call_is_one_however_many_transactions_it_passes(tmp_path: Path) -> None:
    """Two procedures of 6 ms CPU each: the first commits twice, the second is one transaction."""
    b = session_stream()
    b.call(CallKind.PARSE, 0, 0, cpu=0)
    for begun, ended in ((0, 3 * MS), (3 * MS, 4 * MS), (4 * MS, 6 * MS)):
        b.transaction(BEGIN, begun, begun)
        b.transaction(COMMITTED, ended, begun)
    b.call(CallKind.UTILITY, 0, 6 * MS, cpu=6 * MS)
    b.request(0, 6 * MS, 6 * MS)
    b.transaction(BEGIN, 6 * MS, 6 * MS)
    b.call(CallKind.UTILITY, 6 * MS, 12 * MS, cpu=12 * MS)
    b.transaction(COMMITTED, 12 * MS, 6 * MS)
    b.request(6 * MS, 12 * MS, 12 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    (cpu,) = profile(book).lines
    assert (cpu.name, cpu.total_ns, cpu.times) == ("CPU outside waits", 12 * MS, 2)
    assert (cpu.min_ns, cpu.max_ns, cpu.mean_ns) == (6 * MS,) * 3
    assert sum(cpu.histogram) == 2
    assert book.entries.times.tolist() == [1, 1]


def test_a_statements_own_name_is_not_part_of_anothers(tmp_path: Path) -> None:
    b = session_stream()
    b.text(1, "SELECT a", 1)
    b.text(2, "SELECT a, b", 2)
    b.call(CallKind.EXECUTE, 0, 1 * MS, text=1, query_id=1)
    b.call(CallKind.EXECUTE, 1 * MS, 3 * MS, text=2, query_id=2)
    b.request(0, 3 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    assert profile(book, scope=Scope(statement="SELECT a")).total_ns == pytest.approx(1 * MS)
    assert profile(book, scope=Scope(statement="select A")).total_ns == pytest.approx(3 * MS)
    assert profile(book, scope=Scope(statement="2")).total_ns == pytest.approx(2 * MS)


def test_a_statement_has_the_text_that_its_client_sent(tmp_path: Path) -> None:
    """One identifier of a nested expression, met first, and of a client's statements."""
    b = session_stream()
    for text, sql, query_id in (
        (1, "0", 5),
        (2, "SELECT f()", 6),
        (3, "SELECT 1", 5),
        (4, "SELECT 1/0", 7),
        (5, "SELECT 2", 5),
    ):
        b.text(text, sql, query_id)
    b.call(CallKind.EXECUTE, 1 * MS, 2 * MS, call=2, parent=1, depth=1, text=1, query_id=5)
    b.call(CallKind.EXECUTE, 0, 3 * MS, call=1, text=2, query_id=6)
    b.call(CallKind.EXECUTE, 3 * MS, 7 * MS, call=3, text=3, query_id=5)
    b.call(CallKind.EXECUTE, 7 * MS, 12 * MS, call=4, text=4, query_id=7)
    b.call(CallKind.EXECUTE, 12 * MS, 14 * MS, call=5, text=5, query_id=5)
    b.request(0, 14 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    assert by(book, "statement") == pytest.approx(
        {"SELECT f()": 3 * MS, "SELECT ?": 6 * MS, "SELECT ?/?": 5 * MS}
    )
    assert {s.text for s in statements.report(book)} == {"SELECT f()", "SELECT ?", "SELECT ?/?"}
    for wanted in ("SELECT 1", "SELECT 2", "5", "select 2", "0"):
        found = profile(book, scope=Scope(statement=wanted))
        assert (found.scope, found.total_ns) == ("statement SELECT ?", 6 * MS)
    found = profile(book, scope=Scope(statement="/0", words="process 4711"))
    assert found.scope == "process 4711, statement SELECT ?/?"


def test_a_statement_has_a_text_that_is_not_cut(tmp_path: Path) -> None:
    """Whatever the identifiers of texts are: they are taken in their order."""
    b = session_stream()
    for text, sql, flags in ((1, "SELECT length(", 1), (2, "SELECT length('x') AS huge", 0)):
        b.text(text, sql, 5, flags)
        b.call(CallKind.EXECUTE, text * MS, (text + 1) * MS, call=text, text=text, query_id=5)
    b.request(0, 4 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    assert {s.text for s in statements.report(book)} == {"SELECT length(?) AS huge"}


def test_statements_are_named_without_what_was_sent(tmp_path: Path) -> None:
    """In tables, JSON, headings and the page; without identifiers, one name is one statement."""
    b = session_stream()
    for i, sql in enumerate(("SELECT 'Alice' /* Alice */", "SELECT 'Alice2'", "SET x = Alice"), 1):
        b.text(i, sql, 0)
        b.call(CallKind.EXECUTE, (i - 1) * MS, i * MS, call=i, text=i)
    b.text(9, "SELECT 'Alice", 0)
    b.error(3 * MS, "unterminated", state=77, text=9)
    b.request(0, 4 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    assert by(book, "statement") == pytest.approx(
        {"SELECT ?": 2 * MS, "SET x = ?": MS, "between calls": MS}
    )
    found = statements.report(book)
    assert {s.text: sum(s.errors.values()) for s in found} == {"SELECT ?": 1, "SET x = ?": 0}
    assert "Alice" not in str([asdict(s) for s in found])
    assert profile(book, scope=Scope(statement="alice2")).scope == "statement SELECT ?"
    drawn = page(book)
    assert "SELECT ?" in drawn
    assert "Alice" not in drawn


def test_a_heading_names_the_statements_that_were_taken(tmp_path: Path) -> None:
    b = session_stream()
    for i in range(1, 6):
        b.text(i, f"SELECT\n  a{i}, {'b' * 300 if i == 5 else 'b'}", i)
        b.call(CallKind.EXECUTE, i * i * MS, (i + 1) * (i + 1) * MS, text=i, query_id=i)
    b.request(0, 36 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    found = profile(book, scope=Scope(statement="select"))
    assert found.scope == (
        f"5 statements: SELECT a5, {'b' * 188}…; SELECT a4, b; SELECT a3, b; 2 more"
    )
    assert found.total_ns == pytest.approx(35 * MS)


def test_statements_without_an_identifier_have_not_the_identifier_0(tmp_path: Path) -> None:
    b = session_stream()
    b.text(1, "SELECT a")
    b.call(CallKind.EXECUTE, 0, 1 * MS, text=1)
    b.request(0, 1 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    with pytest.raises(UsageError, match="nothing of statement 0"):
        profile(book, scope=Scope(statement="0"))


def test_time_of_parallel_workers_does_not_shrink_their_leaders(tmp_path: Path) -> None:
    """Below Gather three processes took 24 ms in an execution of 10, which spent 2 of its own."""
    b = session_stream()
    b.plan(
        5,
        [
            {"id": 0, "parent": -1, "kind": "Aggregate"},
            {"id": 1, "parent": 0, "kind": "Gather"},
            {"id": 2, "parent": 1, "kind": "Seq Scan", "relation": "public.a"},
        ],
    )
    b.call(CallKind.EXECUTE, 0, 10 * MS, call=1, plan=5)
    b.rowsources(
        1,
        5,
        [
            (0, 1, 1, 1, 1, 10 * MS, 10 * MS, 10 * MS),
            (1, 1, 9, 9, 1, 8 * MS, 8 * MS, 8 * MS),
            (2, 2, 9, 9, 1, 24 * MS, 24 * MS, 24 * MS),
        ],
        10 * MS,
    )
    b.request(0, 10 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    assert by(book, "node") == pytest.approx({"Aggregate": 2 * MS, "Seq Scan on public.a": 8 * MS})


def test_sums_of_row_sources_are_exact_only_if_all_are(tmp_path: Path) -> None:
    b = session_stream()
    b.text(1, "SELECT a FROM t", 1)
    b.plan(5, [{"id": 0, "parent": -1, "kind": "Seq Scan", "relation": "public.a"}])
    for i, flags in enumerate((1, 0)):
        b.call(CallKind.EXECUTE, i * MS, (i + 1) * MS, call=i + 1, plan=5, text=1, query_id=1)
        b.rowsources(i + 1, 5, [(0, flags, 9, 9, 1, MS, MS - i * US, MS)], (i + 1) * MS)
    b.request(0, 2 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    ((node,),) = [plan.nodes for s in statements.report(book) for plan in s.plans]
    assert not node.exact
    assert (node.lo_ns, node.time_ns, node.hi_ns) == (2 * MS - US, 2 * MS, 2 * MS)


@pytest.mark.parametrize("idle_ms", [5, 2000])
def test_a_session_that_is_blocked_at_the_end_waits_until_then(
    tmp_path: Path, idle_ms: int
) -> None:
    """A lock that the parser takes: of that nothing is written before it has ended."""
    b = session_stream(waits=True)
    b.execution(0, 10 * MS)
    rows = [(2, 10 * MS, idle_ms * MS), (1, (10 + idle_ms) * MS, (60_000 - 10 - idle_ms) * MS)]
    path = write(tmp_path / "t.pgtrace", b.data, rows, until=moment(60))
    found = by(ledgers.ledger(load(path)))
    assert found["Timeout/PgSleep"] == pytest.approx((60_000 - 10 - idle_ms) * MS)
    assert found["client"] == pytest.approx(idle_ms * MS)
    assert sum(found.values()) == pytest.approx(60_000 * MS)


def test_a_statement_within_another_that_is_blocked_at_the_end(tmp_path: Path) -> None:
    """The records of the statements that it has run are the last that there are."""
    b = session_stream(waits=True)
    b.call(CallKind.EXECUTE, 2 * MS, 10 * MS, call=3, parent=2, depth=1)
    rows = [(1, 3_000 * MS, 57_000 * MS)]
    path = write(tmp_path / "t.pgtrace", b.data, rows, until=moment(60))
    found = by(ledgers.ledger(load(path)))
    assert found["Timeout/PgSleep"] == pytest.approx(57_000 * MS)
    assert found["unaccounted"] == pytest.approx(2_998 * MS)


def test_a_wait_of_a_request_that_is_not_traced_adds_nothing_at_the_end(tmp_path: Path) -> None:
    b = session_stream(waits=True)
    b.level(0, 12, 1, 0.2)
    b.execution(0, 10 * MS)
    rows = [(1, 3_000 * MS, 57_000 * MS)]
    path = write(tmp_path / "t.pgtrace", b.data, rows, until=moment(60))
    assert sum(by(ledgers.ledger(load(path))).values()) == pytest.approx(10 * MS)


@pytest.mark.parametrize("off_s", [-40, 0, 3600])
def test_a_clock_that_was_set_cuts_nothing_off(tmp_path: Path, off_s: int) -> None:
    """The session had been traced for a minute when the recording began, the clock set between."""
    b = session_stream()
    b.execution(0, 1 * MS)
    b.execution(59_000 * MS, 59_001 * MS)
    history = len(b.data)
    b.execution(61_000 * MS, 61_003 * MS)
    path = write(tmp_path / "t.pgtrace", b.data, began=moment(60 + off_s), first=history)
    found = by(ledgers.ledger(load(path)))
    # all that was recorded, and at most five seconds of what came before
    assert found["unaccounted"] >= 3 * MS
    assert sum(found.values()) <= 7_004 * MS


def test_an_event_that_no_interval_looked_at_has_is_left_alone() -> None:
    """Of many intervals some are looked at; an event that is in none of these spoils nothing."""
    n = 9_999
    rng = np.random.default_rng(8)
    read = rng.integers(100 * US, MS, n).astype(float)
    looked_at = set(np.linspace(0, n - 1, 5_000).astype(int).tolist())
    rare = next(i for i in range(n) if i not in looked_at)
    sample = kernel_time.Sample(
        excess=0.5 * read,
        spent=read,
        idle=np.zeros(n),
        interval=np.append(np.arange(n), rare),
        event=np.append(np.zeros(n, np.int64), 1),
        wait_ns=np.append(read, MS).astype(np.int64),
        times=np.ones(n + 1, np.int64),
    )
    assert kernel_time.shares([sample]).by_event[0] == pytest.approx(0.5, abs=0.01)
