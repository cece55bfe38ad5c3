"""What is said beforehand of the server's log."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pgtare.estimate.trial.design import Arm, Design
from pgtare.weighing.outside.log_growth import described

ARMS = (Arm("base", "base"), Arm("control", "control"), Arm("x", "instrument"))
DESIGN = Design(ARMS, (0, 1, 2), 1)
QUIET = {"log_min_duration_statement": "-1", "log_statement": "ddl", "log_destination": "stderr"}


def said(text: str = "SELECT 1", seconds: float = 10.0, **of_x: str) -> list[str]:
    values = [QUIET, QUIET, {**QUIET, **of_x}]
    return described(DESIGN, values, text, seconds, writes=False)


def most_mb(sentences: list[str]) -> float:
    (sentence,) = sentences
    found = re.fullmatch(r"its log grows by up to ([\d,]+) MB, for x", sentence)
    assert found, sentence
    return float(found[1].replace(",", ""))


def test_the_limit_counts_all_statements_with_their_texts() -> None:
    """Ten statements of 2 kB wrote 147 MB in ten seconds."""
    assert 147 < most_mb(said("; ".join(["x" * 2000] * 10), log_min_duration_statement="0")) < 1000
    assert most_mb(said(log_statement="all")) < most_mb(said(log_statement="all", seconds=20.0))
    assert 2 * most_mb(said(log_duration="on")) == pytest.approx(
        most_mb(said(log_duration="on", log_destination="stderr,csvlog")), abs=2
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_transaction_sample_rate", "1"),
        ("log_min_duration_sample", "0"),
        ("log_duration", "on"),
        ("pgaudit.log", "read"),
    ],
)
def test_whatever_logs_statements_is_said(name: str, value: str) -> None:
    assert most_mb(said(**{name: value})) > 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_statement_stats", "on"),
        ("debug_print_plan", "on"),
        ("log_min_messages", "debug5"),
        ("log_min_messages", "warning, backend:debug1"),
        ("log_min_messages", "autovacuum:warning, debug2"),
        ("debug_print_raw_parse", "on"),
        ("auto_explain.log_min_duration", "0"),
    ],
)
def test_no_figure_is_given_for_what_has_no_limit(name: str, value: str) -> None:
    (sentence,) = said(**{name: value})
    assert sentence.startswith("its log grows for x, by how much cannot be said beforehand")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_min_duration_statement", "60000"),
        ("log_min_messages", "warning"),
        ("log_min_messages", "warning, autovacuum:debug1"),
        ("log_min_messages", "debug1, backend:warning"),
        ("auto_explain.log_min_duration", "2147483647"),
        ("log_statement", "mod"),
    ],
)
def test_nothing_is_said_if_nothing_grows(name: str, value: str) -> None:
    assert said(**{name: value}) == []


def test_of_servers_each_has_a_log() -> None:
    compared = replace(DESIGN, grouping="sessions")
    loud, verbose = ({**QUIET, name: "on"} for name in ("log_duration", "log_parser_stats"))
    (sentence,) = described(compared, [loud, loud, QUIET], "SELECT 1", 10.0, writes=False)
    assert sentence.startswith("the log of base grows by up to ")
    (sentence,) = described(compared, [QUIET, QUIET, verbose], "SELECT 1", 10.0, writes=False)
    assert sentence.startswith("the log of x grows, by how much cannot be said beforehand")


def test_a_server_that_logs_anyway_is_no_exception() -> None:
    (sentence,) = described(
        DESIGN, [{**QUIET, "log_statement": "all"}] * 3, "SELECT 1", 10.0, writes=False
    )
    assert sentence.endswith("for all arms, as this role's sessions log anyway")
