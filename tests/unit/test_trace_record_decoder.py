"""Decoding the stream of a session, and telling its clients apart."""

from __future__ import annotations

import functools
import struct

import numpy as np
import pytest

from pgtare.observing.trace.analysis.merge import trace_id
from pgtare.observing.trace.analysis.time_scale import one_origin
from pgtare.observing.trace.file import record_decoder
from pgtare.observing.trace.file.records import CallKind, RecordKind, sqlstate
from tests.processor_time import least_s
from tests.unit.made_traces import BEGAN_NS, MS, StreamBuilder, session_stream

pytestmark = pytest.mark.timeout(180)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_stream_of_another_version_says_so_in_a_sentence() -> None:
    b = session_stream()
    data = bytearray(b.data)
    struct.pack_into("<I", data, 32, 3)
    sentence = "the server's stream has version 3; this pgtare reads version 2"
    assert record_decoder.decode([(0, bytes(data))]).notes == [sentence]
    assert record_decoder.decode([(0, b.data)]).notes == []


def test_every_kind_of_record_comes_back() -> None:
    b = StreamBuilder()
    b.session(application="naïve")
    b.text(1, "SELECT 1", 42, flags=1)
    b.call(
        CallKind.EXECUTE,
        5,
        9,
        text=1,
        query_id=42,
        cpu=3,
        rows=7,
        depth=2,
        parent=4,
        shared=(1, 2, 3, 4),
        flags=1,
        state=33816706,
    )
    b.request(1, 12, 4, "T")
    b.transaction(1, 5, 2, 77)
    b.plan(3, [{"id": 0, "parent": -1, "kind": "Result"}])
    b.rowsources(1, 3, [(0, 1, 2, 3, 4, 5, 6, 7)], 12)
    b.error(13, "division by zero", 33816706, 1)
    b.application(13, "ünder")
    b.end(14)
    found = record_decoder.decode([(0, b.data)])
    assert found.session["application"] == "naïve"
    assert found.session["started_ns"] == BEGAN_NS
    assert found.texts[1].text == "SELECT 1"
    assert found.texts[1].cut
    (call,) = found.calls
    assert (call["start"], call["end"], call["busy"], call["cpu"], call["rows"]) == (5, 9, 4, 3, 7)
    assert (call["depth"], call["parent"], call["query_id"], call["text"]) == (2, 4, 42, 1)
    assert sqlstate(int(call["sqlstate"])) == "22012"
    assert found.buffers[1][:4] == (1, 2, 3, 4)
    assert found.requests.tolist() == [(1, 12, 4)]
    assert found.transactions.tolist() == [(1, 5, 77, 2)]
    assert found.rowsources[0].nodes[0].time == 5
    assert (found.errors[0].sqlstate, found.errors[0].message) == ("22012", "division by zero")
    assert found.applications == [(13, "ünder")]
    assert found.ended
    assert not found.notes


def test_request_in_one_record() -> None:
    """Among others, its calls come in the order of the records."""
    b = session_stream()
    b.call(CallKind.PARSE, 1, 9)
    b.fused(1000, 1030, 2)
    b.call(CallKind.PARSE, 2000, 2009)
    found = record_decoder.decode([(0, b.data)])
    assert found.calls["call"].tolist() == [1, 3, 2, 4, 5]
    assert found.calls["kind"].tolist() == [1, 2, 4, 6, 1]
    bind, execution, commit = found.calls[1:4]
    assert [int(bind[n]) for n in ("start", "end", "busy", "flags")] == [1000, 1010, 9, 32]
    assert [int(execution[n]) for n in ("start", "end", "busy", "rows", "plan", "text")] == [
        *(1010, 1020, 8, 7, 3, 1)
    ]
    assert [int(c["query_id"]) for c in (bind, execution, commit)] == [42, 42, 0]
    assert {int(c["cpu"]) for c in found.calls} == {-1}
    assert found.buffers == {2: (1, 2, 3, 4, *[0] * 8)}
    assert [bind.data for bind in found.binds[2]] == [b"\7\0\0\0"]
    assert found.transactions.tolist() == [(1, 1002, 0, 1001), (2, 1022, 99, 1001)]
    assert found.requests.tolist() == [(1000, 1030, 5)]
    assert not found.notes
    assert not found.gaps
    records = [b.data[at:] for at in record_decoder.walk(b.data)[0].tolist()]
    assert record_decoder.plans_of_fused(records[2][: len(records[2]) - len(records[3])]) == [3]


def test_request_that_is_open() -> None:
    """It counts if the session tells no more; else what it told does."""
    b = session_stream()
    b.call(CallKind.PARSE, 1, 9)
    before = b.data
    b.fused(1000, 1000, 2, still_open=True)
    found = record_decoder.decode([(0, b.data)])
    assert found.calls["call"].tolist() == [1, 3, 2, 4]
    assert not len(found.requests)
    twice = record_decoder.decode([(0, b.data), (len(before) - 304, b.data[len(before) :])])
    assert twice.calls["call"].tolist() == [1, 3, 2, 4]
    at = len(b.data)
    b.fused(1000, 1030, 2)
    found = record_decoder.decode([(0, b.data[:at]), (len(before) - 304, b.data[at:])])
    assert found.calls["call"].tolist() == [1, 3, 2, 4]
    assert len(found.requests) == 1
    assert not found.gaps


@pytest.mark.parametrize("size", range(0, 180, 4))
def test_request_in_one_record_that_is_cut(size: int) -> None:
    b = StreamBuilder()
    b.fused(1000, 1030, 2)
    body = b.data[32 : 32 + size]
    b = StreamBuilder()
    b.record(RecordKind.FUSED, 1030, body, 2)
    record_decoder.decode([(0, b.data)])
    record_decoder.plans_of_fused(b.data)


@pytest.mark.parametrize("still_open", [False, True])
def test_request_in_one_record_with_an_impossible_number(still_open: bool) -> None:
    """Numbers that are counted from it have room as well."""
    b = session_stream()
    b.fused(1000, 1030, 2**63 - 1, still_open=still_open)
    found = record_decoder.decode([(0, b.data)])
    first = int(found.calls["call"].min())
    assert found.calls["call"].tolist() == [first + 1, first, first + 2]
    assert first < 2**62
    if still_open:
        assert found.open is not None
        assert found.open.call == first + 3


def test_values_of_any_kind_and_number() -> None:
    """1,000 parameters, null, binary, of an invalid encoding, redacted and omitted."""
    entries, kept = b"", []
    for i in range(1000):
        raw = bytes([i % 256, 0, 0xFF])[: i % 4]
        entries += struct.pack("<IBBHII", 25, i % 5, 3, 0, 3, len(raw)) + raw.ljust(
            -(-len(raw) // 8) * 8, b"\0"
        )
        kept.append(raw)
    b = StreamBuilder()
    b.record(RecordKind.BINDS, 1, struct.pack("<II", 1000, 1000) + entries, call=8)
    found = record_decoder.decode([(0, b.data)]).binds[8]
    assert [bind.data for bind in found] == kept
    assert {bind.state for bind in found} == {"null", "whole", "cut", "redacted", "omitted"}


def test_text_of_an_invalid_encoding_and_of_megabytes() -> None:
    b = session_stream()
    raw = b"SELECT '\xff\xfe'" + b"x" * 3_000_000
    b.record(RecordKind.TEXT, 0, struct.pack("<QqIIII", 5, 0, len(raw), len(raw), 0, 0) + raw)
    found = record_decoder.decode([(0, b.data)]).texts[5]
    assert found.text.startswith("SELECT '\ufffd\ufffd'")
    assert len(found.text) == len(raw)


def test_what_cannot_be_is_reported_and_the_rest_read() -> None:
    b = session_stream()
    b.call(CallKind.PLAN, 1, 2)
    b.record(
        RecordKind.BINDS,
        3,
        struct.pack("<II", 1, 1) + struct.pack("<IBBHII", 1, 1, 1, 0, 9, 99),
    )
    b.record(RecordKind.PLAN, 3, b"\xff" * 40)
    b.call(CallKind.PLAN, 3, 4)
    cut = b.data + struct.pack("<IHHQqQ", 4000, 3, 0, 1, 1, 1)
    found = record_decoder.decode([(0, cut)])
    assert len(found.calls) == 2
    assert [n for n in found.notes if "BINDS" in n]
    assert [n for n in found.notes if "4,000 bytes" in n]


def test_readings_of_two_zeros_become_one_series() -> None:
    true = np.cumsum(np.random.default_rng(2).integers(1, 5, 400)) * MS
    when = np.arange(400) * 10 * MS
    own = np.stack([when[::2], true[::2]], axis=1)
    marked = np.stack([when[1::2], true[1::2] + 12345 * MS], axis=1)
    joined = one_origin(own, marked)
    assert np.abs(joined[:, 1] - true[: len(joined)]).max() <= 4 * MS
    assert len(joined) == 400


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"SELECT 1 /*traceparent='{PARENT}',app='a%20b'*/", PARENT[3:35]),
        (f"/*action='x',traceparent='{PARENT}'*/ SELECT 1 /* other */", PARENT[3:35]),
        ("SELECT 1 /*traceparent='nonsense'*/", None),
        (f"SELECT 1 /*traceparent={PARENT}*/", PARENT[3:35]),
        (f"SELECT 1 /* traceparent={PARENT} */", PARENT[3:35]),
        (f"SELECT 1 /* traceparent: {PARENT} */", PARENT[3:35]),
        (f"SELECT 1 /*traceparent:{PARENT},app:x*/", PARENT[3:35]),
        (f"SELECT 1 /*traceparent : '{PARENT}'*/", PARENT[3:35]),
        (f'SELECT 1 /*traceparent="{PARENT}"*/', PARENT[3:35]),
        (f'SELECT 1 /* {{"app": "x", "traceparent": "{PARENT}"}} */', PARENT[3:35]),
        (f"SELECT 1 /*traceparent='{PARENT.replace('-', '%2D')}'*/", PARENT[3:35]),
        (f"SELECT 1 /*traceparent='{PARENT.replace('-', '%2d')}'*/", PARENT[3:35]),
        (f"SELECT 1 /*traceparent=%27{PARENT}%27*/", PARENT[3:35]),
        (f"SELECT 1 /*app=%27x%27,traceparent=%27{PARENT}%27,b=%27y%27*/", PARENT[3:35]),
        (f"SELECT 1 /*traceparent%3D%27{PARENT.replace('-', '%2D')}%27*/", PARENT[3:35]),
        (f"SELECT 1 /*traceparent=\\'{PARENT}\\'*/", None),
        (f"SELECT 1 /*a='1',b='it\\'s',traceparent='{PARENT}',tracestate='x%3Dy'*/", PARENT[3:35]),
        (f"SELECT 1 /*traceparent='{PARENT}'*/ /* app='last' */", PARENT[3:35]),
        (f"SELECT 1 /*traceparent='{PARENT}'*/ /*traceparent='00-1-1-01'*/", PARENT[3:35]),
        (
            f"/*traceparent='{'00-' + '1' * 32 + PARENT[35:]}'*/ SELECT 1 /*traceparent={PARENT}*/",
            PARENT[3:35],
        ),
        (f"SELECT 1 -- traceparent={PARENT}\n", PARENT[3:35]),
        (f"SELECT 'a--b' /*\ntraceparent='{PARENT}'*/", PARENT[3:35]),
        (f"SELECT '/*', 1 /*traceparent='{PARENT}'*/", PARENT[3:35]),
        (
            f"SELECT 1 /*{'x' * 20_000}*/ /*traceparent='{PARENT}'*/ FROM {'y' * 20_000}",
            PARENT[3:35],
        ),
        (f"SELECT 1 /*traceparent='{PARENT}', cut", PARENT[3:35]),
        (f"SELECT 1 /*traceparent='cc{PARENT[2:]}'*/", PARENT[3:35]),
        (f"SELECT 1 /*traceparent='ff{PARENT[2:]}'*/", None),
        (f"SELECT 1 /*traceparent='{PARENT}0'*/", None),
        (f"SELECT 1 /*traceparent='{PARENT[:-1]}'*/", None),
        (f"SELECT 1 /*traceparent={PARENT}-x*/", None),
        (f"SELECT 1 /*traceparent='{PARENT.replace('-', '')}'*/", None),
        (f"SELECT 1 /*traceparent='{PARENT.upper()}'*/", None),
        (f"SELECT 1 /*traceparent='{PARENT.replace('a', 'g')}'*/", None),
        (f"SELECT 1 /*traceparent='00-{'0' * 32}-{PARENT[36:]}'*/", None),
        (f"SELECT 1 /*traceparent='{PARENT[:36]}{'0' * 16}-01'*/", None),
        (f"SELECT 1 /*my_traceparent='{PARENT}'*/", None),
        (f"SELECT 1 /*x-traceparent: {PARENT}*/", None),
        (f"SELECT 1 /*route='a, traceparent={PARENT}'*/", None),
        (f"SELECT 1 /*url: http://x/?traceparent={PARENT}*/", None),
        (f"SELECT 1 /*traceparent {PARENT}*/", None),
        (f"SELECT 'traceparent={PARENT}'", None),
        ("SELECT 1 /*traceparent=*/", None),
        ("SELECT '/*' || 1", None),
        ("SELECT 1 /* unfinished", None),
    ],
)
def test_traceparent_of_comments(text: str, found: str | None) -> None:
    assert trace_id(text) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    ["/*", "/* a", "--", "a", "a=", "a='", 'a="', "a='\\'", "%27", "a :", " ", "*/", "'/*x"],
)
def test_comments_are_read_in_time_that_grows_with_their_length(piece: str) -> None:
    took = []
    for n in (40_000, 160_000):
        text = f"/*trace {piece * (n // len(piece))}"
        assert trace_id(text) is None
        took.append(least_s(functools.partial(trace_id, text)))
    assert took[1] < 9 * took[0] + 0.1
