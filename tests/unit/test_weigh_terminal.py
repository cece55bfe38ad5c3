"""The terminal report: every width, every encoding, every verdict."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from pgtare.cli import standard_output
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.kit.terminal_text import plain
from pgtare.weighing import verdict_names
from pgtare.weighing.instruments.catalogue import load_catalogue
from pgtare.weighing.instruments.model import FlagRule
from pgtare.weighing.weigh.report import bounds, evidence
from pgtare.weighing.weigh.report.terminal import render
from pgtare.weighing.weigh.schema import RunInfo, WeighResult
from tests.unit.sample_result import sample


def printed(result: WeighResult, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors=standard_output._SIMPLER)
    render(result, Console(file=file, width=width, force_terminal=False))
    file.flush()
    return raw.getvalue().decode(encoding)


def words(text: str) -> str:
    """The text with its line breaks undone, for sentences that wrap."""
    return " ".join(text.split())


def instrument(result: WeighResult, name: str = "pg_stat_statements"):  # type: ignore[no-untyped-def]
    return next(arm for arm in result.arms if arm.name == name)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = printed(sample().result, width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


def test_narrow_terminals_lose_the_least_important_columns_first() -> None:
    def head(width: int) -> str:
        lines = printed(sample().result, width).splitlines()
        return next(line for line in lines if line.startswith("instrument"))

    for width in (24, 30, 40, 50, 60, 70, 80, 100, 120):
        assert "verdict" in head(width)
    assert "interval" not in head(40)
    assert "95 % interval" in head(60)
    assert "tail" not in head(60)
    assert "cost %" not in head(60)
    assert "cost %" in head(70)
    assert "tail µs" in head(80)
    assert "CPU" not in head(80)
    assert head(120).split()[-1] == "proof"
    assert "Left out at this width: p99 µs, CPU µs, proof." in words(printed(sample().result, 80))
    assert "Left out" not in printed(sample().result, 120)


def test_a_column_without_a_figure_takes_no_room() -> None:
    result = sample().result
    for arm in result.arms[1:]:
        arm.effect.excess_us = Interval(estimate=3.21, lo=None, hi=None)
        arm.effect.cpu_us = None
    for width in (80, 120):
        text = printed(result, width)
        assert "tail µs" not in text
        assert "CPU µs" not in text
        assert "p99 µs" in text


def test_a_long_name_is_folded_between_its_words_and_indented() -> None:
    result = sample().result
    instrument(result).name = "pg_stat_statements/without_planning_or_utility"
    instrument(result, "track_io_timing").name = "n" * 50
    table = printed(result, 80).split("\n\n")[1].splitlines()
    names = [line[:25].rstrip() for line in table]
    at = names.index("pg_stat_statements/")
    assert names[at + 1 : at + 3] == ["  without_planning_or_", "  utility"]
    folded = [line for line in table[2:] if line.startswith(" ")]
    assert len(folded) == 5  # and one more of log_min_duration_statement, two of the n's
    assert all(line.strip().isidentifier() for line in folded)
    ends = {line.index(word) for line in table for word in ("verdict", "cost  ") if word in line}
    assert len(ends) == 1  # every verdict begins where its heading does


def test_the_answer_comes_first_and_the_dearest_leads() -> None:
    lines = printed(sample().result, 120).splitlines()
    names = ["log_min_duration_statement", "pg_stat_statements", "auto_explain", "track_io_timing"]
    assert [name in line for name, line in zip(names, lines, strict=False)] == [True] * 4
    effect = instrument(sample().result).effect
    figure = f"{effect.body_us.estimate:.2f} µs ({effect.body_pct.estimate:.1f} %)"
    assert lines[1] == f"Leaving pg_stat_statements on costs {figure} a transaction at this load."
    assert lines[3].startswith("track_io_timing: the body costs nothing measurable, +0.")
    assert lines[3].endswith(" µs, within ±0.5 % (equivalent).")


def test_an_equivalent_effect_distinguished_from_zero_is_not_called_nothing() -> None:
    result = sample().result
    arm = instrument(result, "track_io_timing")
    arm.effect.body_us = Interval(estimate=0.11, lo=0.03, hi=0.19)
    arm.effect.body_pct = Interval(estimate=0.16, lo=0.04, hi=0.28)
    text = words(printed(result))
    assert "the body costs less than 0.5 %, +0.11 µs [+0.03, +0.19] (equivalent)." in text
    assert "nothing measurable" not in text
    arm.effect.body_us = Interval(estimate=-0.11, lo=-0.19, hi=-0.03)
    assert "saves less than 0.5 %, \u22120.11 µs [\u22120.19, \u22120.03]" in words(printed(result))


@pytest.mark.parametrize(
    ("margin", "nothing"), [(0.5, True), (1.0, True), (1.1, False), (20, False)]
)
def test_inside_a_wide_margin_is_not_called_nothing(margin: float, nothing: bool) -> None:
    result = sample().result
    result.design.margin_pct = margin
    instrument(result, "track_io_timing").effect.body_us = Interval(estimate=0.8, lo=-0.1, hi=1.7)
    text = words(printed(result))
    assert ("nothing measurable" in text) is nothing
    sentence = f"the body costs less than {margin:g} %, +0.8 µs [\u22120.1, +1.7] (equivalent)."
    assert (sentence in text) != nothing


IDLE = "in force in 2498 of 2498 transactions"
NO_PROOF = f"{IDLE} (values checked at each end); no proof of activity is known for an ad hoc arm"


@pytest.mark.parametrize(
    ("verdict", "ending"),
    [
        ("cost", "a cost."),
        ("gain", "a gain."),
        ("equivalent", "within ±0.5 % (equivalent)."),
        ("inconclusive", "inconclusive; about 45 s more may settle it."),
    ],
)
def test_an_arm_with_nothing_to_do_is_not_said_to_cost(
    verdict: verdict_names.Verdict, ending: str
) -> None:
    result = sample().result
    arm = instrument(result, "track_io_timing")
    arm.verdict, arm.needed_s = verdict, 44.3
    arm.proof.state, arm.proof.evidence = "idle", IDLE
    arm.effect.body_us = Interval(estimate=0.5, lo=0.1, hi=0.9)
    text = words(printed(result))
    assert (
        "This load gave track_io_timing nothing to do; its settings in force: "
        f"+0.5 µs [+0.1, +0.9], {ending}" in text
    )
    assert "Leaving track_io_timing on" not in text
    assert "in force, with nothing to do: track_io_timing" in text


def test_an_arm_of_the_users_own_is_not_said_to_have_nothing_to_do() -> None:
    result = sample().result
    arm = instrument(result)
    arm.name = "mine"
    arm.proof.state, arm.proof.evidence = "idle", NO_PROOF
    text = words(printed(result, 120))
    assert "in force, but no proof is known for arms of your own: mine" in text
    assert "nothing to do" not in text
    assert "Leaving mine on costs" in text
    row = next(line for line in printed(result, 120).splitlines() if line.startswith("mine  "))
    assert row.rstrip().endswith("in force")


def test_a_trial_the_server_ended_says_why_first_and_gives_no_proof() -> None:
    result = sample().result
    design = result.design
    design.stopped_by, design.partial, design.duration_s = "server", True, 12.3
    why = "terminating connection due to administrator command"
    for arm in result.arms[1:]:
        arm.verdict, arm.verdict_reason = "not_verified", f"the trial ended early: {why}"
    result.warnings = [f"The trial ended early: {why}. No verdict is drawn.", "Another."]
    text = printed(result, 120)
    assert words(text).startswith(f"THE TRIAL ENDED EARLY: {why}, after 12.3 s of 60 s.")
    assert text.count(why) == 1
    assert "pg_stat_statements: no figure, as the trial ended early." in text
    assert "Another." in text
    for wrong in ("no proof", "seen at work", "active", "covers", "MDE", "next transaction:"):
        assert wrong not in text
    result.warnings = []
    assert printed(result).startswith("THE TRIAL ENDED EARLY: terminating")
    for arm in result.arms[1:]:
        arm.verdict_reason = "the trial ended early: the server ended it"
    assert printed(result).startswith("THE TRIAL ENDED EARLY: the server ended it, after 12.3 s")


def test_a_control_far_off_leaves_no_flat_sentence() -> None:
    result = sample().result
    control = next(arm for arm in result.arms if arm.role == "control")
    control.effect.body_us = Interval(estimate=0.5, lo=0.3, hi=0.7)
    for arm in result.arms:
        if arm.role == "instrument":
            arm.verdict = "inconclusive"
            arm.verdict_reason = "the control, the base measured again, is off (p = 2e-07)"
            arm.at_most_us, arm.at_most_pct = 4.0, 6.0
    text = words(printed(result))
    assert text.startswith("THE CONTROL IS OFF: the base measured again differs from the base (")
    assert "No verdict is given, as what moved it may have moved the other arms" in text
    assert " on costs" not in text
    assert "It costs at most" not in text
    # the total alone may have been off
    control.effect.body_us = Interval(estimate=0.1, lo=-0.3, hi=0.5)
    assert "No verdict is given" in words(printed(result))


def test_a_cost_that_the_total_shows_is_that_of_the_total() -> None:
    result = sample().result
    arm = instrument(result)
    arm.verdict, arm.verdict_reason = "cost", "by the total, p = 2e-05"
    arm.effect.total_us = Interval(estimate=12.1, lo=8.0, hi=16.2)
    arm.effect.total_pct = Interval(estimate=17.2, lo=11.0, hi=23.0)
    said = "pg_stat_statements on costs 12 µs (17 %) a transaction at this load, mostly because"
    assert f"{said} of slow transactions." in words(printed(result))
    arm.verdict_reason += "; 9 still open at the end, so it may cost more"
    assert "on costs at least 12 µs (17 %)" in words(printed(result))


def test_inconclusive_says_what_is_known() -> None:
    result = sample().result
    arm = instrument(result)
    arm.verdict, arm.verdict_reason = "inconclusive", ""
    arm.at_most_us, arm.at_most_pct, arm.tail_bounded = 143.21, 5.93, True
    arm.settles_pct = 1.274
    result.load["median_tps"], result.machine["cpus"] = 1000, 2
    text = words(printed(result))
    assert (
        "It costs at most 150 µs (6.0 %) a transaction at 95 %: at 1,000 transactions/s no more "
        "than 0.15 of 2 processors." in text
    )
    # in 60 s; over ten minutes the root of a tenth of it
    assert "A trial of this length can settle a margin of ±1.3 %, one of 10 min ±0.41 %." in text
    arm.tail_bounded = False
    assert "a transaction at 95 %, not counting rare slow transactions: at 1,000" in words(
        printed(result)
    )
    arm.settles_pct, arm.at_most_us = 0.4, -1.0  # within the margin asked for; a gain
    text = words(printed(result))
    assert "can settle" not in text
    assert "at most" not in text.split("base mean")[0]


def test_the_load_s_rate_counts_transactions_in_runs() -> None:
    result = sample().result
    result.load.pop("median_tps", None)
    rate = bounds.transactions_per_s(result)
    assert rate
    result.design.runs = RunInfo(
        turns=[1],
        every=60,
        shortest=24,
        longest=96,
        transactions=round(result.design.duration_s * 100),
    )
    assert bounds.transactions_per_s(result) == pytest.approx(rate + 100)


def test_no_margin_is_in_reach_of_an_arm_whose_effect_lasts() -> None:
    result = sample().result
    arm = instrument(result)
    arm.verdict, arm.verdict_reason, arm.settles_pct = "inconclusive", "", 1.274
    assert bounds.settled(arm, result)
    arm.outlasts = True
    assert not bounds.settled(arm, result)


def test_failures_and_open_transactions_are_shown_where_there_are_some() -> None:
    result = sample().result
    text = words(printed(result))
    assert "failed" not in text
    assert "open at end" not in text
    arm = instrument(result)
    arm.aborted, arm.open, arm.longest_open_us = arm.n // 20, 2, 31_000.0
    text = words(printed(result))
    assert "failed transactions that ended in an error: pg_stat_statements 5.0 %" in text
    assert "no answer yet: pg_stat_statements 2 (up to 31.0 ms)" in text.replace("31,000", "31.0 ")


def test_equivalence_of_several_is_said_to_be_of_each() -> None:
    result = sample().result
    assert "equivalence shown" not in words(printed(result))
    for name in ("pg_stat_statements", "auto_explain"):
        instrument(result, name).verdict = "equivalent"
    assert "equivalence shown for each of 3 instruments alone, at 5 % each" in words(
        printed(result)
    )


def test_the_load_is_reported_with_its_rate() -> None:
    result = sample().result
    assert "load pgbench select-only, 2 clients (full speed)" in words(printed(result))
    result.load |= {"median_tps": 20535.0, "clients": 1, "rate_tps": 20500.0}
    result.load["headroom"] = {"share": 0.5, "saturation_tps": 41000.0}
    assert (
        "pgbench select-only, 1 client, 20,535 transactions/s (target 20,500/s; half of 41,000/s "
        "at saturation)" in words(printed(result))
    )
    assert "did not keep its rate" not in printed(result)
    result.load = {"kind": "none", "application": "*"}
    assert "load the server's own traffic, application *" in words(printed(result))


@pytest.mark.parametrize(
    ("asked", "got", "seconds", "kept"),
    [
        (500.0, 601.0, 60, False),
        (500.0, 599.0, 60, True),
        (500.0, 399.0, 60, False),
        (500.0, None, 60, True),
        (None, 601.0, 60, True),
        (5.0, 7.0, 10, True),  # that may well be chance
        (0.7, 1.0, 60, True),
    ],
)
def test_a_load_off_its_rate_is_warned_of(
    asked: float | None, got: float | None, seconds: float, kept: bool
) -> None:
    result = sample().result
    result.load |= {"rate_tps": asked, "median_tps": got}
    result.design.duration_s = seconds
    assert ("did not keep its rate" in words(printed(result))) is not kept


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        (
            "LOGGED in 24660 of 24660 transactions (100 %), base 0 %",
            "all 24,660 transactions wrote to the log (base: none)",
        ),
        (
            "QUERY_ID in 2466 of 24660 transactions with EXECUTED (10 %), base 0.3 %",
            "of 24,660 transactions that ran a plan, 2,466 (10 %) carried a query id (base: 0.3 %)",
        ),
        (
            "no transaction of the arm had BLOCKS_READ",
            "no transaction of the arm read a block from outside shared buffers",
        ),
        (NO_PROOF, "in force in 2,498 of 2,498 transactions (values checked at each end)"),
    ],
)
def test_evidence_is_reported_in_plain_words(kept: str, shown: str) -> None:
    assert evidence.plain(kept) == shown


def test_no_flag_keeps_its_name() -> None:
    chosen = [load_catalogue().choose(name) for name in load_catalogue()]
    rules = [rule for choice in chosen for rule in choice.rules]
    flags = {rule.flag for rule in rules if isinstance(rule, FlagRule)}
    flags |= {rule.where for rule in rules if isinstance(rule, FlagRule) and rule.where}
    assert len(flags) > 5
    for flag in flags:
        assert flag not in evidence.plain(
            f"{flag} in 1 of 2 transactions with {flag} (50 %), base 0 %"
        )


def test_inconclusive_says_how_much_longer() -> None:
    result = sample().result
    arm = instrument(result)
    arm.verdict, arm.verdict_reason, arm.needed_s = "inconclusive", "tail", 44.3
    text = words(printed(result))
    assert "pg_stat_statements: inconclusive, +" in text
    assert "only the tail prevents an answer; about 45 s more may settle it." in text
    assert "would settle" not in text
    arm.verdict_reason, arm.needed_s = "", 86_401.0
    assert "; it may take more than a day to settle." in words(printed(result))
    arm.needed_s = 86_400.0
    assert "about 24 h more may settle it." in words(printed(result))
    # a partial trial is marked before anything else
    assert "PARTIAL" not in printed(result)
    result.design.partial, result.design.stopped_by = True, "interrupt"
    result.design.duration_s = 12.3
    text = printed(result)
    assert text.startswith("PARTIAL: it was interrupted after 12.3 s of 60 s;")


@pytest.mark.parametrize("verdict", ["equivalent", "inconclusive", "cost", "gain"])
@pytest.mark.parametrize("body", [(0.01, -0.1, 0.1), (0.11, 0.03, 0.19)])
def test_no_answer_passes_over_a_dear_tail(verdict: str, body: tuple[float, float, float]) -> None:
    result = sample().result
    arm = instrument(result)
    arm.verdict = verdict
    arm.effect.body_us = Interval(estimate=body[0], lo=body[1], hi=body[2])
    said = "slow transactions add +11 µs to the average"
    assert said not in words(printed(result))
    arm.effect.excess_us = Interval(estimate=11.2, lo=7.7, hi=14.7)
    assert said in words(printed(result))


def test_a_tail_that_cannot_be_judged_is_reported_and_not_shown() -> None:
    result = sample().result
    assert "Too few slow" not in printed(result)
    arm = instrument(result)
    arm.effect.excess_us = Interval(estimate=3.21, lo=None, hi=None)
    arm.verdict, arm.verdict_reason = "inconclusive", "tail"
    text = words(printed(result))
    assert "Too few slow transactions to judge the tail of pg_stat_statements." in text
    assert "; too few slow transactions to judge the tail." in text
    assert "3.21" not in text
    for arm in result.arms[1:]:
        assert arm.effect is not None
        arm.effect.excess_us = Interval(estimate=3.21, lo=None, hi=None)
    assert "Too few slow transactions to judge the tail." in words(printed(result))


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


def test_what_the_figures_rest_on_is_there() -> None:
    text = words(printed(sample().result))
    design = sample().result.design
    for expected in (
        "base mean ",
        "covers 0, as it should",
        "5 µs added on purpose",
        "covers the truth",
        "with 80 % power (MDE)",
        "the next transaction has ",
        "1.1 % of its throughput",
        "2 in the trial, 1 outside it; each drawn with a chance of 50 %; 40 % of the "
        "database’s sessions and 22 % of its transactions took part; 0 observations lost",
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
    assert "THE CONTROL" not in printed(result)
    control.effect.body_us = Interval(estimate=0.5, lo=0.3, hi=0.7)
    control.verdict, control.p = "cost", 0.0023
    text = printed(result, 120)
    assert words(text).startswith(
        "THE CONTROL MISSES 0: the base measured again differs from the base "
        "(+0.50 µs [+0.30, +0.70]). One good trial in twenty has this; what it could explain "
        "gets no verdict."
    )
    said = "misses 0 (p = 0.0023: chance alone does so, or worse, in 0.23 % of trials); doubt"
    assert said in words(text)
    row = next(line for line in text.splitlines() if line.startswith("control (base again)"))
    assert "misses 0" in row
    assert "cost" not in row
    control.p = 1e-9
    assert "in less than 0.01 % of trials" in words(printed(result))
    control.effect.body_us = Interval(estimate=0.1, lo=-0.3, hi=0.5)
    row = next(line for line in printed(result, 120).splitlines() if line.startswith("control (b"))
    assert "covers 0" in row
    assert "cost" not in row


@pytest.mark.parametrize("mde", [None, float("nan")])
def test_without_a_detectable_effect_none_is_named(mde: float | None) -> None:
    result = sample().result
    assert "detectable" in printed(result)
    result.design.mde_us = result.design.mde_pct = mde
    assert "detectable" not in printed(result)


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
    base.mean_us = base.body_mean_us = base.threshold_us = None
    base.p50_us = base.p99_us = None
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
    assert "~0.5 %" in text
    assert "na?ve ?" in text


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
    expected = plain(name)
    assert f"Leaving {expected} on costs" in text


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
        ((2.0, 0.04, 4.0), "+2.00", "[+0.04, +4.00]"),  # neither end may look like 0
        ((2.0, -0.04, 4.0), "+2.00", "[\u22120.04, +4.00]"),
        ((-2.0, -4.0, -0.0006), "\u22122.0000", "[\u22124.0000, \u22120.0006]"),
        ((2.0, 0.06, 4.0), "+2.0", "[+0.1, +4.0]"),
        ((2.0, 0.0, 4.0), "+2.0", "[0.0, +4.0]"),
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
    chances = [numbers.chance(p) for p in (1.0, 0.997, 0.2, 0.041, 0.0023, 1e-5)]
    assert chances == ["100 %", "99.7 %", "20 %", "4.1 %", "0.23 %", "less than 0.01 %"]
    assert numbers.percent(0.043) == "0.04 %"


def test_a_control_that_is_off_by_its_total_alone_is_not_passed_over() -> None:
    result = sample().result
    control = next(arm for arm in result.arms if arm.role == "control")
    control.effect.body_us = Interval(estimate=0.1, lo=-0.3, hi=0.5)
    control.effect.total_us = Interval(estimate=2.0, lo=1.2, hi=2.8)
    control.p_adjusted, control.p_total_adjusted = 0.9, 0.06
    assert "THE CONTROL" not in printed(result)
    control.p_total_adjusted = 0.004
    text = printed(result, 120)
    said = "THE CONTROL MISSES 0: the base measured again differs from the base, by its total (+2.0"
    assert words(text).startswith(said)
    assert "its total misses 0 (+2.0 µs [+1.2, +2.8]); doubt this trial" in words(text)
    row = next(line for line in text.splitlines() if line.startswith("control (base again)"))
    assert "misses 0" in row


def test_a_control_that_is_near_0_is_so_everywhere() -> None:
    result = sample().result
    control = next(arm for arm in result.arms if arm.role == "control")
    assert control.effect is not None
    control.effect.body_us = Interval(estimate=0.3, lo=0.01, hi=0.59)
    control.p, control.p_adjusted, control.p_total_adjusted = 0.042, 0.053, 0.4
    text = printed(result, 120)
    row = next(line for line in text.splitlines() if line.startswith("control (base again)"))
    assert "near 0" in row
    said = "near 0: its interval misses it, but its body and total together do not (p = 0.053)"
    assert said in words(text)
    assert "doubt" not in text
    assert "THE CONTROL" not in text
    # one word for each bound, in the row and on top
    for p, word, alarm in ((0.002, "misses 0", "MISSES 0"), (0.0009, "off", "IS OFF")):
        control.p_adjusted = p
        text = printed(result, 120)
        row = next(line for line in text.splitlines() if line.startswith("control (base again)"))
        assert f"  {word}  " in row
        assert words(text).startswith(f"THE CONTROL {alarm}: the base measured again differs")
