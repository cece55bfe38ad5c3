"""What `pgtare trace` prints: tables that fit a terminal, errors, parallel workers, early calls."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from rich.cells import cell_len

from pgtare.errors import UsageError
from pgtare.kit.numbers import volume
from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis import merge
from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.analysis.profile import Scope, profile
from pgtare.observing.trace.analysis.statements import report
from pgtare.observing.trace.file.disk_limits import LimitReached, Limits, check
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.records import CallKind, RecordKind
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.file.writer import Writer
from pgtare.observing.trace.output import export, show, waterfall
from pgtare.observing.trace.output.export import tables
from pgtare.observing.trace.output.page import page
from tests.commands import in_process, refused
from tests.sample_trace import ROWS, two_requests, two_requests_ledger
from tests.terminal import printed
from tests.unit.made_traces import (
    BEGAN_NS,
    MS,
    NO_RESERVE,
    StreamBuilder,
    define_events,
    moment,
    ring,
    session_stream,
    trace,
    waits,
    write,
)


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return two_requests_ledger(tmp_path)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_figure_is_cut_however_narrow_the_terminal(book: Ledger, width: int) -> None:
    found = profile(book)
    text = printed(show.profile_view(found), width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    for line in found.lines:
        assert show.ns(line.total_ns) in text
    assert ("no room for" in text) == (width < 80)
    statements = report(book)
    text = printed(show.statements_view(statements), width)
    for call in (call for s in statements for call in s.calls.values()):
        assert show.ns(call.elapsed_ns) in text
    assert "UPDATE t SET a = ?" in text


def test_the_kernels_share_stays_on_a_terminal_of_80_columns(book: Ledger) -> None:
    found = profile(book)
    lines = [line.model_copy(update={"kernel_ns": line.total_ns / 4}) for line in found.lines]
    text = printed(show.profile_view(found.model_copy(update={"lines": lines})), 80)
    assert "of it kernel CPU" in text.splitlines()[1]


def test_a_profile_by_node_tells_how_to_have_row_sources(book: Ledger) -> None:
    assert "sql_trace.rowsource_sampling" in printed(show.profile_view(profile(book, "node")), 80)
    assert "rowsource" not in printed(show.profile_view(profile(book)), 80)


def test_a_profile_says_that_its_lengths_are_those_of_whole_waits(book: Ledger) -> None:
    """If one of them began before the recording, its mean can be more than its time."""
    found = profile(book)
    told = "of whole waits"
    assert told not in printed(show.profile_view(found), 200)
    cut = [
        line.model_copy(update={"total_ns": line.mean_ns * line.times / 2}) if line.times else line
        for line in found.lines
    ]
    assert told in printed(show.profile_view(found.model_copy(update={"lines": cut})), 200)


def test_an_error_of_a_statement_that_made_no_call_is_reported(tmp_path: Path) -> None:
    b = two_requests()
    b.text(9, "SELECT 'x'::int", 0)
    b.text(10, "SELECT 1/0", 0)
    for i in range(2):
        b.error(40 * MS + i, "invalid input", state=77, text=9)
    b.call(CallKind.PLAN, 41 * MS, 42 * MS, text=10, flags=1, state=78)
    b.error(42 * MS, "division by zero", state=78, text=10)
    found = {s.text: s for s in report(ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, ROWS)))}
    assert list(found["SELECT ?::int"].errors.values()) == [2]
    assert list(found["SELECT ?/?"].errors.values()) == [1]
    assert found["UPDATE t SET a = ?"].errors == {}


def test_statements_of_a_process_that_is_not_there(book: Ledger) -> None:
    with pytest.raises(UsageError, match="nothing of process 7"):
        report(book, pids=frozenset({4711, 7}))


def test_utility_statements_are_sorted_by_how_often_they_ran(tmp_path: Path) -> None:
    b = session_stream()
    b.text(1, "BEGIN", 11)
    b.text(2, "SELECT slow", 12)
    for at in range(0, 20 * MS, MS):
        b.call(CallKind.UTILITY, at, at + MS, text=1, query_id=11)
    b.call(CallKind.EXECUTE, 20 * MS, 35 * MS, text=2, query_id=12)
    b.request(0, 35 * MS)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data))
    assert [s.text for s in report(book, "count")] == ["BEGIN", "SELECT slow"]
    assert [s.text for s in report(book, "mean")] == ["SELECT slow", "BEGIN"]


def test_calls_from_before_the_recording_are_no_part_of_it(tmp_path: Path) -> None:
    """A ring that was filled 20 s before the recorder came; the statement after that counts."""
    b = session_stream()
    b.text(1, "SELECT early", 1)
    b.text(2, "SELECT late", 2)
    b.call(CallKind.EXECUTE, 1 * MS, 2 * MS, text=1, query_id=1)
    b.call(CallKind.EXECUTE, 20_000 * MS, 20_005 * MS, text=2, query_id=2)
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b'{"began": "2027-01-15T08:00:15+00:00"}', Limits(reserve=0))
    writer.define(Table.RINGS, ring(1, 4711, "sql"))
    writer.add(Table.STREAM, {"ring": np.array([1]), "position": np.array([0]), "data": [b.data]})
    writer.close(b"{}")
    assert BEGAN_NS == 1_800_000_000 * 10**9  # 08:00:00
    assert [s.text for s in report(ledgers.ledger(load(path)))] == ["SELECT late"]


def test_parallel_workers_are_no_sessions_of_their_client(tmp_path: Path) -> None:
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b"{}", Limits(reserve=0))
    define_events(writer)
    writer.define(Table.RINGS, ring(1, 4711, "sql", application="app"))
    for number in (2, 3):
        columns = ring(number, 4710 + number, "waits", application="app", leader_pid=4711)
        writer.define(Table.RINGS, columns)
        writer.add(Table.WAITS, waits(number, [(0, 1 * MS, 2 * MS), (0, 5 * MS, 1 * MS)]))
    data = two_requests().data
    writer.add(Table.STREAM, {"ring": np.array([1]), "position": np.array([0]), "data": [data]})
    writer.close(b"{}")
    (client,) = merge.clients(ledgers.ledger(load(path)), "application")
    assert (client.name, client.sessions) == ("app", 1)


@pytest.mark.parametrize("busy_s", [605, 2])
def test_of_a_call_from_before_the_recording_the_rest_counts(tmp_path: Path, busy_s: int) -> None:
    """It began ten minutes before, or is a cursor that had worked for 2 s then."""
    b = session_stream()
    b.text(1, "SELECT long", 11)
    b.level(0, 12, 1, 1.0)
    times = {"start": 0, "end": 605_000 * MS, "busy": busy_s * 1000 * MS}
    b.call(CallKind.EXECUTE, **times, text=1, query_id=11)
    b.request(0, 605_000 * MS)
    (found,) = report(
        ledgers.ledger(load(write(tmp_path / "t.pgtrace", b.data, began=moment(600))))
    )
    call = found.calls["execute"]
    elapsed_ns = 5_000 * MS if busy_s > 600 else 0
    assert (call.elapsed_ns, call.max_ns, call.inner_ns) == (elapsed_ns, elapsed_ns, 0)


def test_a_limit_that_nothing_fits_in_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing was begun.*--max-size"):
        Writer(tmp_path / "t", b"{}", Limits(total=10, reserve=0))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_kept_traces_names_one(tmp_path: Path) -> None:
    one = tmp_path / "kept-1.pgtrace"
    Writer(one, b"{}", Limits(reserve=0)).close(b"{}")
    with pytest.raises(
        UsageError, match=f"it is a directory: name one of its files, such as {one}"
    ):
        load(tmp_path)


def test_a_plan_of_two_sessions_is_one(tmp_path: Path) -> None:
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b"{}", Limits(reserve=0))
    for number in (1, 2):
        b = StreamBuilder()
        b.session(4710 + number)
        b.text(1, "SELECT a FROM t", 11)
        b.plan(5, [{"id": 0, "parent": -1, "kind": "Seq Scan", "relation": "t"}], text=1)
        call = b.next_call + 1
        b.rowsources(call, 5, [(0, 1, 3, 2, 1, 4 * MS, 4 * MS, 4 * MS)], 5 * MS)
        b.call(CallKind.EXECUTE, 1 * MS, 6 * MS, text=1, query_id=11, plan=5)
        writer.define(Table.RINGS, ring(number, 4710 + number, "sql"))
        writer.add(
            Table.STREAM,
            {"ring": np.array([number]), "position": np.array([0]), "data": [b.data]},
        )
    writer.close(b"{}")
    (statement,) = report(ledgers.ledger(load(path)))
    (plan,) = statement.plans
    assert (plan.executions, plan.nodes[0].calls, plan.nodes[0].time_ns) == (2, 6, 8 * MS)
    assert "row source of 2 executions" in printed(show.statements_view([statement]), 120)


def test_kept_files_that_cannot_be_read_are_left_out_of_the_list(tmp_path: Path) -> None:
    """One that is still empty, one of something else, one that goes meanwhile."""
    told = {
        "id": 3,
        "pid": 4711,
        "role": "app",
        "database": "shop",
        "application": "web",
        "cause": "request",
        "detail": "120 ms",
        "query_id": 5,
        "at": "2026-11-28T07:37:06+00:00",
        "incident": 0,
    }
    place = tmp_path / "kept"
    place.mkdir()
    bad = [place / f"kept-{name}.pgtrace" for name in ("empty", "foreign", "gone")]
    bad[0].touch()
    bad[1].write_bytes(b"something else entirely")
    bad[2].symlink_to(place / "nowhere")
    (place / "nothing of ours").touch()
    command = ("trace", "kept", "--directory", place)
    assert "kept-empty.pgtrace is empty" in refused(*command)
    Writer(place / "kept-x.pgtrace", json.dumps({"kept": told}).encode(), NO_RESERVE).close(b"{}")
    found = json.loads(in_process(*command, "--json").stdout)
    assert [kept["id"] for kept in found["traces"]] == [3]
    assert [[path.name in note for path in bad] for note in found["notes"]] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    assert in_process(*command).stdout.count("note: left out: ") == 3


def test_an_export_is_refused_before_its_trace_is_read(tmp_path: Path) -> None:
    """The trace is not even there: it is not what the message is about."""
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "x").touch()
    missing = tmp_path / "missing"
    assert "is not one of" in refused("trace", "export", missing, tmp_path / "x", "--format", "csv")
    assert "exists already" in refused("trace", "export", missing, taken)


def test_a_scope_that_holds_nothing_names_what_lists_its_kind(book: Ledger) -> None:
    with pytest.raises(UsageError, match="--by session` lists its sessions"):
        profile(book, scope=Scope(frozenset({1}), words="process 1"))
    with pytest.raises(UsageError, match="trace statements TRACE` lists its statements"):
        profile(book, scope=Scope(statement="nothing"))


def test_a_mistyped_path_makes_no_directory(tmp_path: Path) -> None:
    missing, place = tmp_path / "missing", tmp_path / "mistyped" / "x" / "y"
    for words in (
        ("export", missing, place),
        ("report", missing, "--html", place.with_suffix(".html")),
    ):
        assert f"there is no directory {place.parent}" in refused("trace", *words)
    with pytest.raises(UsageError, match=f"there is no directory {place.parent}"):
        Writer(place, b"{}", Limits(reserve=0))
    assert list(tmp_path.iterdir()) == []


def test_sizes_are_reported_in_the_unit_that_suits_them(tmp_path: Path) -> None:
    with pytest.raises(LimitReached, match=r"has reached 200 KiB \(--max-size\)"):
        check(tmp_path, Limits(total=200 * 1024, reserve=0), 200 * 1024, 1)
    volumes = [volume(size) for size in (0, 1, 1023, 1536, 29_376_744, 1023 * 1024, 1 << 40)]
    assert volumes == ["0 bytes", "1 byte", "1023 bytes", "1.5 KiB", "28 MiB", "1 MiB", "1 TiB"]


def test_an_error_of_the_parser_ends_its_sentence() -> None:
    assert "integer. See `" in refused("trace", "profile", "x", "--pid", "x")


def test_the_kernels_share_is_explained_where_it_is_shown(book: Ledger) -> None:
    found = profile(book)
    lines = tuple(line.model_copy(update={"kernel_ns": line.total_ns / 2}) for line in found.lines)
    explained = "in which the kernel worked"
    assert explained not in printed(show.profile_view(found), 200)
    split = found.model_copy(update={"lines": lines})
    assert explained in printed(show.profile_view(split), 200)


def test_a_page_says_of_what_it_is(book: Ledger) -> None:
    book.trace.recording |= {
        "began": "2026-11-22T10:00:00+02:00",
        "level": 12,
        "command": ["pgtare", "trace", "record", "t.pgtrace", "--application", "shop <b>"],
    }
    drawn = page(book)
    assert "<h1>Where the time of t went</h1>" in drawn
    assert "· 1 session ·" in drawn
    assert "from 2026-11-22 08:00:00 UTC" in drawn
    assert "shop &lt;b&gt;" in drawn
    assert "12: calls, SQL, values and waits" in drawn
    assert "<dt>ended by</dt><dd>time</dd>" in drawn


@pytest.mark.parametrize("sense", [None, 4.0, [12], {"a": 1}, "x", True])
def test_a_page_is_drawn_of_a_recording_without_sense(book: Ledger, sense: object) -> None:
    book.trace.recording |= dict.fromkeys(("began", "level", "command", "pgtare", "server"), sense)
    book.trace.end = {"stopped_by": sense}
    assert "time unknown" in page(book)


def test_every_colour_is_explained(book: Ledger) -> None:
    drawn = page(book)
    known = {color for color, _ in (*waterfall.OF_CALLS, *waterfall.OF_WAITS)}
    used = set(re.findall(r'class="bar (\w+)"><title', drawn))
    assert used
    assert used <= known | {"k2", "k7"}  # as k1 and k6


@pytest.mark.parametrize("format_", get_args(export.Format))
@pytest.mark.parametrize("made", [True, False])
def test_an_interrupted_export_leaves_nothing(
    book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, made: bool
) -> None:
    """Its files could not be told from those of a complete one."""

    def cut(columns: export.Columns, rows: int) -> Iterator[str]:
        yield "{}\n"
        assert (tmp_path / "tables" / "processes.jsonl").exists()
        raise KeyboardInterrupt

    if format_ == "jsonl":
        monkeypatch.setattr(export, "_lines", cut)
    else:
        written = export.write_parquet

        def second(path: Path, columns: export.Columns) -> None:
            written(path, columns)
            if path.stem == "calls":
                raise KeyboardInterrupt

        monkeypatch.setattr(export, "write_parquet", second)
    if not made:
        (tmp_path / "tables").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        export.write(book, tmp_path / "tables", format_)
    assert sorted(tmp_path.rglob("*")) == before


def test_numbers_of_calls_that_cannot_be_are_exported(tmp_path: Path) -> None:
    b = two_requests()
    b.error(60 * MS, "too far", call=(1 << 64) - 1)
    b.record(RecordKind.BINDS, 60 * MS, struct.pack("<II", 0, 0), call=1 << 63)
    b.request(60 * MS, 61 * MS)
    columns = tables(ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data)))
    assert columns["errors"]["message"].tolist() == ["too far"]
