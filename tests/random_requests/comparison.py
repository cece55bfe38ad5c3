"""What a trace tells, compared with what it must tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pgtare.observing.trace.file.records import RecordKind
from tests.random_requests.model import ABORTED, DROPPED, FAILED, FINE, UNDER_WAY, Call, Expected
from tests.trace_decoders import check_reader, decoded_kinds
from tests.trace_records import ABORTED as FLAG_ABORTED
from tests.trace_records import FAILED as FLAG_FAILED
from tests.trace_records import Record, Trace, check_whole, decode

#: Calls that a client knows of. Plans depend on what the server keeps, and within statements so do
#: parses.
_KNOWN = ("bind", "execute", "fetch", "utility", "commit", "rollback")


def read_trace(data: bytes, wanted: int | None = None) -> Trace:
    """A stream as the tests decode it, and as the reader of recordings does, alike and whole.

    wanted: a kind of record that must be there.
    """
    kinds = decoded_kinds(data)
    assert wanted is None or wanted in kinds, "no record of the kind that was to be tried"
    assert RecordKind.OPEN not in kinds, "a request is still open"
    trace = Trace(decode(data))
    check_whole(trace)
    check_nesting(trace)
    check_reader(data, trace)
    return trace


def check_nesting(trace: Trace) -> None:
    """Nothing is lost, and calls lie within those in which they were made.

    An execution may last longer than the call in which it began: cursors do.
    """
    numbers = [r.number for r in trace.records if r.number]
    runs = [n for at, n in enumerate(numbers) if at == 0 or n != numbers[at - 1]]
    assert runs == list(range(1, len(runs) + 1)), "records are missing"
    assert not trace.of("lost"), "records are lost"
    calls = {r.call: r for r in trace.of("call")}
    assert len(calls) == len(trace.of("call")), "a call has two records"
    for call in calls.values():
        around = calls.get(call.parent)
        assert (call.parent == 0) == (call.depth == 0), call
        if around is not None:
            assert around.depth == call.depth - 1, (around, call)
            assert around.start <= call.start, (around, call)
            assert call.call_kind == "execute" or call.time <= around.time, (around, call)
        if call.execution and call.execution in calls:
            assert calls[call.execution].call_kind == "execute", call
    _check_sums(trace, calls)
    _check_requests(trace)


def _check_requests(trace: Trace) -> None:
    """What happened in a request lies within it; executions may have begun before."""
    calls: list[Record] = []
    for record in trace.records:
        if record.kind == "call" and not record.parent:
            calls.append(record)
        elif record.kind == "request":
            for call in calls:
                assert call.time <= record.time, (call, record)
                assert call.call_kind == "execute" or record.start <= call.start, (call, record)
                assert call.busy <= record.time - record.start or call.start < record.start, call
            calls.clear()
        elif record.kind == "level":
            calls.clear()


def _check_sums(trace: Trace, calls: dict[int, Record]) -> None:
    """The calls' own parts add up to the time of the outermost ones, which fit into requests."""
    inner: defaultdict[int, int] = defaultdict(int)
    for call in calls.values():
        inner[call.parent] += call.busy
    own = sum(call.busy - inner[call.call] for call in calls.values())
    open_around = sum(inner[parent] for parent in inner if parent and parent not in calls)
    assert own == inner[0] + open_around, "times do not add up"
    rows: defaultdict[int, int] = defaultdict(int)
    for call in calls.values():
        if call.execution:
            rows[call.execution] += call.rows
    for execution, fetched in rows.items():
        if execution in calls and not calls[execution].flags & FLAG_FAILED:
            assert fetched <= calls[execution].rows, (calls[execution], fetched)


def _outcome(call: Record) -> str:
    if call.flags & FLAG_FAILED:
        return FAILED
    return ABORTED if call.flags & FLAG_ABORTED else FINE


def _same_run(before: Record, fetch: Record) -> bool:
    return bool(before.execution == fetch.execution and before.parent == fetch.parent)


def told(trace: Trace) -> list[Call]:
    """The calls of a trace that a client knows of, in the order in which they began.

    Fetches in a row within a statement may share a record, or not: here they do.
    """
    texts = trace.texts()
    values = {
        r.call: tuple(
            None if v["state"] == "null" else int.from_bytes(v["bytes"], "little", signed=True)
            for v in r.values
        )
        for r in trace.of("binds")
    }
    found: list[Call] = []
    before: Record | None = None
    for r in sorted(trace.of("call"), key=lambda r: r.call):
        if r.call_kind not in _KNOWN and (r.call_kind != "parse" or r.depth):
            continue
        text = "" if r.call_kind in ("commit", "rollback") else texts.get(r.text, "no text")
        outcome = _outcome(r)
        if before and r.call_kind == "fetch" and r.depth and _same_run(before, r):
            last = found[-1]
            last.rows, last.fetches = (last.rows or 0) + r.rows, last.fetches + r.fetches
            last.outcome = outcome
            continue
        given = values.get(r.call, ())
        found.append(Call(r.call_kind, text, r.depth, r.rows, outcome, given, r.fetches))
        before = r
    return found


def difference(trace: Trace, expected: Expected) -> str | None:
    """The first thing that the trace tells otherwise than it must."""
    levels = [r.level for r in trace.of("level")][1:]
    return (
        _of_calls(told(trace), [call for call in expected.calls if call.outcome != UNDER_WAY])
        or _of(
            "requests",
            [(r.status, r.messages) for r in trace.of("request")],
            expected.requests,
        )
        or _of_errors(trace, expected)
        or _of("transactions", [r.event for r in trace.of("transaction")], expected.transactions)
        or _of("levels", levels, expected.levels)
    )


def _of_calls(found: list[Call], expected: list[Call]) -> str | None:
    at = 0
    for number, theirs in enumerate(expected):
        ours = found[at] if at < len(found) else None
        if ours:
            ours.rows = None if theirs.rows is None else ours.rows
            ours.values = None if theirs.values is None else ours.values
            if theirs.outcome == DROPPED and ours.outcome in (FINE, ABORTED):
                ours.outcome = DROPPED
        if ours != theirs:
            if theirs.doubtful:
                continue
            return _lines(found[max(at - 4, 0) : at + 5], expected[max(number - 4, 0) : number + 5])
        at += 1
    return None if at == len(found) else _lines(found[at - 4 : at + 5], expected[-4:])


def _of_errors(trace: Trace, expected: Expected) -> str | None:
    found = [(r.severity, r.sqlstate, r.message) for r in trace.of("error")]
    shown = [
        (*theirs[:2], ours[2] if theirs[2] is None else theirs[2])
        for ours, theirs in zip(found, expected.errors, strict=False)
    ]
    return _of("errors", found, shown + list(expected.errors[len(shown) :]))


def _of(what: str, found: Sequence[object], expected: Sequence[object]) -> str | None:
    pairs = zip(found, expected, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))
    if at == len(found) == len(expected):
        return None
    start = max(at - 4, 0)
    shown = _lines(found[start : at + 5], expected[start : at + 5])
    return f"{what}, from number {start}:{shown}"


def _lines(found: Sequence[object], expected: Sequence[object]) -> str:
    return "\n".join(["", *map(str, found), "must be:", *map(str, expected)])
