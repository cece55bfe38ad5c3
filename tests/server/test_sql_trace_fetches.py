"""Fetches in a row make one record, and what happens between or within them ends it."""

import itertools

import psycopg
import pytest

from tests.sessions import Connection
from tests.trace_records import FAILED, check_whole, trace_of, traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: In ns; fetches that begin within it make one record.
MS = 1_000_000
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
    """However long a fetch, or what is between two, takes where the machine is busy."""
    trace = traced(onlooker, client, LOOP.format(what="g", rows=50_000, body="NULL;"))
    check_whole(trace)
    fetches = sorted(trace.calls("fetch"), key=lambda f: f.start)
    (execution,) = [e for e in trace.calls("execute") if e.depth == 1]
    # the first run is the execution's; the last fetch finds nothing
    assert sum(f.fetches for f in fetches) == 50_000
    assert sum(f.rows for f in fetches) == 49_999
    # another record is begun where a fetch begins a millisecond after the first in it, not before
    starts = [f.start for f in fetches]
    assert all(late - early > 0.999 * MS for early, late in itertools.pairwise(starts))
    # ... and no later: what is between fetches of a record lies before its last one begins
    assert all(f.time - f.start - f.busy < MS for f in fetches)
    assert max(f.fetches for f in fetches) > 10
    assert {f.execution for f in fetches} == {execution.call}
    assert all(0 < f.busy <= f.time - f.start for f in fetches)
    ends = [f.time for f in fetches]
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


def test_a_fetch_that_fails_is_reported(client: Connection, onlooker: Connection) -> None:
    loop = LOOP.format(what="1 / (30 - g)", rows=40, body="NULL;")
    caught = loop.replace("END $$", "EXCEPTION WHEN division_by_zero THEN NULL; END $$")
    trace = traced(onlooker, client, caught, "SELECT 'after'")
    check_whole(trace)
    fetches = trace.calls("fetch")
    assert sum(f.fetches for f in fetches) == 29
    assert (fetches[-1].flags & FAILED, fetches[-1].sqlstate) == (FAILED, "22012")
    assert trace.one("execute", "SELECT 'after'").depth == 0


def test_a_fetch_that_waited_stands_alone(client: Connection, onlooker: Connection) -> None:
    # long, so that no other fetch that the machine holds up takes as much
    some = "CASE WHEN g % 40 = 20 THEN pg_sleep(0.2) END"
    trace = traced(onlooker, client, LOOP.format(what=some, rows=120, body="NULL;"), level=8)
    check_whole(trace)
    long = [f for f in trace.calls("fetch") if f.busy > 190_000_000]
    assert [f.fetches for f in long] == [1] * 3
    assert all(f.busy == f.time - f.start for f in long)
    assert sum(f.fetches for f in trace.calls("fetch")) == 120


def test_an_error_within_a_fetch_ends_what_it_left_and_no_more(
    client: Connection, onlooker: Connection
) -> None:
    client.execute(
        "CREATE OR REPLACE FUNCTION fails_within(n int) RETURNS int LANGUAGE plpgsql AS $$"
        " DECLARE c CURSOR FOR SELECT 1 / (5 - g) AS n FROM generate_series(1, 9) g; s int := 0;"
        " BEGIN FOR o IN c LOOP s := s + 1; END LOOP; RETURN s;"
        " EXCEPTION WHEN division_by_zero THEN RETURN (SELECT count(*) FROM pg_am); END $$"
    )
    some = "CASE WHEN g % 10 = 5 THEN fails_within(g) ELSE g END"
    trace = traced(onlooker, client, LOOP.format(what=some, rows=40, body="NULL;"))
    check_whole(trace)
    outer = [f for f in trace.calls("fetch") if f.depth == 1]
    inner = [f for f in trace.calls("fetch") if f.depth > 1]
    assert sum(f.fetches for f in outer) == 40
    assert not any(f.flags & FAILED for f in outer)
    # of each inner loop the first row is the execution's, the fifth fails
    failed = [f for f in inner if f.flags & FAILED]
    assert [f.sqlstate for f in failed] == ["22012"] * 4
    assert sum(f.fetches for f in inner) == 4 * 4
    # what the handlers ran lies within the outer fetches that failed calls were caught in
    around = {f.call for f in outer if f.fetches == 1}
    handlers = [e for e in trace.calls("execute") if e.depth == 2 and not e.flags & FAILED]
    assert len(handlers) == 4
    assert {e.parent for e in handlers} <= around
    assert {f.parent for f in failed} <= around


def test_an_error_in_one_fetch_leaves_the_next_ones_whole(
    client: Connection, onlooker: Connection
) -> None:
    body = """
    DO $$
    DECLARE
      numbers CURSOR FOR SELECT 1 / (g - 4) AS n FROM generate_series(1, 9) g;
      others CURSOR FOR SELECT g AS n FROM generate_series(1, 50) g;
      found record;
    BEGIN
      BEGIN
        FOR one IN numbers LOOP NULL; END LOOP;
      EXCEPTION WHEN division_by_zero THEN
        RAISE NOTICE 'caught';
      END;
      FOR one IN others LOOP NULL; END LOOP;
      PERFORM count(*) FROM pg_am;
    END $$
    """
    trace = traced(onlooker, client, body)
    check_whole(trace)
    fetches = trace.calls("fetch")
    (failed,) = [f for f in fetches if f.flags & FAILED]
    assert failed.sqlstate == "22012"
    # one record as a rule; a new one begins after a millisecond
    assert sum(f.fetches for f in fetches if f.execution == failed.execution) == 3
    whole = [f for f in fetches if f.execution != failed.execution]
    assert sum(f.fetches for f in whole) == 50
    assert {(f.depth, f.parent) for f in whole} == {(failed.depth, failed.parent)}
    (last,) = [e for e in trace.calls("execute") if trace.texts()[e.text].find("pg_am") > 0]
    assert (last.depth, last.parent) == (failed.depth, failed.parent)
    assert trace.one("utility").flags & FAILED == 0


def test_a_fetch_that_fails_uncaught_is_reported_before_its_error(
    client: Connection, onlooker: Connection
) -> None:
    client.execute("SET sql_trace.level = 1")
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute(LOOP.format(what="1 / (30 - g)", rows=40, body="NULL;").encode())
    trace = traced(onlooker, client, "SELECT 'after'")
    whole = trace_of(onlooker, client.info.backend_pid)
    check_whole(whole)
    fetch = whole.calls("fetch")[-1]
    (error,) = whole.of("error")
    assert (fetch.flags & FAILED, fetch.sqlstate, fetch.depth) == (FAILED, "22012", 1)
    assert fetch.number < error.number
    assert (error.depth, error.call) == (0, 0)
    assert trace.one("execute", "SELECT 'after'").depth == 0
