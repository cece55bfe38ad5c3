"""The page over a store: the same answers as over the spool whose rows were sent there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgtare.keeping.live import query_text, store_views
from pgtare.keeping.live.query_worker import QueryWorker
from pgtare.keeping.live.store_worker import SETTINGS, StoreWorker
from pgtare.keeping.store import pushed_rows
from pgtare.keeping.store.connection import StoreConnection
from pgtare.keeping.store.pusher import SpoolPusher
from tests.unit.live_rows import LOCKED, SHOP, make_spool
from tests.unit.spool_rows import newest
from tests.unit.store_engine import engine, new_store
from tests.unit.test_live_queries import WINDOW, request, variants


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_spool(tmp_path_factory.mktemp("live") / "spool")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, spool: Path) -> Iterator[StoreConnection]:
    with engine(tmp_path_factory.mktemp("engine")) as client:
        found = new_store(client)
        found.close = lambda: None  # type: ignore[method-assign]
        pusher = SpoolPusher(spool, lambda: found, 1, lambda level, why: None)
        while pusher.step():
            pass
        yield found


@pytest.fixture
def of_store(store: StoreConnection) -> StoreWorker:
    return StoreWorker(lambda: store)


@pytest.fixture(scope="module")
def of_spool(spool: Path) -> QueryWorker:
    return QueryWorker(spool)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, list) or isinstance(right, list):
        return (left or []) == (right or [])  # a store has no NULL of lists
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
    return type(left) is type(right) and left == right


def check(asked: Any, of_spool: QueryWorker, of_store: StoreWorker) -> None:
    one = json.loads(json.dumps(of_spool.answer(asked)))
    other = json.loads(json.dumps(of_store.answer(asked)))
    assert "error" not in other, other
    assert one["columns"] == other["columns"]
    assert len(one["rows"]) == len(other["rows"]) > 0, asked
    for left, right in zip(one["rows"], other["rows"], strict=True):
        assert all(map(same, left, right)), (left, right)


@pytest.mark.parametrize("name", query_text.names())
def test_store_and_spool_answer_alike(
    name: str, of_spool: QueryWorker, of_store: StoreWorker
) -> None:
    for identifiers, only in variants(name):
        check(request(name, identifiers, only), of_spool, of_store)


@pytest.mark.parametrize("grain", ["minute", "hour"])
@pytest.mark.parametrize("uneven_s", [0, 1830])
def test_long_windows_have_the_same_sums(
    grain: str, uneven_s: int, of_spool: QueryWorker, of_store: StoreWorker
) -> None:
    window = [WINDOW[0] + uneven_s * 10**6, WINDOW[1]]
    for rows, by in (("waits", "event"), ("statements", "role")):
        asked = request(
            "breakdown", {"rows": rows, "dimension": by}, {}, window=window, grain=grain
        )
        check(asked, of_spool, of_store)


def test_recordings_are_those_that_began_in_a_window(
    of_spool: QueryWorker, of_store: StoreWorker
) -> None:
    """The agent reads them later."""
    begun = int(LOCKED[0].timestamp()) * 10**6
    window = [begun, begun + 60 * 10**6]
    check(request("recordings", {}, {}, window=window), of_spool, of_store)


def test_the_state_is_that_of_the_spool(of_spool: QueryWorker, of_store: StoreWorker) -> None:
    one, other = of_spool.answer({"state": True}), of_store.answer({"state": True})
    assert one["spans"] == other["spans"]
    assert (other["seq"], other["left_out"]) == (one["seq"], [])


def test_partial_commits_are_left_out(
    spool: Path, store: StoreConnection, of_store: StoreWorker
) -> None:
    uuid = newest(spool).uuid
    asked = request("breakdown", {"rows": "waits", "dimension": "event"}, {"server": SHOP})
    before = of_store.answer(asked)["rows"]
    rows = store.rows(f"SELECT DISTINCT toString(toDate(ts)), seq FROM {store.database}.waits")
    places = [("waits", day, seq) for day, seq in rows]
    pushed_rows.mark(store, uuid, places, partial=True)
    try:
        fresh = StoreWorker(lambda: store)
        assert fresh.answer(asked)["rows"] == []
        (note,) = fresh.answer({"state": True})["left_out"]
        assert note.endswith("commits of waits")
        other = request("histogram", {"rows": "statements"}, {})
        assert fresh.answer(other)["rows"], "other tables stay"
    finally:
        pushed_rows.mark(store, uuid, places, partial=False)
    assert StoreWorker(lambda: store).answer(asked)["rows"] == before


def test_spools_that_are_rolled_up_differently_are_asked_apart() -> None:
    hour = 3600 * 10**6
    marks = {
        "one": {"waits_1h": 5 * hour, "waits_1m": 5 * hour},
        "two": {"waits_1h": 5 * hour, "waits_1m": 5 * hour},
        "old": {"waits_1h": 2 * hour, "waits_1m": 2 * hour},
    }
    text = store_views.with_relations(["waits"], "db", (0, 6 * hour), "hour", marks)
    assert text.count("FROM db.waits_1h ") == 2
    assert "spool IN ('one', 'two')" in text
    assert "spool IN ('old')" in text
    same_marks = {name: marks["one"] for name in marks}
    text = store_views.with_relations(["waits"], "db", (0, 6 * hour), "hour", same_marks)
    assert "spool IN" not in text


def test_every_query_has_limits() -> None:
    """The state, too, and what was sent: with row policies they read all rows of their tables."""
    asked: dict[str, dict[str, Any]] = {}

    class Client:
        def query(
            self, sql: str, parameters: dict[str, Any], settings: dict[str, Any]
        ) -> SimpleNamespace:
            asked[sql] = settings
            return SimpleNamespace(column_names=[], result_rows=[])

    client: Any = Client()
    StoreWorker(lambda: StoreConnection(client, "db")).answer({"state": True})
    for table in (" UNION ALL ", "db.pushes", "db.partial_segments"):
        (settings,) = (found for sql, found in asked.items() if table in sql)
        assert settings == SETTINGS


def test_an_unreachable_store_is_one_sentence() -> None:
    from pgtare.keeping.store.address import read
    from pgtare.keeping.store.connection import connect

    worker = StoreWorker(lambda: connect(read("clickhouse://x@127.0.0.1:9/pgtare")))
    assert "cannot be reached" in worker.answer({"state": True})["error"]
