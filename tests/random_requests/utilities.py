"""Utility statements of random requests, and what they do to the session.

Each `act` gets the client and the call of the statement, which has begun.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from tests.random_requests.model import (
    FAILED,
    FINE,
    SOURCE,
    Call,
    Cursor,
    Statement,
)
from tests.random_requests.statements import logged

if TYPE_CHECKING:
    from tests.random_requests.client import RandomClient

_HELD = "held"
_LEVELS = (0, 1, 4, 8, 12, 12)
#: Tables outlast sessions, so their names are new in this process.
_TABLES = itertools.count()
#: What drops them.
DROP_TABLES = r"""
DO $$
DECLARE made name;
BEGIN
  FOR made IN SELECT relname FROM pg_class WHERE relname LIKE 'random\_table\_%' LOOP
    EXECUTE format('DROP TABLE %I', made);
  END LOOP;
END $$
"""
_SERIES = "SELECT g FROM generate_series(1, {}) g"
_SHARED = "SELECT g FROM generate_series(1, $1) g"


def _plain(rng: random.Random) -> Statement:
    """Nothing that a trace knows of happens in them."""
    sql = rng.choice(
        (
            "SET work_mem = '5MB'",
            "SHOW work_mem",
            "RESET work_mem",
            "NOTIFY shapes",
            "CREATE TABLE IF NOT EXISTS shapes (key int)",
            "DISCARD SEQUENCES",
        )
    )
    return Statement(sql, "utility", shape="utility")


def _lock() -> Statement:
    def act(client: RandomClient, made: Call) -> None:
        if not client.in_block:
            client.fail(made)

    sql = "LOCK TABLE shapes IN ACCESS SHARE MODE"
    return Statement(sql, "utility", shape="utility", act=act, block=True)


def begin() -> Statement:
    def act(client: RandomClient, made: Call) -> None:
        client.status = "T"

    return Statement("BEGIN", "utility", shape="block", act=act, block=True)


def end(sql: str) -> Statement:
    """COMMIT or ROLLBACK."""

    def act(client: RandomClient, made: Call) -> None:
        made.end()
        client.ends_block(sql)

    return Statement(sql, "utility", shape="block", act=act, block=True)


def savepoint(sql: str) -> Statement:
    """SAVEPOINT, RELEASE or ROLLBACK TO, all of savepoints named s."""

    def act(client: RandomClient, made: Call) -> None:
        if client.status == "I" or (sql != "SAVEPOINT s" and not client.savepoints):
            client.fail(made)
        made.end()
        if sql == "SAVEPOINT s":
            client.savepoint()
        elif sql == "RELEASE s":
            client.release()
        else:
            client.rollback_to()

    return Statement(sql, "utility", shape="savepoint", act=act, block=True)


def set_level(wanted: int, local: bool = False) -> Statement:
    """Another level of the trace."""

    def act(client: RandomClient, made: Call) -> None:
        client.set_level(wanted, local)

    word = "LOCAL " if local else ""
    return Statement(f"SET {word}sql_trace.level = {wanted}", "utility", shape="level", act=act)


def declare(rng: random.Random, name: str) -> Statement:
    """A cursor; of those that outlast a transaction only one, as they are read in any order."""
    total, hold, fails = rng.choice((0, 1, 5)), rng.random() < 0.3, rng.random() < 0.2
    query = "SELECT 1 / (3 - g) FROM generate_series(1, 5) g" if fails else _SERIES.format(total)
    name = _HELD if hold else name
    sql = f"DECLARE {name} CURSOR {'WITH HOLD ' if hold else ''}FOR {query}"

    def act(client: RandomClient, made: Call) -> None:
        exists = hold and any(one.hold for one in client.cursors.values())
        if exists or (not hold and not client.in_block):
            client.fail(made)
        run = client.call("execute", SOURCE, 1, rows=0) if client.level else None
        client.cursors[name] = Cursor(
            client.source, 2 if fails else total, client.savepoints, run, hold, fails
        )

    shape = "held cursor" if hold else "cursor"
    return Statement(sql, "utility", shape=shape, act=act, block=not hold)


def fetch(rng: random.Random, name: str) -> Statement:
    """FETCH or MOVE."""
    word, many = rng.choice(("FETCH", "FETCH", "MOVE")), rng.choice(("1", "2", "ALL"))
    sql = f"{word} {many} FROM {name}"

    def act(client: RandomClient, made: Call) -> None:
        cursor = client.cursors.get(name)
        if cursor is None:
            client.fail(made)
        left = cursor.total - cursor.position
        wanted = left + 1 if many == "ALL" else int(many)
        count = min(left, wanted)
        run = cursor.execution if client.level else None
        fetched = client.call("fetch", cursor.text, 1, rows=count) if run else None
        if cursor.fails and wanted > left and not cursor.materialised:
            for one in (fetched, run):
                if one:
                    one.rows = None
                    one.end(FAILED)
            client.cursor_failed(name)
            client.fail(made)
        cursor.position += count
        if fetched and run:
            fetched.end()
            run.rows = (run.rows or 0) + count
        made.rows = count

    return Statement(sql, "utility", shape="fetch", act=act)


def close(name: str) -> Statement:
    def act(client: RandomClient, made: Call) -> None:
        cursor = client.cursors.pop(name, None)
        if cursor is None:
            client.fail(made)
        if cursor.execution:
            cursor.execution.end()

    return Statement(f"CLOSE {name}", "utility", shape="cursor", act=act)


def prepare(name: str) -> Statement:
    sql = f"PREPARE {name}(int) AS {_SHARED}"

    def act(client: RandomClient, made: Call) -> None:
        client.sql_prepared[name] = sql

    return Statement(sql, "utility", shape="PREPARE", act=act)


def execute(rng: random.Random, name: str) -> Statement:
    n = rng.choice((0, 1, 4))

    def act(client: RandomClient, made: Call) -> None:
        client.calls_within([Call("execute", client.sql_prepared[name], 1, n, FINE, (n,))])
        made.rows = n

    return Statement(f"EXECUTE {name}({n})", "utility", shape="EXECUTE", act=act)


def deallocate(name: str) -> Statement:
    def act(client: RandomClient, made: Call) -> None:
        if client.sql_prepared.pop(name, None) is None:
            client.fail(made)

    return Statement(f"DEALLOCATE {name}", "utility", shape="PREPARE", act=act)


def _with_query(rng: random.Random, name: str) -> Statement:
    """Utility statements in which a query runs."""
    n = rng.choice((0, 1, 3))
    series = _SERIES.format(n)
    explained = f"EXPLAIN {series}"
    analysed = f"EXPLAIN (ANALYZE, TIMING off) {series}"
    copied = f"COPY ({series}) TO STDOUT"
    broken = "COPY (SELECT 1 / (3 - g) FROM generate_series(1, 5) g) TO STDOUT"
    created = f"CREATE TABLE {name} AS {series}"

    def rows(many: int):  # type: ignore[no-untyped-def]
        def act(client: RandomClient, made: Call) -> None:
            made.rows = many

        return act

    def within(many: int | None, outcome: str = FINE, sql: str = SOURCE) -> tuple[Call, ...]:
        return (Call("execute", sql, 1, many, outcome),)

    return rng.choice(
        (
            Statement(explained, "utility", within=within(0), shape="EXPLAIN"),
            Statement(analysed, "utility", within=within(n), shape="EXPLAIN"),
            Statement(
                copied, "utility", within=within(n, sql=copied), act=rows(n), shape="COPY out"
            ),
            Statement(
                broken,
                "utility",
                within=within(None, FAILED, broken),
                fails="run",
                shape="COPY out",
            ),
            Statement(
                created,
                "utility",
                within=within(n),
                act=rows(n),
                shape="CREATE TABLE AS",
            ),
        )
    )


def call_that_commits() -> Statement:
    """A procedure that commits; within a block it may not."""

    def insert(key: int) -> Call:
        return Call("execute", f"INSERT INTO log VALUES ({key})", 1, 1, FINE)

    def act(client: RandomClient, made: Call) -> None:
        client.calls_within([insert(1)])
        if not client.alone:
            client.fail(made)
        client.over("commit", depth=1)
        client.calls_within([insert(2)])
        client.over("abort", depth=1)
        client.calls_within([insert(3)])

    return Statement("CALL commits()", "utility", shape="CALL", act=act, block=True)


def vacuum() -> Statement:
    """It makes transactions of its own, and does not want one around it."""

    def act(client: RandomClient, made: Call) -> None:
        if not client.alone:
            client.fail(made)
        for _ in range(2):
            client.over("commit", depth=1)
            client.open = True

    return Statement("VACUUM swept", "utility", shape="VACUUM", act=act, block=True)


def copy_in(rng: random.Random) -> Statement:
    """COPY from the client: whole, given up by it, or with a line that is wrong."""
    table, end = rng.choice(("shapes", "fired")), rng.choice(("done", "done", "fail", "wrong"))
    n = rng.choice((0, 1, 2))
    sql = f"COPY {table} FROM STDIN"

    def act(client: RandomClient, made: Call) -> None:
        client.read(b"G")
        client.send_copy(n, end)
        if end != "done":
            client.fail(made)
        if table == "fired":
            client.calls_within([logged()] * n)
        made.rows = n

    return Statement(sql, "utility", shape="COPY in", act=act)


def utility(client: RandomClient) -> Statement:
    """Any utility statement that makes sense for this session."""
    rng = client.rng
    cursors = client.usable_cursors
    if cursors and rng.random() < 0.4:
        name = rng.choice(cursors)
        return fetch(rng, name) if rng.random() < 0.8 else close(name)
    if rng.random() < (0.3 if client.status == "T" else 0.03):
        return declare(rng, client.new_name("c"))
    choice = rng.random()
    if choice < 0.2:
        return set_level(rng.choice(_LEVELS), rng.random() < 0.3)
    if choice < 0.5:
        return _prepared(client)
    if choice < 0.75:
        return _with_query(rng, f"random_table_{next(_TABLES)}")
    if choice < 0.80:
        return call_that_commits() if choice < 0.79 else vacuum()
    return _lock() if choice < 0.83 else _plain(rng)


def _prepared(client: RandomClient) -> Statement:
    """PREPARE, EXECUTE or DEALLOCATE."""
    names = [name for name in client.sql_prepared if name not in client.deallocated]
    choice = client.rng.random()
    if not names or choice < 0.3:
        return prepare(client.new_name("q"))
    name = client.rng.choice(names)
    if choice < 0.9:
        return execute(client.rng, name)
    client.deallocated.add(name)
    return deallocate(name)
