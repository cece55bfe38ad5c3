"""Scripts for weighing from outside: what pgbench would run, and what is refused by its line."""

from __future__ import annotations

import functools

import pytest
from bench.weights import SELECT_ONLY, TPCB_LIKE

from pgtare.errors import UsageError
from pgtare.postgres.load.script import (
    Assignment,
    Operation,
    Statement,
    Variable,
    _chunks,
    compile_script,
    outline,
)
from tests.processor_time import least_s

SCALE = {"scale": 3}


def value_of(operations: tuple[Operation, ...], variables: dict[str, int]) -> int:
    """The operations on a stack, as the driver runs them; random() gives its upper bound."""
    stack: list[int] = []
    for step in operations:
        if step.kind == "constant":
            assert isinstance(step.operand, int)
            stack.append(step.operand)
        elif step.kind == "variable":
            stack.append(variables[str(step.operand)])
        elif step.kind == "negate":
            stack.append(-stack.pop())
        else:
            b, a = stack.pop(), stack.pop()
            result = {
                "add": a + b,
                "subtract": a - b,
                "multiply": a * b,
                "random": b,
                "divide": int(a / b) if b else 0,
                "modulo": a - b * int(a / b) if b else 0,
            }[step.kind]
            stack.append(result)
    assert len(stack) == 1
    return stack[0]


def only_statement(text: str, known: dict[str, int] | None = None) -> Statement:
    (command,) = compile_script(text, "test", known or {}).commands
    assert isinstance(command, Statement)
    return command


@pytest.mark.parametrize(("text", "statements"), [(SELECT_ONLY, 1), (TPCB_LIKE, 7)])
def test_scripts_as_pgbench_has_them_compile(text: str, statements: int) -> None:
    program = compile_script(text, "test", SCALE)
    assert sum(isinstance(c, Statement) for c in program.commands) == statements


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 3 - 2", 5),
        ("100000 * :scale", 300000),
        ("-7 / 2", -3),
        ("7 % 4 + -:scale", 0),
        ("random(1, 2 * (:scale + 1)) - 1", 7),
        ("2 * -(3 - 5)", 4),
    ],
)
def test_expressions_have_the_value_they_have_in_pgbench(expression: str, value: int) -> None:
    program = compile_script(f"\\set x {expression}\nSELECT :x;", "test", SCALE)
    assignment = program.commands[0]
    assert isinstance(assignment, Assignment)
    assert value_of(assignment.operations, SCALE) == value


def test_statements_end_at_semicolons_that_are_not_quoted() -> None:
    text = "SELECT ';', $a$;$a$, \"a;b\", E'\\';' -- ;\n /* ; */;\nSELECT 2"
    program = compile_script(text, "test", {})
    assert [type(c) for c in program.commands] == [Statement, Statement]


def test_variables_are_replaced_outside_quotes_only() -> None:
    statement = only_statement("SELECT ':scale', :scale::int, a[1:2] -- :scale\n;", SCALE)
    variables = [part for part in statement.parts if isinstance(part, Variable)]
    assert variables == [Variable("scale")]
    assert statement.parts[0] == "SELECT ':scale', "


def test_one_request_may_hold_several_statements() -> None:
    assert only_statement("SELECT 1\\; SELECT 2;").parts == ("SELECT 1; SELECT 2",)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("SELECT 1;\n\\sleep 1 ms\nSELECT 2;", 2, r"cannot run \sleep"),
        ("\\set x 1.5\nSELECT :x;", 1, "whole numbers"),
        ("\n\n\\set x random_zipfian(1, 5, 2)\nSELECT :x;", 3, "random_zipfian()"),
        ("\\set x random(1\nSELECT :x;", 1, "is missing"),
        ("\\set x 1 +\nSELECT :x;", 1, "a value is expected"),
        ("\\set x 1 2\nSELECT :x;", 1, "not expected"),
        ("SELECT 1;\nSELECT\n:nothing;", 2, ":nothing has no value"),
        ("\\set x :y\nSELECT :x;", 1, ":y has no value"),
        ("COPY t FROM STDIN;", 1, "COPY"),
        ("\\set\nSELECT 1;", 1, "takes a variable"),
        ("\\set x 9223372036854775808\nSELECT :x;", 1, "64-bit"),
        (f"\\set x {'9' * 5000}\nSELECT :x;", 1, "999… is larger than a 64-bit number"),
        ("\\set x \u0663\nSELECT :x;", 1, "whole numbers"),
        ("SELECT 1;\nDELETE FROM t\0 WHERE n = 1;", 2, "NUL byte"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        compile_script(text, "my.sql", SCALE)
    assert str(refused.value).startswith(f"my.sql, line {line}: ")
    assert message in str(refused.value)


def test_a_script_without_sql_is_refused() -> None:
    with pytest.raises(UsageError, match="no SQL statement"):
        compile_script("-- nothing\n\\set x 1\n", "my.sql", {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "SELECT 1; ",
        "SELECT 1;\n",
        "x ",
        "/*",
        "/* '",
        "$a{i}$ ",
        "e'\\",
        "'",
        '"x',
        "\\set a 1\n",
        "-- x\n",
    ],
)
def test_time_grows_with_the_length(piece: str) -> None:
    took = []
    for n in (40_000, 160_000):
        text = "SELECT 1;\n" + "".join(piece.replace("{i}", str(i)) for i in range(n // len(piece)))
        took.append(least_s(functools.partial(_all_chunks, text)))
    assert took[1] < 9 * took[0] + 0.05


def _all_chunks(text: str) -> object:
    return list(_chunks(text, "long"))


def test_what_nothing_ends_is_the_rest() -> None:
    for rest in ("SELECT 'a; b", 'SELECT "a; b', "SELECT $a$; $b$", "SELECT e'\\'; b\\"):
        assert list(_chunks(f"SELECT 1;\n {rest}", "cut")) == [(1, "SELECT 1"), (2, rest)]
    assert list(_chunks("SELECT a$$b; SELECT 2 /* ; $$", "cut")) == [
        (1, "SELECT a$$b"),
        (1, "SELECT 2 /* ; $$"),
    ]


def test_meta_commands_begin_lines() -> None:
    text = "SELECT 1; \n/* a\n*/ \t\\set a 1\n;\n \\set b \\\n 2\n\nSELECT\n 2"
    assert list(_chunks(text, "lines")) == [
        (1, "SELECT 1"),
        (3, "\\set a 1\n"),  # behind a comment's end in its line
        (5, "\\set b   2"),
        (8, "SELECT\n 2"),
    ]


def test_leading_zeros_are_no_digits() -> None:
    program = compile_script(f"\\set x {'0' * 5000}7\nSELECT :x;", "test", {})
    assert program.commands[0] == Assignment("x", (Operation("constant", 7),))


def test_a_byte_order_mark_is_no_part_of_a_script() -> None:
    assert only_statement("\ufeffSELECT 1;") == Statement(("SELECT 1",))
    program = compile_script("\ufeff\\set x 1\nSELECT :x;", "test", {})
    assert isinstance(program.commands[0], Assignment)


def test_what_is_not_utf_8_is_refused() -> None:
    with pytest.raises(UsageError, match=r"my\.sql is not UTF-8"):
        compile_script("SELECT '\udcff'", "my.sql", {})


def test_comments_may_hold_comments() -> None:
    text = "/* a /* b */ ; :no */ SELECT 1 /* /* */ ; */ ; SELECT 2 /*/ ; */; /***/ SELECT 3"
    program = compile_script(text, "test", {})
    assert program.commands == (
        Statement(("SELECT 1 /* /* */ ; */ ",)),
        Statement(("SELECT 2 /*/ ; */",)),
        Statement(("SELECT 3",)),
    )
    cut = "SELECT 1 /* /* */ ; SELECT 2"
    assert only_statement(cut) == Statement((cut,))


def test_an_outline_is_what_the_server_reads() -> None:
    text = "SET -- a\rLocal /* b /* c */ */\n\"Work_Mem\"=E'8\\'MB'"
    assert outline(text) == "set local work_mem = ''"
    assert outline('U&"x"."y""z"') == 'u & x . y"z'
