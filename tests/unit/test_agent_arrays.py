"""Arrays that a server sends to an agent: what is not as long as it says is refused, not read."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from psycopg import pq
from psycopg.adapt import AdaptersMap

from pgtare.keeping.agent.server_session import _read_arrays_safely

INT4_ARRAY = 1007


def loaded(data: bytes, oid: int = INT4_ARRAY) -> Any:
    adapters = AdaptersMap(psycopg.adapters)
    conn = SimpleNamespace(adapters=adapters)
    _read_arrays_safely(cast("psycopg.Connection[Any]", conn))
    loader = adapters.get_loader(oid, pq.Format.BINARY)
    assert loader is not None
    return loader(oid).load(data)


def array(sizes: list[int], items: bytes, *, item_oid: int = 23) -> bytes:
    head = struct.pack("!iii", len(sizes), 0, item_oid)
    return head + b"".join(struct.pack("!ii", size, 1) for size in sizes) + items


def item(value: int) -> bytes:
    return struct.pack("!ii", 4, value)


def test_arrays_are_read() -> None:
    assert loaded(array([2], item(7) + item(8))) == [7, 8]
    assert loaded(array([2, 1], item(7) + item(8))) == [[7], [8]]
    assert loaded(array([2], struct.pack("!i", -1) + item(8))) == [None, 8]
    assert loaded(array([], b"")) == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(array([50_000_000], item(7)), id="fewer items"),
        pytest.param(array([20_000_000, 0], b""), id="empty arrays"),
        pytest.param(array([2], item(7)), id="one item less"),
        pytest.param(array([1], struct.pack("!i", 1000) + b"x"), id="a long item"),
        pytest.param(array([1] * 7, item(7)), id="dimensions"),
        pytest.param(struct.pack("!iii", 1 << 30, 0, 23), id="dimensions without sizes"),
        pytest.param(array([1], item(7) + b"x"), id="more"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_is_not_as_long_as_it_says_is_refused(data: bytes) -> None:
    with pytest.raises(psycopg.DataError):
        loaded(data)
