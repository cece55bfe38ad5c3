"""The terminal report: every width, every encoding, every verdict."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from pgtare.report import numbers, wording
from pgtare.report.schema import Interval, WeighResult
from pgtare.report.terminal import render
from tests.unit.sample_result import sample


def printed(result: WeighResult, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    render(result, Console(file=file, width=width, force_terminal=False))
    file.flush()
    return raw.getvalue().decode(encoding)


def words(text: str) -> str:
    """The text with its line breaks undone, for sentences that wrap."""
    return " ".join(text.split())


def instrument(result: WeighResult, name: str = "pg_stat_statements"):  # type: ignore[no-untyped-def]
    return next(arm for arm in result.arms if arm.name == name)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = printed(sample().result, width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


def test_narrow_terminals_lose_the_least_important_columns_first() -> None:
    def head(width: int) -> str:
        lines = printed(sample().result, width).splitlines()
        return next(line for line in lines if line.startswith("instrument"))

    assert "95 % interval" in head(60)
    assert "tail" not in head(60)
    assert "tail µs" in head(80)
    assert "verdict" in head(80)
    assert "CPU" not in head(80)
    assert head(120).split()[-1] == "proof"
    assert "Left out at this width: p99 µs, CPU µs, proof." in words(printed(sample().result, 80))
    assert "Left out" not in printed(sample().result, 120)


def test_the_answer_comes_first_and_the_dearest_leads() -> None:
    lines = printed(sample().result, 120).splitlines()
    names = ["log_min_duration_statement", "pg_stat_statements", "auto_explain", "track_io_timing"]
    assert [name in line for name, line in zip(names, lines, strict=False)] == [True] * 4
    effect = instrument(sample().result).effect
    figure = f"{effect.body_us.estimate:.2f} µs ({effect.body_pct.estimate:.1f} %)"
    assert lines[1] == f"Leaving pg_stat_statements on costs {figure} a transaction at this load."
    assert lines[3].startswith("track_io_timing costs nothing measurable: within ±0.5 %")


def test_an_equivalent_effect_told_from_zero_is_not_called_nothing() -> None:
    result = sample().result
    arm = instrument(result, "track_io_timing")
    arm.effect.body_us = Interval(estimate=0.11, lo=0.03, hi=0.19)
    arm.effect.body_pct = Interval(estimate=0.16, lo=0.04, hi=0.28)
    text = words(printed(result))
    assert "costs 0.11 µs (0.16 %) a transaction, within ±0.5 % (equivalent)." in text
    assert "nothing measurable" not in text


def test_inconclusive_says_how_much_longer() -> None:
    result = sample().result
    arm = instrument(result)
    arm.verdict, arm.verdict_reason, arm.seconds_needed = "inconclusive", "tail", 44.3
    text = words(printed(result))
    assert "pg_stat_statements: inconclusive, +" in text
    assert "only the tail stands in the way; about 45 s more would settle it." in text


def test_without_proof_there_is_no_number() -> None:
    result = sample().result
    arm = instrument(result)
    arm.verdict, arm.verdict_reason = "not_verified", "no proof that it ran"
    arm.proof.state, arm.proof.evidence = "missing", "it counted 0 calls"
    effect = arm.effect
    text = printed(result, 120)
    assert "not verified, so no figure; no proof that it ran: it counted 0 calls." in words(text)
    row = next(line for line in text.splitlines() if line.startswith("pg_stat_statements  "))
    assert not any(digit in row for digit in "0123456789")
    assert numbers.bounds(effect.body_us) not in text


def test_a_gain_is_said_without_a_sign() -> None:
    result = sample().result
    arm = instrument(result)
    arm.verdict = "gain"
    arm.effect.body_us = Interval(estimate=-1.2, lo=-1.4, hi=-1.0)
    arm.effect.body_pct = Interval(estimate=-1.7, lo=-2.0, hi=-1.4)
    assert "on saves 1.20 µs (1.7 %) a transaction" in words(printed(result))


def test_a_dear_tail_is_said_beside_the_body() -> None:
    result = sample().result
    instrument(result).effect.excess_us = Interval(estimate=0.8, lo=0.4, hi=1.2)
    assert "and +0.8 µs on average through its slowest 0.1 %." in words(printed(result))


def test_partial_and_uncalibrated_trials_are_marked_before_anything_else() -> None:
    result = sample().result
    assert "PARTIAL" not in printed(result)
    assert "UNCALIBRATED" not in printed(result)
    result.design.partial, result.design.stopped_by = True, "interrupt"
    result.design.duration_s = 12.3
    result.design.calibrated = False
    text = printed(result)
    assert text.startswith("PARTIAL: it was interrupted after 12.3 s of 60 s;")
    assert "UNCALIBRATED" in text.split("Leaving")[0]


def test_what_the_figures_rest_on_is_there() -> None:
    text = words(printed(sample().result))
    design = sample().result.design
    for expected in (
        "base mean ",
        "covers 0, as it should",
        "5 µs added on purpose",
        "covers the truth",
        "with 80 % power (MDE)",
        "falls on the next transaction",
        "1.1 % of its throughput",
        "2 in the trial, 1 outside it; 99.8 % of transactions took part; 0 observations lost",
        f"seed {design.seed}",
        "Locks that every arm shares",
        "flushing statistics",
        "waking up",
        "2 processors for 2 clients",
    ):
        assert expected in text


def test_a_control_that_misses_zero_is_not_passed_over() -> None:
    result = sample().result
    control = next(arm for arm in result.arms if arm.role == "control")
    assert control.effect is not None
    control.effect.body_us = Interval(estimate=0.5, lo=0.3, hi=0.7)
    assert "misses 0, which chance alone does once in 20 trials" in words(printed(result))


def test_a_result_without_numbers_still_prints() -> None:
    result = sample().result
    nothing = Interval(estimate=None, lo=None, hi=None)
    for arm in result.arms:
        arm.mean_us = arm.p50_us = arm.p99_us = None
        if arm.effect:
            arm.effect = type(arm.effect)(
                **{name: nothing for name in type(arm.effect).model_fields}
            )
            arm.verdict, arm.verdict_reason = "inconclusive", "no whole block"
    base = result.baseline
    base.mean_us = base.p50_us = base.p95_us = base.p99_us = base.threshold_us = None
    result.design.mde_us = result.design.mde_pct = result.design.participation = None
    result.carry_over.switch_us = result.carry_over.switch_throughput_pct = None
    assert "inconclusive" in printed(result)
    result.arms = result.arms[:1]
    assert "No instrument was weighed" in printed(result)


def test_an_ascii_terminal_gets_ascii() -> None:
    result = sample().result
    instrument(result).name = "naïve \u2603"
    text = printed(result, 80, "ascii")
    assert text.isascii()
    assert " us (" in text
    assert "+/-0.5 %" in text
    assert "na?ve ?" in text


def test_a_latin_1_terminal_keeps_what_it_has() -> None:
    text = printed(sample().result, 80, "latin-1")
    assert " µs (" in text
    assert "±0.5 %" in text
    assert "\u2212" not in text


@pytest.mark.parametrize(
    "name", ["[bold red]x[/]", "\x1b[31mred\x1b[0m\x07", "a\nb", "\u202eevil", ":smile:"]
)
def test_names_cannot_steer_the_terminal(name: str) -> None:
    result = sample().result
    instrument(result).name = name
    text = printed(result, 120)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    expected = "".join("?" if c in "\x1b\x07\n\u202e" else c for c in name)
    assert f"Leaving {expected} on costs" in text


def run(tmp_path: Path, **environment: str) -> str:
    """Print the sample in a process of its own, into a pipe."""
    stored = tmp_path / "result.json"
    stored.write_text(sample().result.to_json(), encoding="utf-8")
    script = (
        "import sys; from pathlib import Path; from rich.console import Console; "
        "from pgtare.report.terminal import render; from pgtare.store import load_result; "
        "render(load_result(Path(sys.argv[1])), Console())"
    )
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
    done = subprocess.run(
        [sys.executable, "-c", script, stored],
        env=kept | environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8")


def test_a_pipe_gets_no_colour_unless_forced(tmp_path: Path) -> None:
    assert "\x1b[" not in run(tmp_path, LC_ALL="C.UTF-8", TERM="xterm-256color")
    assert "\x1b[" in run(tmp_path, LC_ALL="C.UTF-8", TERM="xterm-256color", FORCE_COLOR="1")
    forced = run(tmp_path, TERM="xterm-256color", FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[3" not in forced  # bold may stay, colours may not


def test_a_pipe_in_an_ascii_locale_survives(tmp_path: Path) -> None:
    text = run(
        tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii"
    )
    assert text.isascii()
    assert "us" in text


@pytest.mark.parametrize(
    ("interval", "estimate", "bounds"),
    [
        ((2.934, 2.774, 3.094), "+2.93", "[+2.77, +3.09]"),
        ((2.934, 2.6, 3.3), "+2.9", "[+2.6, +3.3]"),
        ((-0.0004, -0.08, 0.08), "0.00", "[\u22120.08, +0.08]"),
        ((1234.5, 1111.0, 1358.0), "+1,234", "[+1,111, +1,358]"),
        ((None, None, None), "\u2013", "\u2013"),
        ((3.14159, None, None), "+3.14", "\u2013"),
        ((float("nan"), 0.0, 1.0), "\u2013", "[0.0, +1.0]"),
    ],
)
def test_the_interval_decides_the_digits(
    interval: tuple[float | None, float | None, float | None], estimate: str, bounds: str
) -> None:
    given = Interval(estimate=interval[0], lo=interval[1], hi=interval[2])
    assert (numbers.estimate(given), numbers.bounds(given)) == (estimate, bounds)


def test_lengths_of_time_take_the_unit_that_suits() -> None:
    assert numbers.duration(70.14) == "70.1 µs"
    assert numbers.duration(15_200.0) == "15.2 ms"
    assert numbers.duration(31_000_000.0) == "31.0 s"
    assert numbers.duration(None) == "\u2013"
    assert numbers.percent(99.98) == "99.9 %"
    assert numbers.percent(0.043) == "0.04 %"


def test_every_verdict_has_words() -> None:
    from typing import get_args

    from pgtare.report.schema import Verdict

    assert set(wording.VERDICTS) == set(get_args(Verdict))
