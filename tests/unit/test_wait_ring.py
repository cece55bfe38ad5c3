"""The decoder of a ring of waits against a plain one, and sums over time against loops."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtare.errors import MeasurementError
from pgtare.observing.trace.output.active_sessions import occupancy
from pgtare.postgres import wait_ring

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
