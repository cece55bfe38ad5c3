"""What the driver of a weighing from outside runs: expressions and scripts as pgbench has them."""

from __future__ import annotations

import random

import pytest

from pgtare.errors import UsageError
from pgtare.postgres.load.script import Assignment, compile_script
from pgtare.weighing.outside.transactions import LookUps, ScriptTransactions, Weighted, evaluate

RNG = random.Random(7)


def value_of(expression: str) -> int:
    program = compile_script(f"\\set x {expression}\nSELECT :x;", "test", {"scale": 1})
    assignment = program.commands[0]
    assert isinstance(assignment, Assignment)
    return evaluate(assignment.operations, {"scale": 1}, RNG)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("9223372036854775807 + 1", -(2**63)),
        ("random(5, 5)", 5),
        (":scale * 100000", 100_000),
    ],
)
def test_expressions_are_those_of_c(expression: str, value: int) -> None:
    assert value_of(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"), [("1 / 0", "by zero"), ("random(3, 1)", "empty range")]
)
def test_what_has_no_value_is_refused(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        value_of(expression)


def test_variables_become_parameters_and_are_drawn_each_time() -> None:
    text = "\\set a random(1, 1000000)\nSELECT :a, ':a', :a + :scale;\nSELECT 2;"
    source = ScriptTransactions(text, "mine.sql", RNG, prepared=True)
    first, second = source.next()
    assert first[0].text == b"SELECT $1, ':a', $2 + $3"
    assert first[0].prepared
    drawn = first[1]
    assert drawn[0] == drawn[1]
    assert drawn[2] == b"1"
    assert second[1] == []
    assert source.next()[0][1] != drawn


def test_every_second_look_up_is_prepared() -> None:
    source = LookUps([1, 2, 3], RNG)
    kinds = [source.next()[0][0].prepared for _ in range(6)]
    assert kinds == [False, True] * 3


def test_weights_draw_scripts() -> None:
    never = ScriptTransactions("SELECT 1;", "a", RNG, prepared=False)
    always = ScriptTransactions("SELECT 2;", "b", RNG, prepared=False)
    source = Weighted([never, always], [0, 1], RNG)
    assert {source.next()[0][0].text for _ in range(20)} == {b"SELECT 2"}
    assert source.name == "a + b"


def checked(text: str, *, writes: bool = False, weighed: tuple[str, ...] = ()) -> None:
    ScriptTransactions(text, "mine.sql", RNG, prepared=False, writes=writes, weighed=weighed)


@pytest.mark.parametrize(
    "text",
    [
        "(SELECT 1)",
        "((VALUES (1)))",
        "WITH x AS (SELECT 1) TABLE x",
        "SHOW work_mem",
        "BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY; SAVEPOINT a; ROLLBACK TO a; COMMIT",
        "START TRANSACTION; DECLARE c CURSOR FOR SELECT 1; FETCH c; MOVE c; CLOSE c; END",
        "EXPLAIN SELECT 1",
        "EXPLAIN (SELECT 1)",
        "EXPLAIN (ANALYZE, FORMAT json) (SELECT 1)",
        "EXPLAIN ANALYZE VERBOSE WITH x AS (SELECT 1) SELECT * FROM x",
        "EXPLAIN UPDATE t SET x = 1",
        "EXPLAIN VERBOSE DELETE FROM t",
        "EXPLAIN (COSTS off, FORMAT 'json') CREATE TABLE t AS SELECT 1",
        "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL TIME ZONE 'UTC'; SELECT 1; COMMIT",
        "BEGIN; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SELECT 1; COMMIT",
        "BEGIN; SET CONSTRAINTS ALL DEFERRED; SELECT 1; COMMIT",
        "SELECT 'write', \"prepared\" FROM t /* write */",
        "SELECT set_config('app.tenant', '7', true)",
    ],
)
def test_what_reads_needs_no_leave(text: str) -> None:
    checked(text)
    checked(text, writes=True)


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN (ANALYZE) CREATE TABLE t AS SELECT 1",
        'EXPLAIN (FORMAT json, "analyze") CREATE TABLE t AS SELECT 1',
        'EXPLAIN (U&"\\0061nalyze") CREATE TABLE t AS SELECT 1',
        "EXPLAIN /* ( */ ANALYSE VERBOSE CREATE TABLE t AS SELECT 1",
        "EXPLAIN ANALYZE SELECT 1 AS n INTO t",
        "EXPLAIN ANALYZE EXECUTE x",
        "BEGIN; SET LOCAL transaction_read_only = off; SELECT 1; COMMIT",
        'BEGIN; SET LOCAL "Transaction_Read_Only" TO off; SELECT 1; COMMIT',
        "BEGIN; SET LOCAL TRANSACTION READ WRITE; SELECT 1; COMMIT",
        "BEGIN; SET LOCAL SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; SELECT 1; COMMIT",
        "BEGIN READ -- x\rWRITE; SELECT 1; COMMIT",
        "BEGIN; SET TRANSACTION READ/**/WRITE; SELECT 1; COMMIT",
        "BEGIN; SET TRANSACTION READ ONLY, READ WRITE; SELECT 1; COMMIT",
        "SELECT set_config('default_transaction_read_only', 'off', false)",
        "ROLLBACK PREPARED 'x'",
        "COMMIT /* a /* b */ */ PREPARED 'x'",
    ],
)
def test_what_read_only_mode_lets_through_is_to_be_allowed(text: str) -> None:
    with pytest.raises(UsageError, match=r"mine.sql: .* does more than read: add --writes"):
        checked(text)
    checked(text, writes=True)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("SET LOCAL enable_indexscan = on", "enable_indexscan"),
        ('SET LOCAL/**/"ENABLE_indexscan" TO DEFAULT', "Enable_IndexScan"),
        ("SET LOCAL auto_explain . log_analyze = off", "auto_explain.log_analyze"),
        ("SET LOCAL TIME ZONE 'UTC'", "TimeZone"),
        ("SET LOCAL SCHEMA 'x'", "search_path"),
        ("SELECT pg_catalog.set_config('enable_IndexScan', 'on', true)", "enable_indexscan"),
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "default_transaction_isolation"),
        ("COMMIT; BEGIN ISOLATION LEVEL serializable", "default_transaction_isolation"),
        ("COMMIT; START TRANSACTION READ ONLY, NOT DEFERRABLE", "default_transaction_deferrable"),
        ("SET TRANSACTION READ ONLY", "default_transaction_read_only"),
    ],
)
@pytest.mark.parametrize("writes", [False, True])
def test_weighed_settings_are_not_a_script_s(text: str, setting: str, writes: bool) -> None:
    script = f"BEGIN; {text}; SELECT 1; COMMIT"
    checked(script, writes=writes, weighed=("work_mem",))
    with pytest.raises(UsageError, match=r"overrides a setting that is weighed.*leave it out"):
        checked(script, writes=writes, weighed=("work_mem", setting))


def test_a_mode_of_a_transaction_by_its_own_name_is_not_a_script_s_either() -> None:
    with pytest.raises(UsageError, match="overrides a setting that is weighed"):
        checked(
            "BEGIN; SET LOCAL transaction_isolation = 'serializable'; COMMIT",
            writes=True,
            weighed=("default_transaction_isolation",),
        )


def test_names_of_settings_in_escapes_are_refused() -> None:
    with pytest.raises(UsageError, match="SET changes the session"):
        checked('SET LOCAL U&"transaction\\005fread_only" = off', writes=True)


def test_an_unknown_statement_is_not_repeated_whole() -> None:
    with pytest.raises(UsageError) as refused:
        checked("x" * 500 + " SELECT 1")
    assert len(str(refused.value)) < 120
