"""Fetches in a row make one record, and what happens between or within them ends it."""

import pytest

from tests.server.test_sql_trace_calls import check_whole
from tests.server.trace_tools import FAILED, Connection, traced

pytest_plugins = ["tests.server.fix_trace"]
pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

LOOP = """
DO $$
DECLARE
  numbers CURSOR FOR SELECT {what} AS n FROM generate_series(1, {rows}) g;
BEGIN
  FOR one IN numbers LOOP
    {body}
  END LOOP;
END $$
"""


def test_fetches_in_a_row_make_few_records(client: Connection, onlooker: Connection) -> None:
    trace = traced(onlooker, client, LOOP.format(what="g", rows=5000, body="NULL;"))
    check_whole(trace)
    fetches = trace.calls("fetch")
    (execution,) = [e for e in trace.calls("execute") if e.depth == 1]
    # the first run is the execution's; the last fetch finds nothing
    assert sum(f.fetches for f in fetches) == 5000
    assert sum(f.rows for f in fetches) == 4999
    assert len(fetches) < 500
    assert max(f.fetches for f in fetches) > 10
    assert {f.execution for f in fetches} == {execution.call}
    assert all(0 < f.busy <= f.time - f.start for f in fetches)
    assert all(f.time - f.start < 2_000_000 or f.fetches == 1 for f in fetches)
    ends = [f.time for f in sorted(fetches, key=lambda f: f.start)]
    assert ends == sorted(ends)


def test_calls_between_and_within_fetches_end_a_record(
    client: Connection, onlooker: Connection
) -> None:
    client.execute(
        "CREATE OR REPLACE FUNCTION inner_loop(n int) RETURNS int LANGUAGE plpgsql AS $$"
        " DECLARE c CURSOR FOR SELECT generate_series(1, n) AS n; s int := 0;"
        " BEGIN FOR o IN c LOOP s := s + o.n; END LOOP; RETURN s; END $$"
    )
    some = "CASE WHEN g % 10 = 5 THEN inner_loop(g) ELSE g END"
    between = traced(
        onlooker, client, LOOP.format(what="g", rows=40, body="PERFORM count(*) FROM pg_am;")
    )
    within = traced(onlooker, client, LOOP.format(what=some, rows=100, body="NULL;"))
    check_whole(between)
    check_whole(within)
    assert [f.fetches for f in between.calls("fetch")] == [1] * 40
    outer = [f for f in within.calls("fetch") if f.depth == 1]
    inner = [f for f in within.calls("fetch") if f.depth > 1]
    assert sum(f.fetches for f in outer) == 100
    # loops over 5, 15, ... 95 rows, the first of which is the execution's
    assert sum(f.fetches for f in inner) == sum(range(5, 100, 10))
    around = {e.parent for e in within.calls("execute")}
    alone = [f for f in outer if f.call in around]
    assert len(alone) == 10
    assert {f.fetches for f in alone} == {1}
    assert any(f.fetches > 3 for f in outer)


def test_a_fetch_that_fails_is_told(client: Connection, onlooker: Connection) -> None:
    loop = LOOP.format(what="1 / (30 - g)", rows=40, body="NULL;")
    caught = loop.replace("END $$", "EXCEPTION WHEN division_by_zero THEN NULL; END $$")
    trace = traced(onlooker, client, caught, "SELECT 'after'")
    check_whole(trace)
    fetches = trace.calls("fetch")
    assert sum(f.fetches for f in fetches) == 29
    assert (fetches[-1].flags & FAILED, fetches[-1].sqlstate) == (FAILED, "22012")
    assert trace.one("execute", "SELECT 'after'").depth == 0


def test_a_fetch_that_waited_stands_alone(client: Connection, onlooker: Connection) -> None:
    some = "CASE WHEN g % 40 = 20 THEN pg_sleep(0.003) END"
    trace = traced(onlooker, client, LOOP.format(what=some, rows=120, body="NULL;"), level=8)
    check_whole(trace)
    long = [f for f in trace.calls("fetch") if f.busy > 3_000_000]
    assert [f.fetches for f in long] == [1] * 3
    assert all(f.busy == f.time - f.start for f in long)
    assert sum(f.fetches for f in trace.calls("fetch")) == 120
