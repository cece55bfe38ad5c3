"""Each kind of call in a trace: what is recorded of it, and which call it is part of."""

import json
import time

import psycopg
import pytest

from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, session
from tests.trace_records import (
    ABORTED,
    FAILED,
    Trace,
    check_whole,
    drain,
    traced,
    tracing_session,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def test_simple_statement(client: Connection, onlooker: Connection) -> None:
    trace = traced(onlooker, client, "SELECT count(*) FROM pg_class WHERE relname ~ 'x'")
    check_whole(trace)
    kinds = [r.call_kind for r in trace.of("call")]
    assert kinds == ["parse", "plan", "execute", "commit"], trace.describe()
    execute = trace.one("execute", "SELECT count")
    assert execute.rows == 1
    assert execute.hit + execute.read > 0
    assert execute.query_id == trace.one("parse", "SELECT count").query_id != 0
    assert execute.parent == 0
    assert execute.depth == 0
    request = trace.of("request")[0]
    assert (request.status, request.messages) == ("I", 1)
    assert request.start <= trace.one("parse").start
    begin, commit = trace.of("transaction")
    assert (begin.event, commit.event, commit.xid) == ("begin", "commit", 0)


def test_plan_tree_and_text_are_written_once(client: Connection, onlooker: Connection) -> None:
    sql = "SELECT * FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE c.oid = 2662"
    trace = traced(onlooker, client, sql, sql)
    (plan,) = trace.of("plan")
    nodes = json.loads(plan.json)
    assert plan.nodes == len(nodes) >= 3
    assert (nodes[0]["id"], nodes[0]["parent"], nodes[0]["kind"]) == (0, -1, "Nested Loop")
    assert {n["relation"] for n in nodes[1:]} == {"pg_catalog.pg_class", "pg_catalog.pg_index"}
    assert {n["parent"] for n in nodes[1:]} == {0}
    executions = trace.calls("execute")
    assert [e.plan for e in executions] == [plan.plan] * 2
    assert list(trace.texts().values()).count(sql) == 1


def test_statements_that_differ_in_a_literal_share_a_plan(
    client: Connection, onlooker: Connection
) -> None:
    one = "SELECT relname FROM pg_class WHERE oid = {}"
    trace = traced(onlooker, client, one.format(1259), one.format(1247), one.format(1255))
    (plan,) = trace.of("plan")
    executions = trace.calls("execute", "SELECT relname")
    assert [e.plan for e in executions] == [plan.plan] * 3
    assert len({e.text for e in executions}) == 3
    # another estimate is another plan, of the same node
    trace = traced(onlooker, client, *(f"SELECT generate_series(1, {n})" for n in (10, 20)))
    plans = [json.loads(p.json) for p in trace.of("plan") if "ProjectSet" in p.json]
    assert [p[0]["rows"] for p in plans] == [10, 20]


def test_several_statements_of_one_message(client: Connection, onlooker: Connection) -> None:
    trace = traced(onlooker, client, "SELECT 1 AS a; SELECT 2 AS b;  SELECT 3 AS c")
    check_whole(trace)
    texts = trace.texts()
    ran = [texts[r.text] for r in trace.calls("execute")]
    assert ran == ["SELECT 1 AS a", "SELECT 2 AS b", "SELECT 3 AS c"]
    assert [r.messages for r in trace.of("request")] == [3]


@pytest.mark.slow
def test_a_long_message_is_read_once_for_all_its_statements(client: Connection) -> None:
    """Not once for each, which would make the time the square of the length."""
    client.execute("SET sql_trace.level = 1")

    def took_s(sql: str) -> float:
        took = []
        for _ in range(3):
            began = time.monotonic()
            client.execute(sql.encode())
            took.append(time.monotonic() - began)
        return min(took)

    statements, comment = "SELECT 1;" * 500, "/*" + " " * (64 << 20) + "*/"
    apart = took_s(statements) + took_s("SELECT 1;" + comment)
    assert took_s(statements + comment) < 2 * apart + 0.5


def test_prepared_statement_is_parsed_once(client: Connection, onlooker: Connection) -> None:
    with tracing_session(onlooker, client) as trace:
        for value in range(20):
            client.execute("SELECT %s::int AS prepared", (value,), prepare=True)
    check_whole(trace)
    assert len(trace.calls("parse", "SELECT $1::int")) == 1
    assert len(trace.calls("bind", "SELECT $1::int")) == 20
    executions = trace.calls("execute", "SELECT $1::int")
    assert len(executions) == 20
    assert all(e.rows == 1 for e in executions)
    # the first five plans are made for their values, then one is kept
    assert 5 <= len(trace.calls("plan")) <= 7


def portals_left_open(tracer: Cluster, onlooker: Connection, setting: str, times: int) -> Trace:
    """Within a transaction a statement's portal lives on until another takes its place."""
    with session(tracer) as client:
        client.execute(f"SET {setting}".encode())
        with tracing_session(onlooker, client) as trace, client.transaction():
            for value in range(times):
                client.execute("SELECT %s::int AS left_open", (value,), prepare=True)
    return trace


def test_text_of_a_prepared_statement_outlives_the_ring(
    tracer: Cluster, onlooker: Connection
) -> None:
    """Executed until its text has been overwritten many times, its text is still in the trace."""
    with session(tracer, options="-c sql_trace.ring_size=64kB") as client:
        client.execute("SET sql_trace.level = 4")
        for i in range(2000):
            client.execute("SELECT %s::int /*for hours*/", (i,), prepare=True)
        start, lost, _, data = drain(onlooker, client.info.backend_pid)
    found = Trace(data)
    assert lost > 0
    assert start > 3 * 65536
    calls = [c for c in found.of("call") if c.call_kind == "execute"]
    assert len(calls) > 20
    texts = found.texts()
    assert all(texts[c.text].endswith("/*for hours*/") for c in calls[len(calls) // 2 :])


def test_portal_that_the_next_bind_closes(tracer: Cluster, onlooker: Connection) -> None:
    trace = portals_left_open(tracer, onlooker, "sql_trace.rowsource_sampling = 1", 10)
    check_whole(trace)
    executions = trace.calls("execute", "SELECT $1::int")
    assert [e.rows for e in executions] == [1] * 10
    measured = {r.call for r in trace.of("rowsources")}
    assert {e.call for e in executions} <= measured
    # the bind that closes it does not take over its time
    for bind in trace.calls("bind", "SELECT $1::int"):
        assert bind.busy <= bind.time - bind.start


def test_portal_of_a_drawn_request_is_written_by_one_that_is_not(
    tracer: Cluster, onlooker: Connection
) -> None:
    trace = portals_left_open(tracer, onlooker, "sql_trace.statement_rate = 0.5", 60)
    binds = trace.calls("bind", "SELECT $1::int")
    assert 5 < len(binds) < 55  # missed once in 10^10
    assert len(trace.calls("execute", "SELECT $1::int")) == len(binds)


def test_nested_statements(client: Connection, onlooker: Connection) -> None:
    client.execute(
        "CREATE OR REPLACE FUNCTION inner_one() RETURNS int LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM count(*) FROM pg_am; RETURN 1; END$$; "
        "CREATE OR REPLACE FUNCTION outer_one() RETURNS int LANGUAGE plpgsql AS "
        "$$BEGIN RETURN (SELECT inner_one() FROM pg_database LIMIT 1); END$$"
    )
    trace = traced(onlooker, client, "SELECT outer_one()")
    check_whole(trace)
    outer = trace.one("execute", "SELECT outer_one()")
    middle = trace.one("execute", "(SELECT inner_one()")
    inner = trace.one("execute", "SELECT count(*) FROM pg_am")
    assert [outer.depth, middle.depth, inner.depth] == [0, 1, 2]
    assert (outer.parent, middle.parent, inner.parent) == (0, outer.call, middle.call)
    assert outer.hit >= middle.hit >= inner.hit > 0


def test_triggers_are_nested(client: Connection, onlooker: Connection) -> None:
    client.execute(
        "CREATE TEMP TABLE rung (n int); CREATE TEMP TABLE log (n int); "
        "CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO log VALUES (NEW.n); RETURN NULL; END$$; "
        "CREATE TRIGGER t AFTER INSERT ON rung FOR EACH ROW EXECUTE FUNCTION note(); "
        "CREATE CONSTRAINT TRIGGER d AFTER INSERT ON rung DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION note()"
    )
    trace = traced(onlooker, client, "INSERT INTO rung SELECT generate_series(1, 3)")
    check_whole(trace)
    outer = trace.one("execute", "INSERT INTO rung")
    inner = trace.calls("execute", "INSERT INTO log")
    assert outer.rows == 3
    assert [i.parent for i in inner[:3]] == [outer.call] * 3
    # deferred ones run after the statement
    assert len(inner) == 6
    assert outer.call not in {i.parent for i in inner[3:]}
    assert outer.local_hit > 0


def test_recursion_of_depth_100(client: Connection, onlooker: Connection) -> None:
    client.execute(
        "CREATE OR REPLACE FUNCTION deeper(n int) RETURNS int LANGUAGE plpgsql AS "
        "$$DECLARE r int; BEGIN IF n = 0 THEN RETURN 0; END IF; "
        # with FROM, or PL/pgSQL of 19 takes the innermost for an expression
        "SELECT deeper(n - 1) + 1 INTO r FROM (VALUES (1)) v; RETURN r; END$$"
    )
    trace = traced(onlooker, client, "SELECT deeper(100)", "SELECT deeper(100)")
    check_whole(trace)
    assert {r.depth for r in trace.calls("execute")} == set(range(101))


def test_procedure_with_commit(client: Connection, onlooker: Connection) -> None:
    client.execute(
        "CREATE TABLE IF NOT EXISTS kept (n int); "
        "CREATE OR REPLACE PROCEDURE commits() LANGUAGE plpgsql AS "
        "$$BEGIN FOR i IN 1..3 LOOP INSERT INTO kept VALUES (i); COMMIT; END LOOP; "
        "INSERT INTO kept VALUES (4); ROLLBACK; END$$"
    )
    trace = traced(onlooker, client, "CALL commits()")
    check_whole(trace)
    call = trace.one("utility", "CALL commits()")
    commits = trace.calls("commit")
    assert [c.parent for c in commits[:3]] == [call.call] * 3
    assert all(c.wal_bytes > 0 for c in commits[:3])
    events = trace.of("transaction")
    xids = [e.xid for e in events if e.event == "commit" and e.xid]
    assert len(set(xids)) == 3
    assert [e.event for e in events].count("abort") == 1
    assert len(trace.calls("execute", "INSERT INTO kept")) == 4


def test_cursor(client: Connection, onlooker: Connection) -> None:
    trace = traced(
        onlooker,
        client,
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT * FROM generate_series(1, 100)",
        "FETCH 10 FROM c",
        "SELECT 'between'",
        "FETCH 20 FROM c",
        "CLOSE c",
        "COMMIT",
    )
    check_whole(trace)
    execution = trace.one("execute", "DECLARE c CURSOR")
    fetches = trace.calls("fetch")
    assert [f.rows for f in fetches] == [10, 20]
    assert {f.execution for f in fetches} == {execution.call}
    assert [f.parent for f in fetches] == [
        trace.one("utility", "FETCH 10").call,
        trace.one("utility", "FETCH 20").call,
    ]
    assert execution.rows == 30
    assert execution.parent == trace.one("utility", "DECLARE c").call


def test_cursor_held_open_beyond_its_transaction(client: Connection, onlooker: Connection) -> None:
    trace = traced(
        onlooker,
        client,
        "BEGIN",
        "DECLARE held CURSOR WITH HOLD FOR SELECT * FROM generate_series(1, 50)",
        "FETCH 5 FROM held",
        "COMMIT",
        "FETCH 5 FROM held",
        "CLOSE held",
    )
    check_whole(trace)
    assert trace.one("execute", "DECLARE held").flags & ABORTED == 0


def test_portal_fetched_in_pieces(tracer: Cluster, onlooker: Connection) -> None:
    """By messages of the protocol, with a row limit in Execute."""
    with (
        session(tracer) as client,
        tracing_session(onlooker, client) as trace,
        client.transaction(),
        client.cursor("portal") as cursor,
    ):
        cursor.itersize = 10
        cursor.execute("SELECT * FROM generate_series(1, 25)")
        assert len(cursor.fetchall()) == 25
    check_whole(trace)
    assert trace.calls("fetch")


def test_copy(client: Connection, onlooker: Connection) -> None:
    client.execute("CREATE TEMP TABLE target (n int)")
    with tracing_session(onlooker, client) as trace:
        with client.cursor().copy("COPY target FROM STDIN") as copy:
            for n in range(1000):
                copy.write_row((n,))
        with client.cursor().copy("COPY target TO STDOUT") as copy:
            assert len(list(copy.rows())) == 1000
        with client.cursor().copy("COPY (SELECT * FROM target LIMIT 7) TO STDOUT") as copy:
            list(copy.rows())
    check_whole(trace)
    assert trace.one("utility", "COPY target FROM").rows == 1000
    assert trace.one("utility", "COPY target TO").rows == 1000
    query = trace.one("utility", "COPY (SELECT")
    (execution,) = [c for c in trace.calls("execute") if c.parent == query.call]
    assert execution.depth == 1
    assert execution.rows == 7


def test_two_phase_commit(client: Connection, onlooker: Connection) -> None:
    trace = traced(
        onlooker,
        client,
        "CREATE TABLE two_phase (n int)",
        "BEGIN",
        "INSERT INTO two_phase VALUES (1)",
        "PREPARE TRANSACTION 'p'",
        "COMMIT PREPARED 'p'",
        "DROP TABLE two_phase",
    )
    check_whole(trace)
    assert [e.event for e in trace.of("transaction")].count("prepare") == 1
    (prepared,) = [e for e in trace.of("transaction") if e.event == "prepare"]
    assert prepared.xid > 0
    assert trace.one("utility", "COMMIT PREPARED").wal_bytes > 0


def test_pipeline(client: Connection, onlooker: Connection) -> None:
    with tracing_session(onlooker, client) as trace, client.pipeline():
        for n in range(5):
            client.execute("SELECT %s::int + 1", (n,))
    check_whole(trace)
    assert len(trace.calls("execute", "SELECT $1::int + 1")) == 5
    assert sum(r.messages for r in trace.of("request")) == 5


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELECT 1/(relnatts - relnatts) FROM pg_class", "22012"),
        ("SELECT * FROM missing_table", "42P01"),
        ("SELEC 1", "42601"),
        ("SELECT pg_terminate_backend('x')", "22P02"),
        ("DROP TABLE missing_table", "42P01"),
    ],
)
def test_errors(client: Connection, onlooker: Connection, sql: str, state: str) -> None:
    with tracing_session(onlooker, client) as trace:
        with pytest.raises(psycopg.Error):
            client.execute(sql.encode())
        client.execute("SELECT 'after'")
    check_whole(trace)
    (error,) = trace.of("error")
    assert (error.sqlstate, error.severity, error.message) == (state, 1, "")
    assert trace.texts()[error.text] == sql
    assert [e.event for e in trace.of("transaction")].count("abort") <= 1
    if state == "22012":  # the call that failed says with what
        failed = trace.calls("execute")[0]
        assert failed.flags & FAILED
        assert failed.sqlstate == state
        assert trace.calls("rollback")
    # a session goes on at depth 0
    assert trace.one("execute", "SELECT 'after'").depth == 0


def test_error_that_a_function_catches(client: Connection, onlooker: Connection) -> None:
    trace = traced(
        onlooker,
        client,
        "DO $$BEGIN FOR i IN 1..3 LOOP BEGIN PERFORM 1/(oid::int - oid::int) FROM pg_am; "
        "EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; "
        "PERFORM 'fine' FROM pg_am; END$$",
    )
    check_whole(trace)
    failed = trace.calls("execute", "SELECT 1/(oid")
    assert [f.sqlstate for f in failed] == ["22012"] * 3
    assert [e.event for e in trace.of("transaction")].count("subabort") == 3
    assert not trace.of("error")
    fine = trace.one("execute", "SELECT 'fine'")
    assert (fine.depth, fine.flags & FAILED) == (1, 0)


def test_open_cursor_in_an_aborted_transaction(client: Connection, onlooker: Connection) -> None:
    trace = traced(
        onlooker,
        client,
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT * FROM generate_series(1, 9)",
        "FETCH 2 FROM c",
        "ROLLBACK",
        "SELECT 1",
    )
    check_whole(trace)
    assert trace.one("execute", "DECLARE c").rows == 2
    assert [e.event for e in trace.of("transaction")].count("abort") == 1


@pytest.mark.parametrize("undone", ["ROLLBACK", "ROLLBACK TO a"])
def test_cursor_that_an_untraced_request_aborts(
    client: Connection, onlooker: Connection, undone: str
) -> None:
    """It ran in a request that was traced."""
    trace = traced(
        onlooker,
        client,
        "BEGIN",
        "SAVEPOINT a",
        "DECLARE c CURSOR FOR SELECT * FROM generate_series(1, 9)",
        "FETCH 2 FROM c",
        "SET LOCAL sql_trace.level = 0",
        undone,
    )
    check_whole(trace)
    execution = trace.one("execute", "DECLARE c")
    assert (execution.rows, execution.flags & ABORTED) == (2, ABORTED)


def test_cursor_outlives_its_savepoint(client: Connection, onlooker: Connection) -> None:
    """Its execution belongs to whatever is around, whose errors are not its own."""
    client.execute(
        "CREATE OR REPLACE FUNCTION pg_temp.catches(i int) RETURNS int LANGUAGE plpgsql AS "
        "'BEGIN BEGIN RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END; "
        "RETURN 1 / (3 - i); END'"
    )
    declare = (
        "BEGIN",
        "SAVEPOINT a",
        "DECLARE outlives CURSOR FOR SELECT pg_temp.catches(i) FROM generate_series(1, 9) i",
        "RELEASE a",
    )
    trace = traced(onlooker, client, *declare, "FETCH outlives", "FETCH outlives", "COMMIT")
    check_whole(trace)
    assert trace.one("execute", "DECLARE outlives").rows == 2, trace.describe()
    assert len(trace.calls("fetch")) == 2
    for sql in declare:
        client.execute(sql.encode())
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("FETCH ALL FROM outlives")
    client.execute("ROLLBACK")
