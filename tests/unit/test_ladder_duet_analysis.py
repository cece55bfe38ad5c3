"""A duet in a study's analysis: sets of rounds are the unit, and a round takes its set with it."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from pgtare.weighing.ladder import page, terminal
from pgtare.weighing.ladder.planning import all_steps
from pgtare.weighing.ladder.records import Part, Run
from pgtare.weighing.ladder.remaining_steps import remaining
from pgtare.weighing.ladder.result import LadderResult
from pgtare.weighing.ladder.study import Study
from tests.unit import simulated_study
from tests.unit.simulated_study import STUDY, WAITS, page_text, runs, study

SETS = 8
NAMES = ("off", "stats", "trace", "off again")
#: What each data directory alone is worth, as a log-ratio: far more than any effect.
PLACES = (0.0, 0.4, -0.3, 0.1)
EFFECTS = {"off": 0.0, "stats": 0.003, "trace": 0.05, "off again": 0.0}
TEXT = (
    STUDY.replace("[analysis]", f"[protocol.duet]\nsets = {SETS}\n[analysis]")
    .replace(
        'name = "W1"', 'name = "W1"\nclients = 1\nprotocol = "duet"\nmetric = "latency_p50_us"'
    )
    .replace('"latency_p50_us", "latency_p95_us"', '"cpu_us", "latency_p95_us"')
    .replace("IO/DataFileRead", "Client/ClientRead")
)


def played(found: Study, noise: float = 0.002) -> dict[str, Run]:
    """All steps of the study, done: latencies by place, by effect, and some noise."""
    rng = np.random.default_rng(3)
    made = {}
    for step in all_steps(found, 7):
        parts = {}
        speed = rng.normal(0, 0.3)  # of the round, on all alike
        for place, role in zip(PLACES, step.roles, strict=False):
            p50 = 100 * np.exp(place + speed + EFFECTS[role] + rng.normal(0, noise))
            metrics = {"latency_mean_us": 1.1 * p50, "latency_p50_us": p50, "cpu_us": 0.5 * p50}
            parts[role] = Part(metrics=metrics, transactions=900, waits=WAITS, evidence=("shown",))
        made[step.id] = Run(
            step=step,
            started="",
            duration_s=2.0,
            metrics={} if parts else {"tps": 1.0},
            parts=parts,
        )
    return made


def analysed(made: dict[str, Run], found: Study | None = None) -> LadderResult:
    return simulated_study.analysed(found or study(TEXT), made)


@pytest.fixture
def made() -> dict[str, Run]:
    return played(study(TEXT))


def at(made: dict[str, Run], number: int) -> str:
    return next(key for key, run in made.items() if run.step.round == number)


def test_sets_are_the_unit_and_placement_cancels_in_them(made: dict[str, Run]) -> None:
    result = analysed(made)
    (workload,) = result.workloads
    assert (workload.protocol, workload.rounds_kept, workload.rounds_planned) == ("duet", 8, 8)
    stats, trace = workload.compared
    assert trace.metric == "latency_p50_us"
    assert trace.verdict == "cost"
    assert trace.rounds == SETS
    assert trace.effect.pct == pytest.approx(100 * np.expm1(0.05), abs=0.3)
    assert stats.effect.pct == pytest.approx(0.3, abs=0.3)
    assert workload.floor is not None
    assert workload.floor.effect.pct == pytest.approx(0, abs=0.3)
    assert {b.metric for b in trace.other_metrics} == {"latency_mean_us", "cpu_us"}


def test_a_set_says_the_mean_of_its_rounds(made: dict[str, Run]) -> None:
    rounds = [run for run in made.values() if run.step.kind == "run"]
    values = np.array([[r.parts[n].metrics["latency_p50_us"] for n in NAMES] for r in rounds])
    sets = np.array([(r.step.round - 1) // len(NAMES) for r in rounds])
    ratios = np.log(values / values[:, :1])
    expected = np.stack([ratios[sets == number].mean(axis=0) for number in range(SETS)])
    stats, trace = analysed(made).workloads[0].compared
    for column, compared in ((1, stats), (2, trace)):
        assert compared.round_pct == pytest.approx(100 * np.expm1(expected[:, column]))


def test_the_rate_of_an_open_load_is_what_each_server_gets(made: dict[str, Run]) -> None:
    found = study(TEXT.replace('protocol = "duet"', 'protocol = "duet"\nload = "50%"'))
    rates = {"W1": 9_000.0, "W1 by duet": 8_000.0}  # of the proof, of all servers together
    (workload,) = simulated_study.analysed(found, made, rates_tps=rates).workloads
    assert workload.rate_tps == 8_000 / len(NAMES)


def test_a_round_that_failed_a_gate_takes_its_set(made: dict[str, Run]) -> None:
    key = at(made, 6)
    made[key] = made[key].model_copy(update={"failed": ("7 pages were swapped",)})
    (workload,) = analysed(made).workloads
    assert workload.rounds_kept == SETS - 1
    (dropped,) = workload.dropped
    assert dropped.round == 2
    assert dropped.reasons == ("round 6: 7 pages were swapped",)
    report = page_text(analysed(made))
    assert "W1, set 2 was dropped: round 6: 7 pages" in report
    assert "1 set dropped; what did not pass: the machine under all of them in 1" in report


def test_a_checkpoint_on_one_server_takes_the_set_and_on_all_does_not(made: dict[str, Run]) -> None:
    def hit(number: int, *names: str) -> None:
        key = at(made, number)
        parts = {
            name: part.model_copy(update={"events": ("checkpoint",)} if name in names else {})
            for name, part in made[key].parts.items()
        }
        made[key] = made[key].model_copy(update={"parts": parts})

    hit(1, *NAMES)
    hit(9, "trace")
    (workload,) = analysed(made).workloads
    assert [d.round for d in workload.dropped] == [3]
    assert "round 9: trace: a checkpoint fell into it" in workload.dropped[0].reasons[0]
    assert workload.dropped[0].variants == ("trace",)
    assert workload.caveats[0] == "in 1 round every server had a checkpoint"


def test_a_round_that_could_not_be_made_takes_its_set(made: dict[str, Run]) -> None:
    key = at(made, 1)
    made[key] = made[key].model_copy(update={"failed": ("the run failed: gone",), "parts": {}})
    assert not made[key].made
    (workload,) = analysed(made).workloads
    assert [d.round for d in workload.dropped] == [1]


def test_a_set_that_is_not_done_counts_for_nothing_yet(made: dict[str, Run]) -> None:
    found = study(TEXT)
    gone = at(made, 32)
    made.pop(gone)
    left = remaining(found, all_steps(found, 7), made)
    assert [step.id for step in left] == [gone]
    result = analysed(made)
    assert result.state == "unfinished"
    assert result.workloads[0].rounds_kept == SETS - 1


@pytest.mark.slow
def test_every_report_says_which_protocol_gave_a_row(
    made: dict[str, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    other = study(TEXT + STUDY[STUDY.index("[[workload]]") :].replace('"W1"', '"W2"'))
    for key, run in runs(other, {"trace": -0.01}).items():
        if run.step.workload == "W2":
            made[key] = run
    result = analysed(made, other)
    assert [w.protocol for w in result.workloads] == ["duet", "rounds"]
    assert [w.spent_s for w in result.workloads] == [32 * 2.0, 40 * 3.0]  # without the proofs
    terminal.render(result, Console(width=200))
    output = capsys.readouterr().out
    assert "W1 (cached look-ups) by duet: trace costs something compared with off" in output
    assert "median latency, 8 of 8 duet sets, 64 s" in output
    assert "transactions a second, 10 of 10 rounds, 2 min" in output
    text = page_text(result)
    assert "8 of 8 duet sets" in text
    assert "10 of 10 rounds" in text
    assert "W1: duet, 4 servers up together" in text
    assert "W2: rounds of 4 runs of 1 s" in text
    assert "throughput is not measured" in text
    assert "W1 trace − off (duet)" in page.page(result)
    terminal.render(analysed(runs(study(), {}), study()), Console(width=200))
    assert "duet" not in capsys.readouterr().out
