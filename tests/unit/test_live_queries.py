"""The page's queries: an SQL that two engines understand alike (`test_store_live.py` asks both)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from pgtare.keeping.live import query_text, query_worker, spool_views
from pgtare.keeping.live.query_worker import QueryWorker
from pgtare.keeping.spool import manifest, reader, retention
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.writer import Spool
from tests.unit.live_findings import LOCK_KEY
from tests.unit.live_rows import END, SHOP, START, make_spool
from tests.unit.spool_rows import UNLIMITED

WINDOW = (int(START.timestamp()) * 10**6, int(END.timestamp()) * 10**6)
#: Values for all parameters of any query.
VALUES = {
    "step_us": 600_000_000,
    "source": "waits",
    "most": 100_000,
    "statement": 6001,
    "statements": [6001, 6002, -6003],
    "after_us": WINDOW[0],
    "until_us": WINDOW[1],
    "finding": LOCK_KEY,
    "since_from": 0,
    "since_to": 1 << 62,
}
Cells = list[list[Any]]


def without_comments(sql: str) -> str:
    return re.sub(r"--.*", "", sql)


def faults(sql: str) -> list[str]:
    """What DuckDB and ClickHouse would understand differently."""
    code = without_comments(sql)
    read = {*query_text.relations(code), *(("waits", "statements") if "{rows:" in code else ())}
    columns = {one.name for name in read & {*TABLES} for one in TABLES[name].columns}
    found = [
        f"alias {alias} shadows a column"
        for alias in re.findall(r"\bAS (\w+)", code)
        if alias in columns
    ]
    casts = r"CAST\([\w.]+ AS DOUBLE\) / CAST\([\w.]+ AS DOUBLE\)"
    if "/" in re.sub(casts, "", code):
        found.append("a division of what may be integers")
    if re.search(r"\b(LEFT|RIGHT|FULL|OUTER|CROSS)\b", code):
        found.append("a join that may miss: NULL here, 0 there")
    buckets = re.sub(r"\(ts_us - 1\) - \(ts_us - 1\) % \{step_us:Int64\}", "", code)
    words = r"%|date_trunc|time_bucket|toStartOf|INTERVAL|\bts\b|TIMESTAMP|avg\(|median|quantile"
    if re.search(words, buckets):
        found.append("times other than integers, or an average")
    if re.search(r"SELECT \*|::|\$|;", code):
        found.append("what only one engine has, or all columns")
    if "LIMIT" in code and "ORDER BY" not in code:
        found.append("a LIMIT without an order")
    return found


@pytest.mark.parametrize("name", query_text.names())
def test_a_query_means_the_same_to_both_engines(name: str) -> None:
    sql = query_text.text(name)
    assert faults(sql) == []
    assert sql.startswith("-- "), "the first line says what it answers"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(calls) AS calls FROM waits",
        "SELECT sum(a) / sum(b) AS x FROM waits",
        "SELECT 1 AS x FROM waits LEFT JOIN texts USING (text_hash)",
        "SELECT date_trunc('hour', ts) AS x FROM waits",
        "SELECT ts_us - ts_us % 60 AS x FROM waits",
        "SELECT calls::BIGINT AS x FROM waits",
        "SELECT server AS host FROM waits LIMIT 5",
    ],
)
def test_the_lint_finds(sql: str) -> None:
    assert len(faults(sql)) == 1


def test_only_known_identifiers_are_filled_in() -> None:
    with pytest.raises(ValueError, match="not one of the identifiers"):
        query_text.filled("breakdown", {"rows": "waits", "dimension": "1; DROP"}, ())
    with pytest.raises(KeyError):
        query_text.filled("breakdown", {"rows": "waits", "dimension": "event"}, ("1 = 1 OR x",))
    with pytest.raises(ValueError, match="no query is named"):
        query_text.text("../views/__init__")


@pytest.fixture(scope="module")
def worker(spool: Path) -> QueryWorker:
    return QueryWorker(spool)


def request(name: str, identifiers: dict[str, str], only: dict[str, Any], **more: Any) -> Any:
    """What a worker is asked, as it arrives there."""
    asked = {
        "query": name,
        "identifiers": identifiers,
        "only": only,
        "values": VALUES,
        "window": WINDOW,
        "grain": "tick",
        **more,
    }
    return json.loads(json.dumps(asked))


def by_duckdb(
    worker: QueryWorker, name: str, identifiers: dict[str, str], only: dict[str, Any], **more: Any
) -> tuple[list[str], Cells]:
    found = worker.answer(request(name, identifiers, only, **more))
    assert "error" not in found, found
    assert found["damaged"] == []
    return found["columns"], found["rows"]


def variants(name: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Identifiers and filters to try a query with."""
    sql = query_text.text(name)
    only: list[dict[str, Any]] = [{}, {"server": SHOP}] if "{filters}" in sql else [{}]
    if "dimension" in sql:
        pairs = [("waits", "type"), ("statements", "role"), ("samples", "query_id")]
        return [({"rows": rows, "dimension": by}, each) for rows, by in pairs for each in only]
    if name == "statement_breakdown":
        only.append({"event": "DataFileRead"})
        return [({"rows": rows}, each) for rows in ("statements", "samples") for each in only]
    if name in ("histogram", "statement_texts"):
        only = [*only, {"query_id": 6001}] if name == "histogram" else only
        return [({"rows": "statements"}, each) for each in only]
    return [({}, each) for each in only]


@pytest.mark.parametrize("grain", ["minute", "hour"])
@pytest.mark.parametrize("uneven_s", [0, 1830])
def test_sums_of_rolled_up_rows_are_those_of_ticks(
    grain: str, uneven_s: int, worker: QueryWorker
) -> None:
    window = (WINDOW[0] + uneven_s * 10**6, WINDOW[1])
    for rows, by in (("waits", "event"), ("statements", "role")):
        ask = {"rows": rows, "dimension": by}
        fine = by_duckdb(worker, "breakdown", ask, {}, window=window)
        coarse = by_duckdb(worker, "breakdown", ask, {}, window=window, grain=grain)
        assert fine == coarse


def test_long_windows_read_few_rows(spool: Path) -> None:
    content, _ = manifest.read(spool)
    assert content is not None
    hours = spool_views.spans("waits", *WINDOW, "hour", content.rolled_us)
    assert [span.table for span in hours] == ["waits_1h", "waits_1m", "waits"]
    assert [span.to_us for span in hours[:-1]] == [span.after_us for span in hours[1:]]
    ticks = spool_views.spans("waits", *WINDOW, "tick", content.rolled_us)
    assert [span.table for span in ticks] == ["waits"]


def test_the_answer_is_that_of_the_spool(spool: Path, worker: QueryWorker) -> None:
    """Average active sessions as docs/spool.md has them."""
    _, rows = by_duckdb(
        worker, "breakdown", {"rows": "waits", "dimension": "event"}, {}, grain="hour"
    )
    answer = reader.query(
        spool,
        "SELECT event, active_ns / covered_ns, active_ns FROM (SELECT server, event, sum(active_ns)"
        " AS active_ns FROM waits WHERE NOT idle AND NOT background GROUP BY ALL)"
        " JOIN (SELECT server, sum(covered_ns) AS covered_ns FROM ticks"
        " WHERE source = 'waits' GROUP BY ALL) USING (server) ORDER BY 3 DESC",
    )
    assert [tuple(row[:3]) for row in rows] == answer.rows


def test_the_worker_can_read_nothing_else(worker: QueryWorker) -> None:
    connection = worker._connection
    for sql in (
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/live-query'",
        "SET memory_limit = '10GB'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(sql)


def test_a_damaged_segment_is_left_out(tmp_path: Path) -> None:
    spool = make_spool(tmp_path / "spool")
    content, _ = manifest.read(spool)
    assert content is not None
    (segment,) = content.of_table("findings")
    (spool / segment.name).write_bytes(b"cut")
    found = QueryWorker(spool).answer(request("findings", {}, {}))
    assert (found["rows"], found["damaged"]) == ([], [segment.name])


def test_a_segment_that_is_damaged_within_is_left_out(tmp_path: Path) -> None:
    """Its size and its ends are as they were written."""
    spool = make_spool(tmp_path / "spool")
    content, _ = manifest.read(spool)
    assert content is not None
    (segment,) = content.of_table("findings")
    data = (spool / segment.name).read_bytes()
    (spool / segment.name).write_bytes(data[:4] + bytes(len(data) - 200) + data[-196:])
    found = QueryWorker(spool)
    answer = found.answer(request("findings", {}, {}))
    assert (answer.get("rows"), answer.get("damaged")) == ([], [segment.name]), answer
    assert found._damaged.keys() == {segment.name}


def test_a_damaged_segment_that_was_restored_is_read_again(tmp_path: Path) -> None:
    spool = make_spool(tmp_path / "spool")
    content, _ = manifest.read(spool)
    assert content is not None
    (segment,) = content.of_table("findings")
    asked = request("findings", {}, {})
    expected = QueryWorker(spool).answer(asked)
    whole = (spool / segment.name).read_bytes()
    for damaged in (b"cut", whole[:4] + bytes(len(whole) - 200) + whole[-196:]):
        (spool / segment.name).write_bytes(damaged)
        found = QueryWorker(spool)
        assert found.answer(asked)["damaged"] == [segment.name]
        (tmp_path / "copy").write_bytes(whole)
        (tmp_path / "copy").replace(spool / segment.name)
        assert found.answer(asked) == expected


def test_damaged_texts_are_named_in_any_window(tmp_path: Path) -> None:
    """They are read as a whole: their times say when they were seen first."""
    spool = make_spool(tmp_path / "spool")
    content, _ = manifest.read(spool)
    assert content is not None
    names = [segment.name for segment in content.of_table("texts")]
    for name in names:
        (spool / name).write_bytes(b"cut")
    window = (WINDOW[1] - 3600 * 10**6, WINDOW[1])
    asked = request("statement_texts", {"rows": "statements"}, {}, window=window)
    assert QueryWorker(spool).answer(asked)["damaged"] == sorted(names) != []


def test_what_agents_take_is_summed_over_spools() -> None:
    """A store has the rows of many agents, which run at the same time."""
    spools = ("a" * 36, "a" * 36, "b" * 36)  # an agent of the first was started again
    rows = [
        f"('', '{spool}-{number:010d}', 'cpu', 's', {seconds}::DOUBLE, {10**10}::BIGINT, "
        f"{WINDOW[0] + number * 10**7}::BIGINT)"
        for number, (spool, seconds) in enumerate(zip(spools, (1, 3, 5), strict=True), start=1)
    ]
    names = "server, segment, kind, unit, value, covered_ns, ts_us"
    with duckdb.connect() as connection:
        values = f"(VALUES {', '.join(rows)}) AS given({names})"
        connection.execute(f"CREATE TABLE agent AS SELECT * FROM {values}")

        def answer(name: str) -> tuple[Any, ...]:
            sql = query_text.filled(name, {}, ())
            given = query_text.values(sql, request(name, {}, {}))
            (found,) = connection.execute(query_text.for_duckdb(sql), given).fetchall()
            return tuple(found)

        assert answer("agent_cost")[1] == pytest.approx(0.2 + 0.5)
        *figures, each_ns = answer("agent_figures")
        assert figures == ["", "cpu", "s", 9.0, 5.0, 3, 2]
        assert 1e9 * each_ns == pytest.approx(0.2 + 0.5)


def test_the_newest_look_is_read_first(worker: QueryWorker) -> None:
    columns, every = by_duckdb(worker, "sessions_at", {}, {})
    _, first = by_duckdb(worker, "sessions_at", {}, {}, values={**VALUES, "most": 1})
    at = columns.index("seen_us")
    assert first[0][at] == max(row[at] for row in every) > min(row[at] for row in every)


def test_rows_dropped_for_room_do_not_hide_a_gap(tmp_path: Path) -> None:
    gaps = [
        retention.gap(kind, kind, WINDOW[0] + 1, WINDOW[0] + us, server=SHOP)
        for kind, us in (*[("dropped", 2)] * 300, ("absence", 3))
    ]
    with Spool.open(tmp_path, UNLIMITED) as spool:
        spool.commit({"gaps": pa.concat_tables(gaps)}, {})
    columns, found = by_duckdb(
        QueryWorker(tmp_path), "gaps", {}, {}, values={**VALUES, "most": 200}
    )
    kinds = [row[columns.index("reason")] for row in found]
    assert kinds == ["absence", *["dropped"] * 199]


def test_segments_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    spool = make_spool(tmp_path / "spool")
    found = QueryWorker(spool)
    found.answer(request("findings", {}, {}))
    known = set(found._checked)
    assert known
    found._checked.add("segments/gone")
    found._damaged["segments/gone"] = None
    os.utime(spool / manifest.NEWEST, (0, 0))  # as if it were replaced
    found.answer(request("findings", {}, {}))
    assert (found._checked, found._damaged) == (known, {})


@pytest.mark.slow
def test_duckdb_forgets_segments_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it knows of their files is freed only if the connection is closed."""
    monkeypatch.setattr(query_worker, "_MOST_GONE", 20)
    spool = make_spool(tmp_path / "spool")
    found = QueryWorker(spool)
    expected = found.answer(request("findings", {}, {}))
    connections = [found._connection]
    for number in range(60):
        found._checked.add(f"segments/gone{number}")
        os.utime(spool / manifest.NEWEST, (0, number))  # as if it were replaced
        assert found.answer(request("findings", {}, {})) == expected
        if found._connection is not connections[-1]:
            connections.append(found._connection)
    assert len(connections) == 4
    for closed in connections[:-1]:
        with pytest.raises(duckdb.ConnectionException):
            closed.execute("SELECT 1")
    with pytest.raises(duckdb.Error):
        found._connection.execute("SET enable_external_access = true")
