"""The terminal report: short, at every width and in every encoding, and all figures on request."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from pgtare.cli import standard_output
from pgtare.estimate.trial.answer import WITHHOLD, ReasonKind, Verdict
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.kit.terminal_text import plain
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.weigh.report import reason_words, wording
from pgtare.weighing.weigh.report.terminal import render
from pgtare.weighing.weigh.schema import Reason, WeighResult
from tests.unit.sample_result import answer, arm_of, between, effect, judged, sample

STATEMENTS = "pg_stat_statements"
CONTROL = "control (nothing changed)"
IDLE = "in force in 2,498 of 2,498 transactions"
#: What a reader of a report need not know.
UNUSUAL = re.compile(
    r"\b(arms?|body|bodies|total|Holm\w*|Fieller|excess|threshold|stratum|strata|clusters?)\b"
)


def printed(
    result: WeighResult, width: int = 80, encoding: str = "utf-8", *, details: bool = False
) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors=standard_output._SIMPLER)
    render(result, Console(file=file, width=width, force_terminal=False), details=details)
    file.flush()
    return raw.getvalue().decode(encoding)


def words(text: str) -> str:
    """The text with its line breaks undone, for sentences that wrap."""
    return " ".join(text.split())


def all_words(result: WeighResult) -> str:
    return words(printed(result, details=True))


def row(result: WeighResult, name: str) -> str:
    """What the table says of an arm, behind its name."""
    (found,) = [line for line in printed(result, 120).splitlines() if line.startswith(f"{name}  ")]
    return found.removeprefix(name).strip()


def name_proof(result: WeighResult, state: str, text: str, name: str = STATEMENTS) -> None:
    arm_of(result, name).proof = Proof.model_validate({"state": state, "evidence": text})


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int, details: bool) -> None:
    lines = printed(sample().result, width, details=details).splitlines()
    assert max(cell_len(line) for line in lines) <= width


def hard_to_report() -> WeighResult:
    """Four instruments on a server's own traffic, with one thing or another to say of each."""
    result = sample().result
    result.server |= {"version_num": 180001, "kind": "server"}
    result.load = {"kind": "none", "application": "*"}
    result.design.first_share_pct = 12.0
    effect(arm_of(result, STATEMENTS)).excess_us = between(11.2, 7.7, 14.7)
    name_proof(result, "idle", IDLE, "auto_explain")
    missing = arm_of(result, "log_min_duration_statement")
    judged(missing, "not_verified", ReasonKind.NO_PROOF)
    name_proof(result, "missing", "it sent 0 lines to the server log", missing.name)
    return result


@pytest.mark.parametrize("make", [lambda: sample().result, hard_to_report])
@pytest.mark.parametrize("instruments", [4, 1])
def test_a_report_is_short(make: Callable[[], WeighResult], instruments: int) -> None:
    result = make()
    shown = wording.of_role(result, "instrument")[:instruments]
    result.arms = [arm for arm in result.arms if arm.role in ("base", "control") or arm in shown]
    lines = printed(result).splitlines()
    assert len(lines) <= 30
    assert max(cell_len(line) for line in lines) <= 80
    assert "Left out" not in "".join(lines)
    assert sum(line.startswith(tuple(arm.name for arm in shown)) for line in lines) >= instruments


def test_the_first_thing_said_is_what_was_weighed_then_the_table() -> None:
    result = sample().result
    result.server |= {"version_num": 180001, "kind": "embedded server"}
    seen = len(sample().observations)
    lines = printed(result, 120).splitlines()
    assert lines[0] == (
        f"embedded PostgreSQL 18.1, pgbench select-only, 2 clients: 60 s, {seen:,} transactions of "
        f"{result.baseline.body_mean_us:.1f} µs"
    )
    assert lines[2].strip() == "when left on, per transaction"
    assert re.split("  +", lines[3].strip()) == ["instrument", "µs", "95 % interval", "%", "answer"]


def test_narrow_terminals_lose_the_least_important_columns_first() -> None:
    def head(width: int, number: int = 0) -> list[str]:
        lines = printed(sample().result, width, details=True).splitlines()
        found = [line for line in lines if line.startswith("instrument ")][number]
        return re.split("  +", found.strip())[1:]

    assert head(30) == head(40) == ["answer"]
    assert head(50) == ["µs", "answer"]
    assert head(60) == ["µs", "95 % interval", "answer"]
    assert head(70) == head(80) == head(120) == ["µs", "95 % interval", "%", "answer"]
    assert (
        head(80, 1)
        == head(120, 1)
        == [
            "median µs",
            "tail µs",
            "p99 µs",
            "CPU µs",
            "proof",
        ]
    )
    assert "Left out at this width: 95 % interval, %." in words(printed(sample().result, 50))
    for width in (70, 80, 120):
        assert "Left out" not in printed(sample().result, width, details=True)


def test_a_column_without_a_figure_takes_no_room() -> None:
    result = sample().result
    for arm in result.arms[1:]:
        effect(arm).excess_us = between(3.21, None, None)
        effect(arm).cpu_us = None
    text = printed(result, 120, details=True)
    assert "tail µs" not in text
    assert "CPU µs" not in text
    assert "p99 µs" in text


def test_a_long_name_is_folded_between_its_words_and_indented() -> None:
    result = sample().result
    arm_of(result, STATEMENTS).name = "pg_stat_statements/without_planning_or_utility"
    arm_of(result, "track_io_timing").name = "n" * 50
    table = printed(result, 80).split("\n\n")[1].splitlines()
    names = [line[:27].rstrip() for line in table]
    at = names.index("pg_stat_statements/without_")
    assert names[at + 1] == "  planning_or_utility"
    folded = [line for line in table[2:] if line.startswith(" ")]
    assert len(folded) == 2  # and one more of the n's
    assert all(line.strip().isidentifier() for line in folded)
    ends = {line.index(word) for line in table for word in ("answer", "cost  ") if word in line}
    assert len(ends) == 1  # every answer begins where its heading does


def test_the_dearest_leads_and_the_control_is_last() -> None:
    lines = printed(sample().result, 120).splitlines()[5:11]
    names = [re.split("  +", line)[0] for line in lines]
    assert names == [
        "log_min_duration_statement",
        "pg_stat_statements",
        "auto_explain",
        "track_io_timing",
        "inject 5 µs",
        "control (nothing changed)",
    ]
    found = answer(arm_of(sample().result, STATEMENTS))
    figures = (numbers.estimate(found.us), numbers.bounds(found.us), numbers.estimate(found.pct))
    assert re.split("  +", lines[1].strip()) == [STATEMENTS, *figures, "cost"]


# Answers


@pytest.mark.parametrize(
    ("verdict", "reasons", "fields", "said"),
    [
        ("cost", [ReasonKind.DIFFERS], {}, "cost"),
        ("cost", [ReasonKind.DIFFERS], {"at_least": True}, "cost, at least this"),
        ("cost", [ReasonKind.DIFFERS], {"at_most": True}, "cost, at most this"),
        ("gain", [ReasonKind.DIFFERS], {}, "saves time"),
        ("gain", [ReasonKind.DIFFERS], {"at_most": True}, "saves time, at most this"),
        ("equivalent", [ReasonKind.INSIDE_MARGIN], {}, "none over 0.5 %"),
        ("not_verified", [ReasonKind.NO_PROOF], {}, "not verified"),
    ],
)
def test_every_answer_is_said_in_two_or_three_words(
    verdict: Verdict, reasons: list[ReasonKind], fields: dict[str, bool], said: str
) -> None:
    result = sample().result
    judged(arm_of(result, STATEMENTS), verdict, *reasons, **fields)
    assert re.split("  +", row(result, STATEMENTS))[-1] == said


@pytest.mark.parametrize(
    ("hi", "said"),
    [
        (0.2101, "at most 0.22 %"),
        (0.2199, "at most 0.22 %"),
        (0.22, "at most 0.22 %"),
        (0.0301, "at most 0.031 %"),
        (5.91, "at most 6.0 %"),
        (143.21, "at most 150 %"),
        (-0.1, "undecided"),
        (None, "no answer"),
    ],
)
def test_what_an_undecided_cost_is_at_most_is_rounded_up(hi: float | None, said: str) -> None:
    result = sample().result
    arm = arm_of(result, STATEMENTS)
    judged(arm, "inconclusive", ReasonKind.COVERS_ZERO, pct=between(-0.2, -0.3, hi), most_pct=hi)
    assert row(result, STATEMENTS).endswith(said)
    assert wording.rounded_up(0.0) == "0"


def test_slow_transactions_of_which_too_little_is_known_leave_no_bound() -> None:
    result = sample().result
    arm = arm_of(result, STATEMENTS)
    judged(arm, "inconclusive", ReasonKind.COVERS_ZERO, pct=between(0.1, -0.3, 0.5), most_pct=None)
    assert row(result, STATEMENTS).endswith("undecided")


@pytest.mark.parametrize("kind", list(ReasonKind))
def test_a_withheld_answer_has_no_bound(kind: ReasonKind) -> None:
    """What could have moved the figure could have moved its upper end, too."""
    result = sample().result
    arm = arm_of(result, STATEMENTS)
    judged(arm, "inconclusive", kind, pct=between(1.0, -0.5, 2.51), most_pct=2.51, needed_s=30.0)
    withheld = kind in WITHHOLD
    unsettled = kind is ReasonKind.UNSETTLED
    said = "no answer" if withheld else "undecided" if unsettled else "at most 2.6 %"
    assert row(result, STATEMENTS).endswith(said)
    text = all_words(result)
    assert ("2.6 %" in text) is not (withheld or unsettled)
    assert (f"Undecided: {STATEMENTS}" in text) is not withheld


@pytest.mark.parametrize("kind", list(ReasonKind))
def test_every_reason_has_words_that_a_reader_knows(kind: ReasonKind) -> None:
    arm = arm_of(sample().result, STATEMENTS)
    answer(arm).reasons = [Reason(kind=kind)]  # what a kind has not is null
    assert reason_words.because(arm)
    for p in (0.0123, 0.0):
        given = Reason(kind=kind, p=p, n=7, pct=5.0, base_pct=1.25, text="it was stopped")
        answer(arm).reasons = [given]
        said = reason_words.because(arm)
        assert not said.endswith(".")
        assert "None" not in said
        assert not re.search(r"p = 0\b(?!\.)", said)
        assert not UNUSUAL.search(said)


def test_the_reasons_of_one_answer_are_all_said() -> None:
    result = sample().result
    arm = arm_of(result, STATEMENTS)
    reasons = [Reason(kind=ReasonKind.DIFFERS, p=2e-05), Reason(kind=ReasonKind.OPEN_ADD, n=9)]
    judged(arm, "cost", reasons=reasons, at_least=True)
    assert (
        "cost, at least this (p < 0.0001; 9 of its transactions were still open at the end)."
        in all_words(result)
    )


def test_an_arm_with_nothing_to_do_is_said_to_have_had_nothing() -> None:
    result = sample().result
    assert "nothing to do" not in printed(result)
    name_proof(result, "idle", IDLE, "track_io_timing")
    text = words(printed(result))
    assert (
        "This load gave nothing to do to track_io_timing: the figure is of its settings alone."
        in text
    )
    assert "Seen working: pg_stat_statements, auto_explain, log_min_duration_statement." in text
    assert "proof track_io_timing: in force, with nothing to do: in force in 2,498" in all_words(
        result
    )


def test_an_arm_of_the_users_own_is_not_said_to_have_nothing_to_do() -> None:
    result = sample().result
    arm_of(result, STATEMENTS).name = "mine"
    arm_of(result, "mine").proof = Proof(state="idle", evidence=IDLE, unproven="own")
    text = printed(result, 120, details=True)
    assert "proof mine: in force, but no proof is known for arms of your own: in" in words(text)
    assert "nothing to do" not in text
    found = [line for line in text.splitlines() if line.startswith("mine  ")][-1]
    assert found.rstrip().endswith("in force")


def test_without_proof_there_is_no_number() -> None:
    result = sample().result
    arm = arm_of(result, STATEMENTS)
    judged(arm, "not_verified", ReasonKind.NO_PROOF)
    name_proof(result, "missing", "it counted 0 calls")
    why = "it was not seen to run; it counted 0 calls."
    assert f"{STATEMENTS} is not verified: {why}" in words(printed(result))
    assert f"{STATEMENTS}: not verified, so no figure; {why}" in all_words(result)
    assert not any(digit in row(result, STATEMENTS) for digit in "0123456789")
    assert numbers.bounds(answer(arm).us) not in printed(result, 120, details=True)


def test_undecided_says_how_much_longer() -> None:
    result = sample().result
    for other in wording.of_role(result, "instrument"):
        judged(other, "cost", ReasonKind.DIFFERS)
    assert "Undecided" not in printed(result)
    found = judged(arm_of(result, STATEMENTS), "inconclusive", ReasonKind.TAIL_OPEN, needed_s=44.3)
    assert (
        "Undecided: pg_stat_statements; about 45 s more may decide it, or fewer instruments at a "
        "time." in words(printed(result))
    )
    assert "(too little is known of slow transactions; about 45 s more may decide it)" in all_words(
        result
    )
    found.needed_s = 86_401.0
    assert "Undecided: pg_stat_statements; it may take more than a day to decide." in words(
        printed(result)
    )
    found.needed_s = 591.0
    assert "about 10 min more may decide it" in words(printed(result))
    assert "about 10 min more may decide it" in all_words(result)
    found.needed_s = 0.2
    assert "about 1 s more may decide it" in words(printed(result))
    found.needed_s = 86_400.0
    assert "about 24 h more may decide it" in words(printed(result))
    found.needed_s = None
    said = "Undecided: pg_stat_statements (too little is known of slow transactions)."
    assert said in words(printed(result))
    found.needed_s = 44.3
    for name in ("track_io_timing", "auto_explain"):
        judged(arm_of(result, name), "inconclusive", ReasonKind.TAIL_OUTWEIGHS, needed_s=None)
    assert (
        "Undecided: pg_stat_statements; about 45 s more may decide it, or fewer instruments at a "
        "time. Undecided: auto_explain, track_io_timing (slow transactions outweigh it)."
    ) in words(printed(result))
    result.arms = result.arms[:3]  # one instrument
    assert "about 45 s more may decide it." in words(printed(result))


def test_a_partial_trial_is_marked_before_anything_else() -> None:
    result = sample().result
    assert "PARTIAL" not in printed(result)
    result.design.partial, result.design.stopped_by = True, "interrupt"
    result.design.duration_s = 12.3
    assert printed(result).startswith("PARTIAL: it was interrupted after 12.3 s of 60 s;")


def test_a_trial_the_server_ended_says_why_first_and_gives_no_figure() -> None:
    result = sample().result
    design = result.design
    design.stopped_by, design.partial, design.duration_s = "server", True, 12.3
    why = "terminating connection due to administrator command"
    ended = [Reason(kind=ReasonKind.ENDED_EARLY, text=why)]
    for arm in result.arms[1:]:
        judged(arm, "not_verified", reasons=ended)
    result.warnings = [f"The trial ended early: {why}. No verdict is drawn.", "Another."]
    text = printed(result, 120, details=True)
    assert words(text).startswith(f"THE TRIAL ENDED EARLY: {why}, after 12.3 s of 60 s.")
    assert text.count(why) == 2  # and in the warning
    assert "pg_stat_statements: no figure, as the trial ended early." in text
    assert "Another." in text
    for wrong in ("no proof", "seen working", "seen at work", "active", "covers", "MDE", "[+"):
        assert wrong not in text
    result.warnings = []
    assert printed(result).startswith("THE TRIAL ENDED EARLY: terminating")
    ended[0] = Reason(kind=ReasonKind.ENDED_EARLY)
    for arm in result.arms[1:]:
        judged(arm, "not_verified", reasons=ended)
    assert printed(result).startswith("THE TRIAL ENDED EARLY: the server ended it, after 12.3 s")


# The control


def test_a_control_that_misses_zero_is_not_passed_over() -> None:
    result = sample().result
    control = arm_of(result, "control")
    assert "THE CONTROL" not in printed(result)
    assert row(result, CONTROL).endswith("sound")
    judged(control, "cost", ReasonKind.DIFFERS, us=between(0.5, 0.3, 0.7))
    control.p = control.p_adjusted = 0.0023
    text = words(printed(result, details=True))
    assert text.startswith(
        "THE CONTROL MISSES 0: the base measured again differs from the base "
        "(+0.50 µs [+0.30, +0.70]). One good trial in twenty has this; what it could explain "
        "gets no verdict."
    )
    assert "control base again: +0.50 µs [+0.30, +0.70]; p = 0.0023, of its answer and" in text
    assert row(result, CONTROL).endswith("misses 0")
    control.p = control.p_adjusted = 1e-9
    assert row(result, CONTROL).endswith("off")


def test_a_control_far_off_leaves_no_answer() -> None:
    result = sample().result
    control = arm_of(result, "control")
    judged(control, "cost", ReasonKind.DIFFERS, us=between(0.5, 0.3, 0.7))
    control.p_adjusted = 2e-7
    off = [Reason(kind=ReasonKind.CONTROL_OFF, p=2e-7)]
    for arm in wording.of_role(result, "instrument"):
        judged(arm, "inconclusive", reasons=off)
    text = all_words(result)
    assert text.startswith("THE CONTROL IS OFF: the base measured again differs from the base (")
    assert "No verdict is given, as what moved it may have moved the other arms" in text
    assert "the control is off (p < 0.0001)" in text
    assert "at most" not in printed(result)
    for arm in wording.of_role(result, "instrument"):
        assert row(result, arm.name).endswith("no answer")
    # the total alone may have been off
    judged(control, "inconclusive", us=between(0.1, -0.3, 0.5))
    assert "No verdict is given" in words(printed(result))


def test_a_control_that_is_off_by_its_total_alone_is_not_passed_over() -> None:
    result = sample().result
    control = arm_of(result, "control")
    answer(control).us = between(0.1, -0.3, 0.5)
    effect(control).total_us = between(2.0, 1.2, 2.8)
    control.p_adjusted, control.p_total_adjusted = 0.9, 0.06
    assert "THE CONTROL" not in printed(result)
    control.p_total_adjusted = 0.004
    text = all_words(result)
    said = "THE CONTROL MISSES 0: the base measured again differs from the base, by its total (+2.0"
    assert text.startswith(said)
    assert "; p = 0.004, of its answer and tail together" in text
    assert row(result, CONTROL).endswith("misses 0")


def test_a_control_that_is_near_0_is_sound() -> None:
    result = sample().result
    control = arm_of(result, "control")
    answer(control).us = between(0.3, 0.01, 0.59)
    control.p, control.p_adjusted, control.p_total_adjusted = 0.042, 0.053, 0.4
    text = all_words(result)
    assert row(result, CONTROL).endswith("sound")
    assert "; p = 0.053, of its answer and tail together" in text
    assert "doubt" not in text
    assert "THE CONTROL" not in text
    # one word for each bound, in the row and on top
    for p, word, alarm in ((0.002, "misses 0", "MISSES 0"), (0.0009, "off", "IS OFF")):
        control.p_adjusted = p
        assert row(result, CONTROL).endswith(f" {word}")
        said = f"THE CONTROL {alarm}: the base measured again differs"
        assert words(printed(result)).startswith(said)


# Notes


def test_what_slow_transactions_add_is_said() -> None:
    result = sample().result
    said = "Slow transactions change the average: pg_stat_statements +11 µs."
    assert "Slow transactions" not in printed(result)
    found = effect(arm_of(result, STATEMENTS))
    found.excess_us = between(11.2, 7.7, 14.7)
    assert said in words(printed(result))
    found.excess_us = between(11.2, None, None)
    assert "11" not in words(printed(result)).split("All were seen working")[1].split("µs")[0]
    assert "Slow transactions" not in printed(result)


def test_a_cost_that_only_slow_transactions_show_says_so() -> None:
    """The column µs alone would leave the reader to wonder."""
    result = sample().result
    arm = arm_of(result, STATEMENTS)
    judged(arm, "cost", ReasonKind.TOTAL_DIFFERS, us=between(0.2, -0.1, 0.5))
    effect(arm).excess_us = between(2.2, -0.1, 4.5)
    said = "Slow transactions change the average: pg_stat_statements +2.2 µs."
    assert said in words(printed(result))


def test_a_tail_that_cannot_be_judged_is_reported_and_not_shown() -> None:
    result = sample().result
    assert "Too few slow" not in printed(result, details=True)
    effect(arm_of(result, STATEMENTS)).excess_us = between(3.21, None, None)
    text = all_words(result)
    assert "Too few slow transactions to judge the tail of pg_stat_statements." in text
    assert "3.21" not in text
    for arm in result.arms[1:]:
        effect(arm).excess_us = between(3.21, None, None)
    assert "Too few slow transactions to judge the tail." in all_words(result)


def test_what_first_transactions_cost_is_said_where_it_differs() -> None:
    result = sample().result
    (said,) = [note for note in wording.notes(result) if note.startswith("In the first")]
    assert re.search(r"pg_stat_statements \+4\.\d+ µs, auto_explain \+2\.\d+ µs \(cold", said)
    assert "track_io_timing" not in said
    effect(arm_of(result, STATEMENTS)).switched_on_us = between(-3.0, -4.0, -2.0)
    assert "pg_stat_statements \u22123.0 µs" in words(printed(result))
    for arm in wording.of_role(result, "instrument"):
        effect(arm).switched_on_us = answer(arm).us
    assert "In the first" not in printed(result)


def test_the_own_traffic_of_a_server_says_who_took_part() -> None:
    result = sample().result
    assert "took part" not in printed(result)
    result.load = {"kind": "none", "application": "*"}
    result.design.first_share_pct = 12.0
    said = "2 sessions took part, with 22 % of the database's transactions, 12 % of them the first"
    assert said in words(printed(result))


def test_failures_and_open_transactions_are_shown_where_there_are_some() -> None:
    result = sample().result
    text = all_words(result)
    assert "failed" not in text
    assert "open at end" not in text
    arm = arm_of(result, STATEMENTS)
    arm.aborted, arm.open, arm.longest_open_us = arm.n // 20, 2, 31_000.0
    text = all_words(result)
    assert "failed transactions that ended in an error: pg_stat_statements 5.0 %" in text
    assert "no answer yet: pg_stat_statements 2 (up to 31.0 ms)" in text


def test_equivalence_of_several_is_said_to_be_of_each() -> None:
    result = sample().result
    for name in (STATEMENTS, "auto_explain"):
        assert "equivalence shown" not in all_words(result)
        judged(arm_of(result, name), "equivalent", ReasonKind.INSIDE_MARGIN)
    assert "equivalence shown for each of 2 instruments alone, at 5 % each" in all_words(result)


def test_the_load_is_reported_with_its_rate() -> None:
    result = sample().result
    assert "load pgbench select-only, 2 clients (full speed)" in all_words(result)
    result.load |= {"median_tps": 20535.0, "clients": 1, "rate_tps": 20500.0}
    result.load["headroom"] = {"share": 0.5, "saturation_tps": 41000.0}
    assert (
        "pgbench select-only, 1 client, 20,535 transactions/s (target 20,500/s; half of 41,000/s "
        "at saturation)" in all_words(result)
    )
    assert "did not keep its rate" not in printed(result)
    result.load = {"kind": "none", "application": "*"}
    assert "load the server's own traffic, application *" in all_words(result)


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


def test_what_the_figures_rest_on_is_there_on_request() -> None:
    result = sample().result
    design = result.design
    text = all_words(result)
    for expected in (
        "base mean ",
        ", of its answer and tail together",
        "5 µs added on purpose",
        "covers the truth",
        "between transactions, outside every figure; it cost ",
        "2 in the trial, 1 outside it; each drawn with a chance of 50 %; 22 % of the "
        "database’s transactions took part; 0 observations lost",
        "a session keeps an arm for 16 to 32 transactions; the first 8 of each",
        f"seed {design.seed}",
        "Locks that every arm shares",
        "flushing statistics",
        "Receiving the request and sending the answer",
    ):
        assert expected in text
        assert expected not in words(printed(result))
    assert "2 processors for 2 clients" in words(printed(result))


def test_a_control_without_an_interval_covers_nothing() -> None:
    result = sample().result
    (control,) = [arm for arm in result.arms if arm.role == "control"]
    assert control.answer is not None
    control.answer.us.lo = control.answer.us.hi = None
    assert "no figure for the base arm measured again" in all_words(result)


@pytest.mark.parametrize("mde", [None, float("nan")])
def test_without_a_detectable_effect_none_is_named(mde: float | None) -> None:
    result = sample().result
    missed = f"A cost under {result.design.mde_us:.2f} µs"
    assert missed in words(printed(result))
    result.design.mde_us = result.design.mde_pct = mde
    assert "A cost under" not in printed(result)


@pytest.mark.parametrize("details", [False, True])
def test_a_result_without_numbers_still_prints(details: bool) -> None:
    result = sample().result
    nothing = Interval(estimate=None, lo=None, hi=None)
    for arm in result.arms:
        arm.mean_us = arm.p50_us = arm.p99_us = None
        if arm.effect:
            arm.effect = type(arm.effect)(**dict.fromkeys(type(arm.effect).model_fields, nothing))
            judged(arm, "inconclusive", ReasonKind.NOT_ESTIMATED, us=nothing, pct=nothing)
    base = result.baseline
    base.body_mean_us = base.threshold_us = None
    result.design.mde_us = result.design.mde_pct = result.design.participation = None
    result.switching.switch_us = result.switching.switch_throughput_pct = None
    assert row(result, STATEMENTS).endswith("no answer")
    assert "None" not in printed(result, details=details)
    assert "nan" not in printed(result, details=details)
    result.arms = result.arms[:1]
    assert "transactions of" in words(printed(result, details=details))


def test_an_ascii_terminal_gets_ascii() -> None:
    result = sample().result
    judged(arm_of(result, "track_io_timing"), "equivalent", ReasonKind.INSIDE_MARGIN)
    arm_of(result, STATEMENTS).name = "naïve \u2603"
    text = printed(result, 80, "ascii", details=True)
    assert text.isascii()
    assert "transactions of 64.6 us" in words(text)
    assert "none over 0.5 %" in text
    assert "na?ve ?" in text


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize(
    "name", ["[bold red]x[/]", "\x1b[31mred\x1b[0m\x07", "a\nb", "\u202eevil", ":smile:"]
)
def test_names_cannot_steer_the_terminal(name: str, details: bool) -> None:
    """Nor can what the server says: reasons and evidence are its words."""
    result = sample().result
    arm_of(result, STATEMENTS).name = name
    text = printed(result, 120, details=details)
    reasons = [Reason(kind=ReasonKind.ENDED_EARLY, text=name)]
    arm = arm_of(result, "auto_explain")
    judged(arm, "not_verified", reasons=reasons)
    name_proof(result, "missing", name, "auto_explain")
    result.load["script"] = name
    result.warnings = [name]
    text = printed(result, 120, details=details)
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    expected = plain(name)
    assert any(line.startswith(f"{expected}  ") for line in text.splitlines())
    assert f"the trial ended early: {expected}; {expected}" in words(text)
    assert f"pgbench {expected}, 2 clients" in words(text)


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
