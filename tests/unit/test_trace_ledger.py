"""The arithmetic of the response-time profile, on traces whose truth is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import UsageError
from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis import merge, statements
from pgtare.observing.trace.analysis import moment as moments
from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.analysis.profile import GROUPINGS, Scope, profile
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.record_decoder import decode
from pgtare.observing.trace.file.records import ESTIMATED, FAILED, CallKind, packed_sqlstate
from pgtare.observing.trace.output.active_sessions import over_time
from pgtare.observing.trace.output.page import page
from tests.sample_trace import ROWS, by, two_requests, two_requests_ledger
from tests.unit.made_traces import (
    MS,
    NOTHING,
    US,
    StreamBuilder,
    moment,
    session_stream,
    trace,
    write,
)

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return two_requests_ledger(tmp_path)


def test_every_nanosecond_is_booked_once(book: Ledger) -> None:
    found = by(book)
    assert found["IO/DataFileRead"] == 2 * MS
    assert found["Timeout/PgSleep"] == 3 * MS
    assert found["IO/WalSync"] == 900 * US
    assert found["client"] == 20 * MS  # the wait for the client is part of it, not in addition
    # between readings: 1 + 3 ms in the first request, 6 ms in the second's execution; what the
    # parse took before the first reading is not known
    assert found["CPU outside waits"] == pytest.approx(10 * MS)
    assert found["unaccounted"] == pytest.approx(4 * MS + 100 * US)
    assert sum(found.values()) == pytest.approx(40 * MS)


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_each_grouping_adds_up_to_the_same_total(book: Ledger, grouping: str) -> None:
    found = profile(book, grouping)
    assert found.total_ns == pytest.approx(40 * MS)
    assert sum(line.total_ns for line in found.lines) == pytest.approx(40 * MS)
    assert sum(line.share_pct for line in found.lines) == pytest.approx(100)


def test_statements_and_calls_have_their_own_time(book: Ledger) -> None:
    statements = by(book, "statement")
    assert statements["SELECT a FROM t"] == pytest.approx(10 * MS)
    assert statements["UPDATE t SET a = ?"] == pytest.approx(10 * MS)
    calls = by(book, "call")
    assert calls == pytest.approx(
        {"parse": MS, "plan": MS, "execute": 17 * MS, "commit": MS, "client": 20 * MS}
    )


def test_a_scope_is_a_part_of_the_whole(book: Ledger) -> None:
    found = by(book, scope=Scope(statement="12"))
    assert found["IO/WalSync"] == 900 * US
    assert sum(found.values()) == pytest.approx(10 * MS)
    with pytest.raises(UsageError, match="nothing of"):
        profile(book, scope=Scope(statement="no such thing"))


def test_cpu_beyond_the_time_outside_waits_is_that_of_waits(tmp_path: Path) -> None:
    b = session_stream(waits=True)
    b.call(CallKind.EXECUTE, 0, 10 * MS, cpu=0)
    b.call(CallKind.EXECUTE, 10 * MS, 20 * MS, cpu=9 * MS)  # 9 ms CPU, though 8 ms are waits
    b.request(0, 20 * MS)
    found = by(ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, [(0, 11 * MS, 8 * MS)])))
    assert found["IO/DataFileRead"] == 8 * MS
    assert found["CPU outside waits"] == pytest.approx(2 * MS)  # no more than there was room for
    assert found["unaccounted"] == pytest.approx(10 * MS)  # no reading before: not known
    assert sum(found.values()) == pytest.approx(20 * MS)


def test_the_kernels_work_within_waits_is_distinguished_from_work_outside(tmp_path: Path) -> None:
    """300 executions, reads from the page cache (all CPU) and sleeps (none), of random lengths."""
    rng = np.random.default_rng(5)
    b = session_stream(waits=True)
    rows, now, cpu, outside = [], 0, 0, 0
    for _ in range(300):
        read, sleep, work = (int(x) for x in rng.integers(100 * US, MS, 3))
        rows += [(0, now + work, read), (1, now + work + read, sleep)]
        start, now = now, now + work + read + sleep
        cpu, outside = cpu + work + read, outside + work
        b.execution(start, now, cpu)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, rows))
    lines = {line.name: line for line in profile(book).lines}
    assert book.kernel_share[0] == pytest.approx(1, abs=0.02)
    assert book.kernel_share[1] == pytest.approx(0, abs=0.02)
    assert lines["IO/DataFileRead"].kernel_ns == pytest.approx(
        lines["IO/DataFileRead"].total_ns, rel=0.02
    )
    assert lines["CPU outside waits"].total_ns == pytest.approx(outside, rel=0.02)
    drawn = page(book)
    assert "of it kernel CPU</th>" in drawn
    assert drawn.count('scope="row">total<') == len(GROUPINGS)


def test_nested_calls_take_their_time_from_the_outer_one(tmp_path: Path) -> None:
    b = session_stream()
    b.text(1, "SELECT f()", 1)
    b.text(2, "SELECT inner_one", 2)
    b.call(CallKind.EXECUTE, 2 * MS, 5 * MS, call=2, parent=1, depth=1, text=2, query_id=2)
    b.call(CallKind.EXECUTE, 6 * MS, 7 * MS, call=3, parent=1, depth=1, text=2, query_id=2)
    b.call(CallKind.EXECUTE, 1 * MS, 9 * MS, call=1, text=1, query_id=1)
    b.request(0, 10 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    own = np.bincount(book.entries.call + 1, book.entries.ns)
    assert own.tolist() == pytest.approx([2 * MS, 3 * MS, MS, 4 * MS])
    # of the client's statement all of it
    assert by(book, "statement") == pytest.approx({"SELECT f()": 8 * MS, "between calls": 2 * MS})


@pytest.mark.parametrize("idle", [False, True])
def test_a_statement_in_which_its_session_was_ended_has_a_call(tmp_path: Path, idle: bool) -> None:
    """Nothing of it is written but the error. idle: it was ended between two requests."""
    b = session_stream()
    b.text(1, "SELECT pg_sleep(60)", 1)
    b.request(0, MS)
    b.call(CallKind.PARSE, 5 * MS, 6 * MS, text=1, query_id=1)
    b.call(CallKind.PLAN, 6 * MS, 7 * MS, text=1, query_id=1)
    if idle:
        b.execution(7 * MS, 8 * MS)
    b.error(27 * MS, "terminating", packed_sqlstate("57P01"), text=0 if idle else 1, severity=2)
    b.end(28 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    executions = book.calls[book.calls["kind"] == CallKind.EXECUTE]
    (last,) = executions
    if idle:
        assert not last["flags"] & FAILED
        return
    assert last["end"] - last["start"] == 20 * MS
    assert last["flags"] & FAILED
    (found,) = statements.report(book)
    assert found.errors == {"57P01": 1}
    assert found.calls["execute"].max_ns == 20 * MS


def test_time_is_that_of_the_application_of_the_moment(tmp_path: Path) -> None:
    """One session of a pool: what it was called when each booking began; idling included."""
    b = StreamBuilder()
    b.session(application="app")
    for start, name in ((1 * MS, "app"), (10 * MS, "web"), (30 * MS, "app")):
        b.application(start, name)
        b.call(CallKind.EXECUTE, start + MS, start + 4 * MS)
        b.request(start, start + 5 * MS)
    rows = [(1, 11 * MS, 2 * MS), (2, 15 * MS, 10 * MS)]
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, rows))
    found = {client.name: client for client in merge.clients(book, "application")}
    assert {name: c.busy_ns for name, c in found.items()} == {"app": 10 * MS, "web": 5 * MS}
    assert (found["web"].waited_ns, found["app"].waited_ns) == (2 * MS, 0)
    assert (found["web"].calls, found["app"].calls) == (1, 2)
    only = merge.only(book, "application", "web")
    assert only.entries.ns.sum() == 20 * MS


def test_a_cursor_is_idle_between_its_fetches(tmp_path: Path) -> None:
    """Two cursors in turn: their executions overlap, their fetches do not."""
    b = session_stream()
    b.request(0, 2 * MS, status="T")
    b.call(CallKind.FETCH, 8 * MS, 9 * MS, call=5, execution=1)
    b.call(CallKind.EXECUTE, 1 * MS, 10 * MS, call=1, busy=1 * MS)
    b.call(CallKind.EXECUTE, 5 * MS, 10 * MS, call=3, busy=2 * MS)
    b.request(5 * MS, 10 * MS)
    found = by(ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data)), "call")
    assert found == pytest.approx(
        {"execute": 3 * MS, "fetch": MS, "client": 3 * MS, "between calls": 3 * MS}
    )


def test_a_portal_that_is_open_does_not_work(tmp_path: Path) -> None:
    """A cursor works for 10 ms, and is closed after another statement failed."""
    b = session_stream(waits=True)
    b.text(1, "SELECT of_cursor", 11)
    b.text(2, "UPDATE blocked", 12)
    cursor, blocked = ({"text": text, "query_id": text + 10} for text in (1, 2))
    b.call(CallKind.EXECUTE, 0, 2 * MS, call=1, **cursor)
    b.request(0, 12 * MS, status="T")
    b.call(CallKind.EXECUTE, 10_000 * MS, 10_500 * MS, call=3, flags=FAILED, **blocked)
    b.call(CallKind.EXECUTE, 2 * MS, 10_501 * MS, call=2, busy=10 * MS, **cursor)
    b.call(CallKind.ROLLBACK, 10_501 * MS, 10_502 * MS, call=4, text=2)
    b.request(9_999 * MS, 10_503 * MS)
    kept = {"pid": 4711, "cause": "sqlstate", "at": moment(10.503)}
    book = ledgers.ledger(load(write(tmp_path / "t.pgtrace", b.data, kept=kept)))
    then = moments.moment(book)
    assert then
    assert then.statement == "UPDATE blocked"
    # the beginning, and while the update ran
    (active,) = over_time(book).active.values()
    assert np.flatnonzero(active > 0.001).tolist() == [0, *range(171, 180)]
    longest = re.findall(r"Its longest execution, ([\w. ]+)", page(book))
    assert longest == ["500 ms", "10.0 ms"]


def test_a_bind_begins_before_it_closes_the_portal_of_another_request(tmp_path: Path) -> None:
    b = session_stream(waits=True)
    b.text(1, "SELECT $1", 11)
    statement = {"text": 1, "query_id": 11}
    b.call(CallKind.BIND, 0, 1 * MS, **statement)
    b.request(0, 10 * MS, status="T")
    b.call(CallKind.EXECUTE, 1 * MS, 31 * MS, busy=9 * MS, call=2, **statement)
    b.call(CallKind.BIND, 30 * MS, 32 * MS, call=3, flags=ESTIMATED, **statement)
    b.call(CallKind.EXECUTE, 32 * MS, 40 * MS, call=4, **statement)
    b.request(30 * MS, 40 * MS)
    b.end(40 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, [(0, 33 * MS, MS)]))
    found = by(book, "call")
    assert found["bind"] == 3 * MS
    assert found["execute"] == 17 * MS
    assert by(book)["client"] == 20 * MS


def test_a_bind_has_the_time_before_the_plan_within_it(tmp_path: Path) -> None:
    """It waits for a lock first, and has a number only when the plan, which it made, is there."""
    b = session_stream(waits=True)
    b.text(1, "SELECT $1", 11)
    statement = {"text": 1, "query_id": 11}
    b.call(CallKind.PLAN, 30 * MS, 31 * MS, call=1, **statement)
    b.call(CallKind.BIND, 0, 32 * MS, call=3, flags=ESTIMATED, busy=31 * MS, **statement)
    b.call(CallKind.EXECUTE, 32 * MS, 33 * MS, call=2, **statement)
    b.request(0, 33 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, [(1, 1 * MS, 28 * MS)]))
    assert by(book, "call") == pytest.approx({"bind": 31 * MS, "plan": MS, "execute": MS})
    (found,) = statements.report(book)
    assert [w.total_ns for w in found.waits] == [28 * MS]


def test_between_fetches_in_one_record_the_time_is_their_callers(tmp_path: Path) -> None:
    b = session_stream()
    b.text(1, "CALL f()", 1)
    b.text(2, "SELECT in_loop", 2)
    b.call(
        CallKind.FETCH,
        2 * MS,
        8 * MS,
        call=3,
        execution=2,
        parent=1,
        busy=2 * MS,
        depth=1,
        text=2,
        query_id=2,
        shared=(4, 0, 0, 0),
        fetches=500,
    )
    b.call(
        CallKind.EXECUTE, 1 * MS, 9 * MS, call=2, parent=1, busy=1 * MS, depth=1, text=2, query_id=2
    )
    b.call(CallKind.UTILITY, 0, 10 * MS, call=1, text=1, query_id=1)
    b.request(0, 10 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    assert by(book, "call") == pytest.approx(
        {"utility": 7 * MS, "execute": 1 * MS, "fetch": 2 * MS}
    )
    (looped,) = [s for s in statements.report(book) if s.text == "SELECT in_loop"]
    fetches = looped.calls["fetch"]
    assert (fetches.count, fetches.elapsed_ns, fetches.max_ns) == (500, 2 * MS, 2 * MS / 500)
    assert fetches.buffers["shared_hit"] == 4
    (outer,) = [s.calls["utility"] for s in statements.report(book) if not s.recursive]
    assert (outer.elapsed_ns, outer.inner_ns) == (10 * MS, 3 * MS)


def test_the_parts_of_a_statements_calls_add_up(book: Ledger) -> None:
    found = {
        (s.text.split()[0], kind): call
        for s in statements.report(book)
        for kind, call in s.calls.items()
    }
    for call in found.values():
        parts = call.inner_ns + call.cpu_ns + call.waited_ns + call.other_ns
        assert parts == pytest.approx(call.elapsed_ns)
        assert call.inner_ns == 0
    assert found["SELECT", "execute"].waited_ns == 5 * MS
    assert found["UPDATE", "execute"].other_ns == pytest.approx(3 * MS)


def test_a_chunk_of_calls_that_a_damaged_file_lost_is_not_recorded() -> None:
    b = StreamBuilder()
    ends = []
    for i in range(3):
        b.call(CallKind.EXECUTE, 10 * i * MS, (10 * i + 1) * MS)
        b.request(10 * i * MS, (10 * i + 2) * MS)
        ends.append(len(b.data))
    first, last = (0, b.data[: ends[0]]), (ends[1], b.data[ends[1] :])
    assert decode([(0, b.data)]).gaps == []
    assert decode([first, (ends[0], b.data[ends[0] :])]).gaps == []
    assert decode([first, last]).gaps == [(2 * MS, 21 * MS, ends[1] - ends[0], 2)]
    beginning = decode([last])
    assert beginning.gaps == [(0, 21 * MS, ends[1], 4)]
    assert beginning.begin == 0


def test_what_pgtare_takes_comes_out_of_the_cpu(tmp_path: Path) -> None:
    found = trace(tmp_path / "t.pgtrace", two_requests().data, ROWS)
    without = by(ledgers.ledger(found))
    lines = by(ledgers.ledger(found, replace(NOTHING, wait_ns=50 * US, call_ns=100 * US)))
    # five calls, and the two waits between readings that leave room for CPU
    assert lines["pgtare itself (estimated)"] == pytest.approx(500 * US, abs=150 * US)
    assert sum(lines.values()) == pytest.approx(sum(without.values()))
    assert lines["unaccounted"] == pytest.approx(without["unaccounted"])


def test_row_sources_divide_the_time_of_their_execution(tmp_path: Path) -> None:
    b = session_stream()
    b.plan(
        5,
        [
            {"id": 0, "parent": -1, "kind": "Nested Loop"},
            {"id": 1, "parent": 0, "kind": "Seq Scan", "relation": "public.a"},
            {"id": 2, "parent": 0, "kind": "Index Scan", "relation": "public.b", "index": "b_pkey"},
        ],
    )
    b.call(CallKind.EXECUTE, 0, 10 * MS, call=1, plan=5)
    b.rowsources(
        1,
        5,
        [
            (0, 1, 10, 9, 1, 9 * MS, 9 * MS, 9 * MS),
            (1, 1, 3, 2, 1, 2 * MS, 2 * MS, 2 * MS),
            (2, 1, 9, 9, 2, 6 * MS, 6 * MS, 6 * MS),
        ],
        10 * MS,
    )
    b.request(0, 10 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    assert by(book, "relation") == pytest.approx(
        {
            "public.a": 2 * MS,
            "public.b": 6 * MS,
            "no relation": MS,
            "execute, not in a measured node": MS,
        }
    )
    assert by(book, "node")["Index Scan on public.b"] == pytest.approx(6 * MS)


def test_an_init_plan_is_taken_from_the_nodes_that_ask_for_it(tmp_path: Path) -> None:
    b = session_stream()
    b.plan(
        5,
        [
            {"id": 0, "parent": -1, "kind": "Hash Join"},
            {"id": 3, "parent": 0, "kind": "Result", "subplan": True, "within": [1, 2, 9]},
            {"id": 1, "parent": 0, "kind": "Seq Scan", "relation": "public.a"},
            {"id": 2, "parent": 0, "kind": "Seq Scan", "relation": "public.b"},
            {"id": 4, "parent": 0, "kind": "Result", "subplan": True, "within": []},
            {"id": 9, "parent": 0, "kind": "Memoize"},
        ],
    )
    b.call(CallKind.EXECUTE, 0, 20 * MS, call=1, plan=5)
    b.rowsources(
        1,
        5,
        [
            (0, 1, 10, 9, 1, 10 * MS, 10 * MS, 10 * MS),
            (3, 1, 2, 1, 1, 4 * MS, 4 * MS, 4 * MS),
            (1, 1, 3, 2, 1, 6 * MS, 6 * MS, 6 * MS),
            (2, 1, 9, 9, 2, 2 * MS, 2 * MS, 2 * MS),
            (4, 1, 1, 1, 1, 5 * MS, 5 * MS, 5 * MS),
            (9, 16, 0, 0, 0, 0, 0, 0),
        ],
        20 * MS,
    )
    b.request(0, 20 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    # of the 4 ms each gives by its own time: the join, for the node that was not timed, 2, 6 and 2
    assert by(book, "node") == pytest.approx(
        {
            "Hash Join": 1.2 * MS,
            "Seq Scan on public.a": 3.6 * MS,
            "Seq Scan on public.b": 1.2 * MS,
            "Result": 9 * MS,
            "execute, not in a measured node": 5 * MS,
        }
    )


def test_times_are_what_a_reader_counts(tmp_path: Path) -> None:
    """A transaction of the extended protocol, run three times; the first time it is parsed."""
    b = session_stream()
    b.text(1, "SELECT a FROM t", 11)
    b.text(2, "END", 12)
    b.text(3, "SELECT oops", 13)
    for i in range(3):
        at = i * 20 * MS
        if not i:
            b.call(CallKind.PARSE, at, at + 1 * MS, text=1, query_id=11)
        b.call(CallKind.BIND, at + 1 * MS, at + 2 * MS, text=1, query_id=11)
        run = b.call(CallKind.EXECUTE, at + 2 * MS, at + 5 * MS, text=1, query_id=11)
        b.call(
            CallKind.FETCH,
            at + 5 * MS,
            at + 7 * MS,
            text=1,
            query_id=11,
            execution=run,
            fetches=4,
            flags=0,
        )
        b.call(CallKind.PARSE, at + 7 * MS, at + 8 * MS, text=2, query_id=12)
        b.call(CallKind.UTILITY, at + 8 * MS, at + 9 * MS, text=2, query_id=12)
        b.call(CallKind.COMMIT, at + 9 * MS, at + 10 * MS, text=2, query_id=12)
        b.request(at, at + 10 * MS)
    b.call(CallKind.PARSE, 60 * MS, 61 * MS, text=3, query_id=13)
    b.request(60 * MS, 61 * MS)
    b.end(61 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, []))
    lines = {line.name: line for line in profile(book, "statement").lines}
    select, end, oops = (lines[name] for name in ("SELECT a FROM t", "END", "SELECT oops"))
    assert (select.times, select.total_ns) == (3, 19 * MS)
    assert (select.min_ns, select.max_ns) == (6 * MS, 7 * MS)
    assert select.mean_ns == pytest.approx(19 * MS / 3)
    assert (end.times, end.mean_ns, end.max_ns) == (3, 3 * MS, 3 * MS)
    assert (oops.times, oops.total_ns, oops.mean_ns) == (0, 1 * MS, 0)
    assert (lines["client"].times, sum(end.histogram)) == (0, 3)
    (session,) = profile(book, "session").lines
    assert (session.times, session.total_ns) == (6, 61 * MS)
    assert session.mean_ns == pytest.approx(28 * MS / 6)
    calls = {line.name: line for line in profile(book, "call").lines}
    counted = {name: line.times for name, line in calls.items() if line.times}
    assert counted == {"parse": 5, "bind": 3, "execute": 3, "fetch": 12, "commit": 3, "utility": 3}
    assert calls["fetch"].mean_ns == MS // 2
    nodes = {line.name: line.times for line in profile(book, "node").lines}
    assert (nodes["execute, not in a measured node"], nodes["client"]) == (3, 0)
    for grouping in GROUPINGS:
        assert sum(by(book, grouping).values()) == pytest.approx(61 * MS)
