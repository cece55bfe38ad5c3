"""Study files: what is read, and what is refused with its key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.weighing.ladder import study_file as studies
from pgtare.weighing.ladder.planning import StudyPlan, all_steps, plan
from pgtare.weighing.ladder.status import dry_run
from tests.commands import failed, in_process
from tests.unit.simulated_study import STUDY, study

SHIPPED = Path(__file__).parents[2] / "studies" / "wait_event_timing.toml"


def refused(text: str) -> str:
    with pytest.raises(UsageError) as found:
        studies.parse(text, "s.toml")
    return str(found.value)


def test_without_a_study_an_example_is_shown() -> None:
    said = failed(in_process("ladder", "--quick"), 2)
    assert "STUDY is missing" in said
    assert "`pgtare ladder studies/wait_event_timing.toml --quick`" in said


def test_the_shipped_study_is_sound() -> None:
    found, _ = studies.read(SHIPPED)
    assert [v.name for v in found.variant] == ["VAN", "STB", "OFF", "STA", "TRA"]
    names = [f"W{i}" for i in range(1, 10)]
    assert [w.name for w in found.workload] == names
    assert all(w.profile for w in found.workload)
    assert studies.check_rounds(found, quick=False) is None
    assert {v.server for v in found.variant} == {"main"}  # one server binary
    for workload in found.workload:
        found.load_spec(workload, SHIPPED.parent, None)


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ('run = "1s"', 'run = "1s"\nruns = 3', "unknown key 'runs' in protocol"),
        ("rounds = 10", "rouns = 10", "unknown key 'rouns' in protocol (did you mean rounds"),
        ('name = "W1"', 'name = "W1"\nbulitin = "select-only"', "did you mean builtin"),
        ("at_least", "at_laest", "unknown key 'at_laest' in workload.1.profile.1"),
        ('run = "1s"', 'run = "1500ms"', "is no duration"),
        ('run = "1s"', 'run = "1.5s"', "pgbench runs whole seconds"),
        ('at_least = "80%"', "at_least = 0.8", "is no percentage"),
        ('floor = "off"', 'floor = "of"', "the floor names the variant 'of', which is absent"),
        ('arm = "trace"', 'arm = "tracer"', "names the variant 'tracer', which is absent (did"),
        ('arm = "trace"', 'arm = "off"', "off is compared with itself"),
        ('arm = "trace"', 'arm = "trace"\nworkloads = ["W2"]', "names the workload 'W2', which"),
        (
            '"trace"\n[[comparison]]',
            '"off"  # once more\n[[comparison]]',
            "there is already a variant 'off'",
        ),
        ('name = "trace"', 'name = "trace"\nserver = "other"', "names the server 'other'"),
        (
            'name = "trace"',
            'name = "trace"\nruntime = { wait_event_timing.capture = "off" }',
            'variant.3.runtime: a name with a dot wants quotes, as in "wait_event_timing.capture"',
        ),
    ],
)
def test_mistakes_are_reported_with_file_and_key(right: str, wrong: str, expected: str) -> None:
    message = refused(STUDY.replace(right, wrong, 1))
    assert expected in message
    assert message.startswith("s.toml: "), message


def test_a_load_at_a_given_rate_is_not_tested_by_its_rate() -> None:
    paced = STUDY.replace('name = "W1"', 'name = "W1"\nload = "50%"')
    assert "with a load the rate is given, so that tps tests nothing" in refused(paced)
    studies.parse(paced.replace("load =", 'metric = "cpu_us"\nload ='), "s.toml")


def test_only_keys_of_the_same_section_are_suggested() -> None:
    message = refused(STUDY.replace('arm = "trace"', 'arm = "trace"\nname = "cost"', 1))
    assert message.endswith("unknown key 'name' in comparison.2")


def test_a_missing_key_and_broken_toml_are_reported() -> None:
    assert "rounds is missing" in refused(STUDY.replace("rounds = 10\n", ""))
    assert refused("title = 'x'\nrounds = = 3\n").startswith("s.toml: Invalid value (at line 2")
    assert refused("title = ").startswith("s.toml: Invalid value (at ")


def test_too_few_rounds_are_refused_or_said_at_once() -> None:
    few = study(STUDY.replace("rounds = 10", "rounds = 5"))
    with pytest.raises(UsageError, match=r"0\.0625 at best.*set rounds = 7 or more"):
        studies.check_rounds(few, quick=False)
    warning = studies.check_rounds(few, quick=True)
    assert warning is not None
    assert "cannot settle anything" in warning


def test_the_family_counts_every_declared_comparison() -> None:
    found, _ = studies.read(SHIPPED)
    assert found.family == 9 * 4
    assert found.made_quick().family == 4 * 4


def test_short_runs_may_be_dropped_more_often_where_the_file_says_so() -> None:
    found, _ = studies.read(SHIPPED)
    assert (found.gates.dropped_at_most, found.made_quick().gates.dropped_at_most) == (0.25, 0.5)
    plain = study(STUDY)
    assert plain.made_quick().gates == plain.gates


@pytest.mark.parametrize("path", [*SHIPPED.parent.glob("*.toml")], ids=lambda path: path.stem)
def test_every_shipped_study_is_read(path: Path) -> None:
    assert studies.read(path)[0].workload


@pytest.mark.slow
@pytest.mark.parametrize("quick", [False, True])
def test_the_family_is_that_of_the_file_whatever_workloads_are_run(
    tmp_path: Path, quick: bool
) -> None:
    def planned(*workloads: str) -> StudyPlan:
        return plan(SHIPPED, tmp_path / "s", quick=quick, workloads=workloads, seed=1, command=[])

    found, whole = planned("W2"), planned().study.family
    assert {w.name for w in found.study.workload} == {"W2"}
    assert whole > 4 * len(found.study.workload)
    assert found.study.family == whole
    assert f"Holm over {whole} comparisons" in dry_run(found)[-1 - quick]
    with pytest.raises(UsageError, match="there is no workload 'W22'"):
        planned("W22")


def test_every_round_has_every_variant_once_in_an_order_of_its_own() -> None:
    found = study()
    steps = [step for step in all_steps(found, 3) if step.kind == "run"]
    orders = [tuple(s.variant for s in steps if s.round == r) for r in range(1, 11)]
    assert all(sorted(o) == sorted(("off", "off again", "stats", "trace")) for o in orders)
    assert len(set(orders)) > 4
    assert all_steps(found, 3) == all_steps(found, 3)
    assert all_steps(found, 3) != all_steps(found, 4)


def test_each_place_in_a_round_is_as_likely() -> None:
    found = study()
    first = [
        next(s.variant for s in all_steps(found, seed) if s.kind == "run" and s.position == 0)
        for seed in range(800)
    ]
    counts = [first.count(name) for name in found.members]
    assert all(150 < n < 250 for n in counts), counts  # 200 ± 12


def test_the_shipped_quick_study_takes_a_quarter_of_an_hour_at_most(tmp_path: Path) -> None:
    planned = plan(SHIPPED, tmp_path / "new", quick=True, workloads=(), seed=1, command=[])
    assert [w.name for w in planned.study.workload] == ["W1", "W2", "W3", "W4"]
    assert planned.seconds(planned.steps) < 900


def test_steps_go_workload_by_workload() -> None:
    found = study(STUDY + STUDY[STUDY.index("[[workload]]") :].replace('"W1"', '"W2"'))
    steps = all_steps(found, 1)
    assert [step.workload for step in steps] == ["W1"] * (1 + 10 * 4) + ["W2"] * (1 + 10 * 4)
    assert [step.workload for step in steps if step.kind == "proof"] == ["W1", "W2"]


def test_the_study_file_of_the_docs_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ladder.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    found = studies.parse(text, "docs/ladder.md")
    assert studies.check_rounds(found, quick=False) is None
    # six rounds give one comparison an interval and a verdict
    assert studies.check_rounds(found.made_quick(), quick=True) is None
