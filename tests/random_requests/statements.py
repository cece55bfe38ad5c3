"""Statements of random requests: queries, changes, functions, triggers, and errors in all of them.

What utility statements do is in `utilities.py`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.random_requests.model import FAILED, FINE, Call, Statement

if TYPE_CHECKING:
    from tests.random_requests.client import RandomClient

#: Once for a server: what the statements below use. What is vacuumed or analysed is parsed once
#: more, and so is all after a new schema; neither happens to what other statements use.
TABLES = """
DROP TABLE IF EXISTS shapes, late, fired, log, swept, many_rows CASCADE;
CREATE TABLE shapes (key int) WITH (autovacuum_enabled = off);
CREATE TABLE late (key int) WITH (autovacuum_enabled = off);
CREATE TABLE fired (key int) WITH (autovacuum_enabled = off);
CREATE TABLE log (key int) WITH (autovacuum_enabled = off);
CREATE TABLE swept (key int) WITH (autovacuum_enabled = off);
CREATE TABLE many_rows WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 3000) AS g;
ANALYZE many_rows;
CREATE OR REPLACE FUNCTION nest(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN FOR i IN 1..n LOOP PERFORM 'inner' FROM pg_am LIMIT 2; END LOOP; RETURN n; END $$;
CREATE OR REPLACE FUNCTION deep(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  IF n > 0 THEN PERFORM deep(n - 1); PERFORM nest(1); RETURN n; END IF;
  PERFORM 1 / (g - 1) FROM generate_series(1, 1) g;
  RETURN n;
EXCEPTION WHEN division_by_zero THEN RETURN 0; END $$;
CREATE OR REPLACE FUNCTION sinks(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN IF n = 0 THEN RETURN 1 / n; END IF; PERFORM sinks(n - 1); RETURN n; END $$;
CREATE OR REPLACE FUNCTION loops(n int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE numbers CURSOR FOR SELECT 'looped' FROM generate_series(1, n);
BEGIN FOR one IN numbers LOOP NULL; END LOOP; RETURN n; END $$;
CREATE OR REPLACE FUNCTION by_sql(n int) RETURNS int LANGUAGE sql VOLATILE AS $$
INSERT INTO log VALUES (n); SELECT n + 1 $$;
CREATE OR REPLACE FUNCTION caught(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..n LOOP
    BEGIN PERFORM 1 / (g - 2) FROM generate_series(1, 3) g;
    EXCEPTION WHEN division_by_zero THEN PERFORM 'handled' FROM pg_am LIMIT 1;
    END;
  END LOOP;
  RETURN n;
END $$;
CREATE OR REPLACE FUNCTION uncaught() RETURNS int LANGUAGE plpgsql AS $$
BEGIN PERFORM 1 / (g - 2) FROM generate_series(1, 3) g; RETURN 1; END $$;
CREATE OR REPLACE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 'deferred' FROM pg_am LIMIT 1;
  IF NEW.key = 2 THEN RAISE 'too late'; END IF;
  IF NEW.key = 3 THEN PERFORM pg_sleep(20); END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION at_commit();
CREATE OR REPLACE FUNCTION on_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log VALUES (NEW.key);
  IF NEW.key = 3 THEN RAISE 'three'; END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER on_row AFTER INSERT ON fired FOR EACH ROW EXECUTE FUNCTION on_row();
CREATE OR REPLACE FUNCTION slow_constant() RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(20); RETURN 1; END $$;
CREATE OR REPLACE FUNCTION cancelled_constant() RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_cancel_backend(pg_backend_pid()); RETURN 1; END $$;
CREATE OR REPLACE PROCEDURE commits() LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log VALUES (1);
  COMMIT;
  INSERT INTO log VALUES (2);
  ROLLBACK;
  INSERT INTO log VALUES (3);
END $$;
"""

#: Calls within statements: those of functions, and of a deferred trigger.
INNER = Call("execute", "SELECT 'inner' FROM pg_am LIMIT 2", 1, 2, FINE)
BROKEN = Call("execute", "SELECT 1 / (g - 2) FROM generate_series(1, 3) g", 1, 0, FAILED)
HANDLED = Call("execute", "SELECT 'handled' FROM pg_am LIMIT 1", 1, 1, FINE)
DEFERRED = Call("execute", "SELECT 'deferred' FROM pg_am LIMIT 1", 0, 1, FINE)
SLEEPING = Call("execute", "SELECT pg_sleep(20)", 1)
#: The server ends its own statement, as if somebody had asked for it.
CANCEL = "pg_cancel_backend(pg_backend_pid())"
CANCELLED = Call("execute", f"SELECT {CANCEL}", 1, 0, FAILED)


def logged(depth: int = 1) -> Call:
    """What the trigger of `fired` runs for a row."""
    return Call("execute", "INSERT INTO log VALUES (NEW.key)", depth, 1, FINE)


def _deep(n: int, depth: int = 1) -> tuple[Call, ...]:
    """What deep(n) runs; in the deepest, an error is caught."""
    if n == 0:
        return (
            Call("execute", "SELECT 1 / (g - 1) FROM generate_series(1, 1) g", depth, 0, FAILED),
        )
    return (
        Call("execute", "SELECT deep(n - 1)", depth, 1, FINE),
        *_deep(n - 1, depth + 1),
        Call("execute", "SELECT nest(1)", depth, 1, FINE),
        replace(INNER, depth=depth + 1),
    )


def _sinks(n: int) -> tuple[Call, ...]:
    """What sinks(n) runs: an error in the deepest is caught nowhere."""
    some = range(n, 0, -1)
    text = "SELECT sinks(n - 1)"
    return tuple(Call("execute", text, n - m + 1, 0, FAILED) for m in some)


def _all_inserted(client: RandomClient, made: Call) -> None:
    """The trigger of the third row fails, when all rows have been inserted."""
    made.rows = 3
    client.fail(made)


def _loops(n: int) -> tuple[Call, ...]:
    """What loops(n) runs: the first row is the execution's, and the last fetch finds nothing."""
    text = "SELECT 'looped' FROM generate_series(1, n)"
    # the server copies all variables of the function for its cursor
    run = Call("execute", text, 1, n, FINE, values=None)
    return (run, Call("fetch", text, 1, max(n - 1, 0), FINE, fetches=n)) if n else (run,)


def usual(rng: random.Random) -> Statement:
    """Statements without errors, of the simplest shapes."""
    n = rng.choice((0, 1, 2, 5))
    many = tuple(rng.choice((None, 7, -123456)) for _ in range(rng.choice((1, 4, 60))))
    parameters = ", ".join(f"${i + 1}" for i in range(len(many)))
    inserted = "INSERT INTO shapes SELECT g FROM generate_series(1, $1) g"
    series = "SELECT g FROM generate_series(1, $1) g"
    return rng.choice(
        (
            Statement(f"SELECT {rng.randrange(1000)} AS literal", shape="select"),
            Statement(series, values=(n,), shape="select"),
            Statement(f"SELECT {parameters}", values=many, shape="parameters"),
            Statement(inserted, "changes", (n,), shape="change"),
            Statement(f"{inserted} RETURNING key", "returning", (n,), shape="returning"),
            Statement("SELECT nest($1)", values=(n,), within=(INNER,) * n, shape="function"),
        )
    )


def _nested(rng: random.Random) -> Statement:
    n = rng.choice((1, 2, 3))
    nest = Call("execute", "SELECT nest(1)", 1, 1, FINE)
    by_sql = (
        Call("execute", "INSERT INTO log VALUES (n)", 1, 1, FINE, (n,)),
        Call("execute", "SELECT n + 1", 1, 1, FINE, (n,)),
    )
    fired = "INSERT INTO fired SELECT g FROM generate_series(1, $1) g"
    failed = Statement(fired, "changes", (3,), within=(logged(),) * 3, act=_all_inserted)
    rows = rng.choice((1, 2))
    return rng.choice(
        (
            Statement("SELECT deep($1)", values=(n,), within=_deep(n), caught=1, shape="depth"),
            Statement(
                "SELECT sinks($1)", values=(n,), within=_sinks(n), fails="run", shape="depth"
            ),
            Statement("SELECT loops($1)", values=(n,), within=_loops(n), shape="loop"),
            Statement("SELECT by_sql($1)", values=(n,), within=by_sql, shape="SQL function"),
            Statement(
                fired,
                "changes",
                (rows,),
                within=(logged(),) * rows,
                shape="trigger",
            ),
            replace(failed, shape="trigger"),
            Statement(
                "DO $$BEGIN PERFORM nest(1); END$$",
                "utility",
                within=(nest, replace(INNER, depth=2)),
                shape="DO",
            ),
            Statement(
                f"DO $$BEGIN PERFORM {CANCEL}; PERFORM pg_sleep(20); "
                "EXCEPTION WHEN query_canceled THEN PERFORM nest(1); END$$",
                "utility",
                within=(CANCELLED, nest, replace(INNER, depth=2)),
                caught=1,
                shape="DO",
            ),
        )
    )


def _failing(rng: random.Random) -> Statement:
    n = rng.choice((1, 3))
    late = "INSERT INTO late VALUES (1)", "changes"
    made = Statement(*late, at_commit=(DEFERRED,), shape="deferred trigger")
    cancelled = Statement(f"SELECT {CANCEL}, pg_sleep(20)", fails="run", shape="cancel")
    planned = Statement("SELECT cancelled_constant()", fails="plan", within=(CANCELLED,))
    return rng.choice(
        (
            Statement(
                "SELECT 10 / (3 - g) AS broken FROM generate_series(1, 5) g",
                fails="run",
                shape="error in execution",
            ),
            Statement("SELECT 1 / 0 AS folded", fails="plan", shape="error in plan"),
            Statement("SELECT nothing", fails="parse", shape="error in analysis"),
            Statement("SELEC 1", fails="read", shape="error in parse"),
            Statement(
                "SELECT caught($1)",
                values=(n,),
                within=(BROKEN, HANDLED) * n,
                caught=n,
                shape="caught error",
            ),
            Statement(
                "SELECT uncaught()", within=(BROKEN,), fails="run", shape="error in function"
            ),
            made,
            replace(made, sql=late[0].replace("1", "2"), commit_fails=True),
            cancelled,
            replace(planned, shape="cancel"),
        )
    )


def _rare(rng: random.Random) -> Statement:
    parallel = "SELECT count(*) FROM many_rows"
    long = f"SELECT {rng.randrange(9)} AS long, length('{'x' * rng.choice((300, 3000))}')"
    return rng.choice(
        (
            Statement(parallel, shape="parallel"),
            Statement(f"{parallel} WHERE 1 / (g - 7) > 100", fails="run", shape="parallel"),
            Statement("DELETE FROM shapes", "changes", shape="change"),
            Statement("DELETE FROM log", "changes", shape="change"),
            Statement(long, shape="long text"),
        )
    )


def statement(rng: random.Random) -> Statement:
    """Any of these; the usual ones more often."""
    choice = rng.random()
    if choice < 0.55:
        return usual(rng)
    if choice < 0.75:
        return _nested(rng)
    return (_failing if choice < 0.97 else _rare)(rng)
