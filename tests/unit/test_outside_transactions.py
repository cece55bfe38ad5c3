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
