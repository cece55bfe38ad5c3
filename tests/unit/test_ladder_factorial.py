"""Variants by factors: what an entry means, what is left out, the grid of their effects."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pgtare.errors import UsageError
from pgtare.weighing.ladder import missing_clocks, page, tables, terminal
from pgtare.weighing.ladder import study_file as studies
from pgtare.weighing.ladder.analysis import analyse
from pgtare.weighing.ladder.markdown import render
from pgtare.weighing.ladder.result import LadderResult
from pgtare.weighing.ladder.study import Study
from tests.doctor_servers import STUDIES
from tests.unit import simulated_study as simulated

FACTORS = """
title = "Factors"
[protocol]
rounds = 12
run = "1s"
[analysis]
floor = "off"
[quick]
variants = ["T-*-fast"]
[[variant]]
name = "off"
[[variant]]
name = "T"
title = "every {every} by {clock}"
runtime = { "x.every" = "{every}", "x.clock" = "{clock}", "x.level" = 12 }
[variant.factors]
every = [0, 1]
clock = ["fast", "slow"]
[[comparison]]
arm = "T-*"
base = "off"
[[workload]]
name = "W1"
metric = "latency_mean_us"
"""
NAMES = ["T-0-fast", "T-0-slow", "T-1-fast", "T-1-slow"]


def refused(right: str, wrong: str) -> str:
    assert right in FACTORS
    with pytest.raises(UsageError) as found:
        studies.parse(FACTORS.replace(right, wrong, 1), "s.toml")
    return str(found.value)


def test_an_entry_weights_every_combination() -> None:
    found = simulated.study(FACTORS)
    assert [v.name for v in found.variant] == ["off", *NAMES]
    slow = found.the_variant("T-1-slow")
    assert slow.runtime == {"x.every": 1, "x.clock": "slow", "x.level": 12}
    assert slow.title == "every 1 by slow"
    assert [(c.arm, c.base) for c in found.comparison] == [(name, "off") for name in NAMES]


def test_quick_plays_the_variants_that_it_names_and_the_floor() -> None:
    quick = simulated.study(FACTORS).made_quick()
    assert [v.name for v in quick.variant] == ["off", "T-0-fast", "T-1-fast"]
    assert [c.arm for c in quick.comparison] == ["T-0-fast", "T-1-fast"]


def test_what_is_left_out_stays_in_the_family() -> None:
    found = simulated.study(FACTORS).resolved()
    left = found.without({"T-0-slow": "no such clock"})
    assert "T-0-slow" not in [v.name for v in left.variant]
    assert (left.family, len(left.comparison)) == (4, 3)


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ('arm = "T-*"', 'arm = "U-*"', "names the variant 'U-*', which is absent"),
        ('variants = ["T-*-fast"]', 'variants = ["U*"]', "quick names the variant 'U*', which is"),
        ('name = "off"\n', 'name = "T-1-slow"\n', "there is already a variant 'T-1-slow'"),
        ("every = [0, 1]", "every = [0, 1]\nsize = [1, 2]", "so the factor size does nothing"),
    ],
)
def test_mistakes_are_reported(right: str, wrong: str, expected: str) -> None:
    message = refused(right, wrong)
    assert expected in message
    assert message.startswith("s.toml, line ")


def result() -> tuple[Study, LadderResult]:
    found = simulated.study(FACTORS).resolved()
    # a share of every metric's speed: a third less speed is half as much time again
    effects = {"T-1-slow": -1 / 3}
    made = analyse(
        found,
        simulated.facts(found),
        simulated.steps(found),
        simulated.runs(found, effects),
        {},
        directory=STUDIES,
        closed=False,
        skipped={},
    )
    return found, made


def test_the_grid_has_a_row_and_a_column_for_each_level() -> None:
    _, found = result()
    (grid,) = tables.grids(found.workloads[0], found)
    assert grid.caption == "Mean latency as a multiple of that of off"
    assert grid.head == ["every, clock →", "fast", "slow"]
    assert [row[0] for row in grid.body] == ["0", "1"]
    ratio, _, interval = grid.body[1][2].partition(" ")
    low, high = interval.strip("()").split("-")
    assert float(low) <= float(ratio) <= float(high)
    assert float(ratio) == pytest.approx(1.5, abs=0.02)
    assert float(grid.body[0][1].split()[0]) == pytest.approx(1.0, abs=0.02)
    cell = grid.body[1][2]
    console = Console(width=120, record=True, file=io.StringIO())
    terminal.render(found, console)
    for shown in (render(found), page.page(found), console.export_text()):
        assert cell in shown
        assert grid.caption in shown


def test_clocks_that_every_machine_has_are_not_left_out() -> None:
    for clock in ("monotonic_coarse", "syscall", ""):
        assert missing_clocks.lacking(clock, "x86_64") == ""
        assert missing_clocks.lacking(clock, "aarch64") == ""
    assert "same as tsc" in missing_clocks.lacking("tscp", "aarch64")


def test_the_shipped_study_has_every_cell() -> None:
    found, _ = studies.read(STUDIES / "sql_trace.toml")
    assert len(found.variant) == 1 + 5 * 4
    against_off = [c.arm for c in found.comparison if c.base == "off"]
    assert len(set(against_off)) == 20
    assert set(found.switched) == {v.name for v in found.variant}
    assert studies.check_rounds(found.resolved(), quick=False) is None
    quick = {v.name for v in found.made_quick().variant}
    assert {f"T-{n}-tsc" for n in (0, 128, 16, 4, 1)} < quick
    assert {f"T-{n}-{c}" for n in (1, 128) for c in ("monotonic", "syscall")} < quick
    assert all(len(w.activity) == 3 for w in found.workload)
    writing, _ = studies.read(STUDIES / "sql_trace_writing.toml")
    assert studies.check_rounds(writing, quick=False) is None
