"""From runs to a result: which rounds count, what is tested, and when there is no number."""

from __future__ import annotations

import json
import math

import pytest

from pgtare.weighing.ladder import answers, page, wording
from pgtare.weighing.ladder.charts import charts
from pgtare.weighing.ladder.records import Run
from pgtare.weighing.ladder.remaining_steps import remaining
from pgtare.weighing.ladder.rounds import all_steps
from tests.unit.simulated_study import STUDY, analysed, page_text, runs, study

EFFECTS = {"stats": -0.001, "trace": -0.08}


def change(made: dict[str, Run], round_: int, variant: str, **what: object) -> None:
    for key, run in made.items():
        if (run.step.round, run.step.variant) == (round_, variant):
            made[key] = run.model_copy(update=what)


def test_a_finished_study_has_its_verdicts() -> None:
    found = study()
    result = analysed(found, runs(found, EFFECTS))
    assert result.state == "finished"
    (workload,) = result.workloads
    assert workload.rounds_kept == 10
    stats, trace = workload.compared
    assert trace.verdict == "cost"
    assert trace.p is not None
    assert trace.p_adjusted is not None
    assert trace.p_adjusted == pytest.approx(2 * trace.p)  # the smaller of two
    assert stats.verdict in ("inconclusive", "equivalent")
    assert trace.effect.pct == pytest.approx(-8, abs=2)
    assert 2**9 * trace.p == round(2**9 * trace.p)  # by all 2^10 signs, twice the smaller side
    assert workload.floor is not None
    assert workload.floor.arm == "off again"
    assert [b.metric for b in trace.other_metrics] == list(found.workload[0].also)
    json.loads(result.to_json())
    # the answer explains its words
    answer = page.page(result).split("Answer</h2>")[1].split("</section>")[0]
    assert "Floor: off compared with itself" in answer
    assert "rung" not in page_text(result)


def test_the_sentence_on_equivalence_shows_what_lies_within_the_margin() -> None:
    found = study(STUDY.replace("[analysis]", '[analysis]\nmargin = "1%"'))
    made = runs(found, {})
    for key, run in made.items():
        # of 90 % of the flips within 1 %, of 95 % not
        values = {"off": 0.0, "stats": 0.0128 * math.sin(2.1 * run.step.round)}
        tps = 1000 * math.exp(values.get(run.step.variant, 0.0))
        made[key] = run.model_copy(update={"metrics": {**run.metrics, "tps": tps}})
    result = analysed(found, made)
    stats = result.workloads[0].compared[0]
    assert stats.verdict == "equivalent"
    assert stats.within is not None
    assert stats.within.lo_pct is not None
    assert stats.effect.lo_pct is not None
    assert stats.effect.lo_pct < stats.within.lo_pct
    sentence = next(text for tone, text in answers.found(result) if tone == "equivalent")
    assert (
        f"90 % interval {wording.interval(stats.within)}, within the margin of ±1 % (not corr"
        in sentence
    )
    assert wording.interval(stats.effect) not in sentence


def test_rare_costs_are_said_not_to_be_shown() -> None:
    found = study(STUDY.replace("rounds = 10", "rounds = 12"))
    report = page_text(analysed(found, runs(found, {})))
    # 0.95 = 1 - 0.7791^12
    assert "happened in 0 of 12 rounds may happen in up to 22 % of rounds (95 %)" in report
    unfinished = {key: run for key, run in runs(found, {}).items() if run.step.round < 3}
    assert "may happen in up to" not in page_text(analysed(found, unfinished))


@pytest.mark.slow
def test_intervals_are_called_by_the_level_that_they_have() -> None:
    found = study(STUDY.replace("[analysis]", "[analysis]\nalpha = 0.1"))
    result = analysed(found, runs(found, EFFECTS))
    report = page_text(result)
    assert "90 % interval" in report
    assert "95 % interval" not in report


@pytest.mark.slow
def test_what_was_not_played_counts_in_the_family() -> None:
    text = STUDY + STUDY[STUDY.index("[[workload]]") :].replace('"W1"', '"W2"')
    found = study(text).only(["W1"])
    result = analysed(found, runs(found, EFFECTS))
    assert result.family == 4
    trace = result.workloads[0].compared[1]
    assert trace.p is not None
    assert trace.p_adjusted == pytest.approx(4 * trace.p)


def test_the_floor_is_reported_as_a_width_and_is_no_test_of_the_machine() -> None:
    found = study()
    made = runs(found, {})
    result = analysed(found, made)
    floor = result.workloads[0].floor
    assert floor is not None
    width = f"± {floor.effect.half_width_pct:.2f} %"
    report = page_text(result)
    assert f"W1: off against itself (the floor) is known to {width}." in report
    assert f">{width}<" in page.page(result)  # in the table's row
    for key, run in made.items():
        if run.step.variant == "off again":
            slower = {**run.metrics, "tps": 0.9 * run.metrics["tps"]}
            made[key] = run.model_copy(update={"metrics": slower})
    report = page_text(analysed(found, made))
    assert "it misses 0, as 5 % of floors do by chance: which is which was drawn by lot" in report
    few = {key: run for key, run in made.items() if run.step.round <= 4}
    short = study(STUDY.replace("rounds = 10", "rounds = 4"))
    report = page_text(analysed(short, few))
    assert "the floor cannot say how narrow a comparison gets, as 4 rounds give no int" in report
    assert "fewer than 6 rounds exclude no effect at this level, however large" in report
    assert "`rounds = 6` or more under [protocol] of the study file gives ends" in report
    assert "cannot say\n" in report  # in the table's row


def test_an_interval_without_ends_has_none_in_json_and_leaves_the_frame_of_a_chart() -> None:
    found = study(STUDY.replace("rounds = 10", "rounds = 4"))
    result = analysed(found, runs(found, EFFECTS))
    trace = result.workloads[0].compared[1]
    assert trace.effect.pct is not None
    assert (trace.effect.lo_pct, trace.effect.hi_pct) == (None, None)
    assert wording.interval(trace.effect) == "[−∞, +∞]"
    ends = [(b.effect.lo_pct, b.effect.hi_pct) for b in trace.other_metrics]
    assert ends
    assert set(ends) == {(None, None)}
    (effects,) = (c for c in charts(result) if c.id == "effects")
    left, right = effects.layout["xaxis"]["range"]
    for line in effects.data:
        above, below = line["error_x"]["array"], line["error_x"]["arrayminus"]
        assert min(x + up for x, up in zip(line["x"], above, strict=True)) > right
        assert max(x - down for x, down in zip(line["x"], below, strict=True)) < left


def test_less_latency_is_a_gain() -> None:
    found = study(STUDY.replace('name = "W1"', 'name = "W1"\nmetric = "latency_mean_us"', 1))
    (workload,) = analysed(found, runs(found, {"trace": 0.1})).workloads
    assert workload.compared[1].verdict == "gain"


def test_a_run_that_failed_a_gate_takes_its_round_with_it() -> None:
    found = study()
    made = runs(found, EFFECTS)
    change(made, 4, "stats", failed=("another load on the machine took 40 % of the processors",))
    (workload,) = analysed(found, made).workloads
    assert workload.rounds_kept == 9
    (dropped,) = workload.dropped
    assert dropped.round == 4
    assert "stats: another load" in dropped.reasons[0]
    assert "round 4 was dropped" in page_text(analysed(found, made))
    # drops are reported by variant
    change(made, 6, "stats", failed=("7 pages were swapped",))
    result = analysed(found, made)
    assert [d.variants for d in result.workloads[0].dropped] == [("stats",), ("stats",)]
    sentence = "W1: 2 rounds dropped; what did not pass: stats in 2."
    assert sentence in page_text(result)


def test_a_round_without_a_figure_does_not_count_for_it() -> None:
    """Processor time is counted in ticks, of which a short run may have none."""
    found = study(STUDY.replace("also = [", 'also = ["cpu_us", '))
    made = runs(found, EFFECTS)
    for key, run in made.items():
        if (run.step.round, run.step.variant) == (4, "off"):
            made[key] = run.model_copy(update={"metrics": {**run.metrics, "cpu_us": 0.0}})
    (workload,) = analysed(found, made).workloads
    cpu = workload.compared[1].other_metrics[0]
    assert cpu.metric == "cpu_us"
    assert cpu.effect.pct is not None
    assert cpu.absolute == pytest.approx(60 * cpu.effect.pct / 100, rel=0.1)
    tested = study(STUDY.replace('name = "W1"', 'name = "W1"\nmetric = "cpu_us"', 1))
    (workload,) = analysed(tested, made).workloads
    (dropped,) = workload.dropped
    assert (dropped.round, dropped.reasons) == (4, ("off: cpu_us was not measured",))


def test_a_checkpoint_in_one_variant_only_takes_the_round() -> None:
    found = study()
    made = runs(found, EFFECTS)
    change(made, 2, "trace", events=("checkpoint",))
    for variant in found.members:
        change(made, 3, variant, events=("checkpoint",))
    (workload,) = analysed(found, made).workloads
    assert [d.round for d in workload.dropped] == [2]
    assert "trace: a checkpoint fell into it, not into the others" in workload.dropped[0].reasons
    assert workload.caveats == (
        "in 1 round every run had a checkpoint",
        "1 round dropped; what did not pass: trace in 1",
    )


def test_waits_other_than_stated_are_reported_and_drop_nothing() -> None:
    found = study()
    made = runs(found, EFFECTS)
    for number in (2, 5):
        change(made, number, "stats", remarks=("IO/DataFileRead: 70 % of the time waited",))
    result = analysed(found, made)
    (workload,) = result.workloads
    assert workload.rounds_kept == 10
    assert (
        "W1: the waits of stats were not as stated in 2 rounds (IO/DataFileRead: 70 % of the time "
        "waited), which count all the same" in page_text(result)
    )


def test_a_variant_that_cannot_keep_up_with_an_open_load_is_reported() -> None:
    found = study(STUDY.replace('name = "W1"', 'name = "W1"\nload = "50%"\nmetric = "cpu_us"', 1))
    made = {
        key: run.model_copy(update={"machine": {**run.machine, "rate_tps": 20_300.0}})
        for key, run in runs(found, EFFECTS).items()
    }
    assert analysed(found, made).workloads[0].caveats == ()  # by chance
    for number in (2, 5):
        change(made, number, "trace", transactions=18_000)
    (workload,) = analysed(found, made).workloads
    assert workload.rounds_kept == 10
    (caveat,) = workload.caveats
    assert caveat.startswith(
        "trace could not keep up with the load in 2 rounds (it did 18,000 of 20,300 transactions "
        "that were due): its latency is that of a queue that grows"
    )


def test_too_many_dropped_rounds_leave_no_number() -> None:
    found = study()
    made = runs(found, EFFECTS)
    for number in (1, 2, 3):
        change(made, number, "off", failed=("the clock stepped by +900 ms",))
    result = analysed(found, made)
    (workload,) = result.workloads
    assert "3 of 10 rounds did not pass the gates, more than 25 %" in workload.why_not
    assert {c.verdict for c in workload.compared} == {"not_verified"}
    assert all(c.effect.pct is None and c.p is None for c in workload.compared)
    assert workload.by_round == ()
    report = page_text(result)
    assert "W1 does not count: 3 of 10 rounds did not pass the gates, more than 25 %." in report
    assert "allow for more under [gates] in the study file" in report
    assert "not verified" not in report  # a table of dashes
    assert "Variants: off: " in report


def test_no_time_is_spent_on_what_can_give_no_number_any_more() -> None:
    found = study()
    made = {k: r for k, r in runs(found, EFFECTS).items() if r.step.round <= 3}
    for number in (1, 2):
        change(made, number, "off", failed=("7 pages were swapped",))
    assert remaining(found, all_steps(found, 7), made, {})
    change(made, 3, "off", failed=("7 pages were swapped",))
    assert remaining(found, all_steps(found, 7), made, {}) == []
    result = analysed(found, made)
    assert result.state == "finished"
    assert "3 of 3 rounds did not pass" in result.workloads[0].why_not


def test_a_workload_that_shows_another_profile_has_no_number_and_no_runs() -> None:
    found = study()
    made = runs(found, EFFECTS)
    proof = made["W1-proof"].model_copy(update={"failed": ("IO/DataFileRead: 3 % of the waits",)})
    assert remaining(found, all_steps(found, 7), {"W1-proof": proof}, {}) == []
    (workload,) = analysed(found, {**made, "W1-proof": proof}).workloads
    assert "its proof did not pass" in workload.why_not
    assert {c.verdict for c in workload.compared} == {"not_verified"}


def test_an_unfinished_study_shows_no_figure() -> None:
    found = study()
    made = runs(found, EFFECTS)
    made.pop(next(reversed(made)))
    result = analysed(found, made)
    assert result.state == "unfinished"
    assert all(not w.compared and w.floor is None and not w.by_round for w in result.workloads)
    assert '"pct"' not in result.to_json()


def test_a_study_ended_by_hand_pays_for_the_choice_of_moment() -> None:
    found = study()
    made = runs(found, {"trace": -0.02})
    made.pop(next(reversed(made)))
    result = analysed(found, made, closed=True)
    (workload,) = result.workloads
    trace = workload.compared[1]
    assert trace.effect.half_width_pct is not None
    assert trace.se_pct is not None
    assert 2.3 < trace.effect.half_width_pct / trace.se_pct < 6
    assert {c.rounds_to_settle for c in workload.compared} == {None}
    assert "The study is closed, so it stays that way." in page_text(result)
