"""The fast decoder of a trace against a plain one, and the sums of a recording against loops."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtare.errors import MeasurementError
from pgtare.seeing.waits.summary import occupancy
from pgtare.server import statement_spans, wait_ring
from pgtare.server.wait_ring import RingRecordKind

RECORD = struct.Struct("<IHHIIqq")
NS = st.integers(0, 2**62)
LOW = st.integers(0, 2**32 - 1)
records_of = st.lists(
    st.tuples(LOW, st.integers(1, 6), st.integers(0, 3), LOW, LOW, NS, NS), max_size=40
)


def packed(records: list[tuple[int, ...]]) -> bytes:
    return b"".join(RECORD.pack(*record) for record in records)


@given(records_of)
def test_decodes_as_the_plain_decoder(records: list[tuple[int, ...]]) -> None:
    data = packed(records)
    assert [tuple(int(v) for v in r) for r in wait_ring.decode(data)] == list(
        RECORD.iter_unpack(data)
    )


def test_half_a_record_is_refused_in_one_sentence() -> None:
    with pytest.raises(MeasurementError, match="no whole number of records"):
        wait_ring.decode(b"x" * 33)


@pytest.mark.parametrize("following", [5, 2**32 + 2, 2**33])
def test_numbers_go_on_past_32_bits(following: int) -> None:
    wanted = [n for n in range(following - 4, following)]
    records = wait_ring.decode(packed([((n + 1) & 0xFFFFFFFF, 1, 0, 0, 1, 0, 0) for n in wanted]))
    assert wait_ring.numbers(records, following).tolist() == wanted


def plain_statements(records: list[tuple[int, ...]], query_id: int) -> tuple[list[int], int]:
    found = []
    for _, kind, depth, *_, value in records:
        if kind == RingRecordKind.STATEMENT_BEGIN and depth == 0:
            query_id = value
        found.append(query_id)
        if kind in (RingRecordKind.STATEMENT_END, RingRecordKind.ABORT) and depth == 0:
            query_id = 0
    return found, query_id


@given(records_of, NS)
def test_statement_of_each_record(records: list[tuple[int, ...]], query_id: int) -> None:
    data = wait_ring.decode(packed(records))
    own, after = statement_spans.running(data["kind"], data["depth"], data["value"], query_id)
    assert (own.tolist(), after) == plain_statements(records, query_id)


def plain_bucket(ns: int) -> int:
    for i in range(31):
        if ns < 2 ** (i + 8):
            return i
    return 31


@given(st.lists(st.one_of(NS, st.integers(0, 62).map(lambda k: 2**k - 1)), min_size=1))
def test_buckets_have_the_documented_bounds(durations: list[int]) -> None:
    assert wait_ring.bucket(np.array(durations)).tolist() == [plain_bucket(ns) for ns in durations]


@given(st.lists(st.tuples(st.floats(-5, 15), st.floats(0, 8), st.floats(0, 3)), max_size=20))
def test_occupancy_is_the_sum_of_overlaps(intervals: list[tuple[float, float, float]]) -> None:
    edges = np.linspace(0, 10, 8)
    start = np.array([s for s, _, _ in intervals])
    end = start + np.array([n for _, n, _ in intervals])
    weight = np.array([w for _, _, w in intervals])
    wanted = [
        sum(w * max(0.0, min(b, s + n) - max(a, s)) for s, n, w in intervals) / (b - a)
        for a, b in itertools.pairwise(edges)
    ]
    assert occupancy(start, end, edges, weight) == pytest.approx(wanted, abs=1e-9)
