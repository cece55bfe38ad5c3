"""The reader of recordings, compared with the tests' own decoder of records."""

from pgtare.observing.trace.file import record_decoder
from tests.trace_records import EVENTS, Trace


def decoded_kinds(data: bytes) -> set[int]:
    """The kinds of records in a stream."""
    offsets, wrong = record_decoder.walk(data)
    assert wrong is None
    return {data[at + 4] for at in offsets.tolist()}


def check_reader(data: bytes, trace: Trace) -> None:
    """The reader finds the same as the tests' decoder."""
    found = record_decoder.decode([(0, data)])
    assert not found.notes
    names = ("call", "depth", "parent", "text", "query_id", "plan", "execution", "start", "busy")
    expected = [
        (r.call, *(r.__dict__.get(n, r.fields.get(n)) for n in names[1:]), r.time, r.rows)
        for r in trace.of("call")
    ]
    assert [tuple(int(c[n]) for n in (*names, "end", "rows")) for c in found.calls] == expected
    assert [(int(r["start"]), int(r["end"])) for r in found.requests] == [
        (r.start, r.time) for r in trace.of("request")
    ]
    assert [tuple(map(int, t)) for t in found.transactions.tolist()] == [
        (EVENTS.index(r.event), r.time, r.xid, r.start) for r in trace.of("transaction")
    ]
    assert {r.call: [v["bytes"] for v in r.values] for r in trace.of("binds")} == {
        call: [bind.data for bind in binds] for call, binds in found.binds.items()
    }
