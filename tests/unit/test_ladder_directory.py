"""A study's directory: begun as a whole or not at all, gone on with as it was begun."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pgtare.errors import PgtareError, UsageError
from pgtare.kit import machine
from pgtare.weighing.ladder import planning, scripts
from pgtare.weighing.ladder.directory import Directory
from pgtare.weighing.ladder.planning import StudyPlan, all_steps, plan, resumed
from pgtare.weighing.ladder.study_file import parse
from tests.commands import failed, in_process
from tests.unit.simulated_study import STUDY, runs, study

TEXT = STUDY.replace('name = "W1"', 'name = "W1"\nscript = "load.sql"\nclients = "2/core"')


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "study" / "s.toml"
    path.parent.mkdir()
    path.write_text(TEXT)
    (path.parent / "load.sql").write_text("SELECT 1;\n")
    return path


def planned(study_file: Path, out: Path, seed: int | None = None) -> StudyPlan:
    return plan(study_file, out, quick=False, workloads=(), seed=seed, command=[])


def begin(found: StudyPlan) -> Directory:
    source = Path(found.facts.study_directory)
    found.directory.begin(found.facts, lambda target: scripts.place(found.study, source, target))
    return found.directory


def test_a_study_whose_scripts_cannot_be_kept_is_not_begun(
    study_file: Path, tmp_path: Path
) -> None:
    """Else it would go on later with a script that is not whole."""
    found = planned(study_file, tmp_path / "out")

    def fail_halfway(target: Path) -> None:
        (target / "load.sql").write_text("SELE")
        raise PgtareError("the disk is full")

    with found.directory.locked(), pytest.raises(PgtareError, match="disk is full"):
        found.directory.begin(found.facts, fail_halfway)
    assert not found.directory.begun
    with found.directory.locked():
        begin(found)
    assert (tmp_path / "out" / "load.sql").read_text() == "SELECT 1;\n"


def test_a_study_that_was_begun_is_resumed(study_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    begin(planned(study_file, out, seed=3))
    with pytest.raises(UsageError, match="pgtare ladder resume"):
        planned(study_file, out)
    assert resumed(out).facts.seed == 3


def test_a_damaged_run_is_named_with_its_remedy(study_file: Path, tmp_path: Path) -> None:
    directory = begin(planned(study_file, tmp_path / "out"))
    for run in list(runs(study(), {}).values())[:3]:
        directory.keep(run, {})
    first, second, _ = directory.runs()
    path = tmp_path / "out" / "runs" / f"{first}.json"
    path.write_text(path.read_text()[:200])
    with pytest.raises(PgtareError, match=rf"{first}\.json is damaged.*remove it, and that run"):
        directory.runs()
    directory.forget([first, second, "never-made"])
    assert len(directory.runs()) == 1


def test_a_study_keeps_the_number_of_its_clients(study_file: Path, tmp_path: Path) -> None:
    """Also where it is looked at on a machine of another size."""
    out = tmp_path / "out"
    found = planned(study_file, out)
    facts = found.facts.model_copy(update={"machine": {**found.facts.machine, "cpus_usable": 7}})
    begin(dataclasses.replace(found, facts=facts))
    assert resumed(out).study.workload[0].clients == 14
    assert parse(TEXT, "s.toml", 3).workload[0].clients == 6


HERE = machine.describe()


@pytest.mark.parametrize(
    ("servers", "machines", "message"),
    [
        ({"main": "PostgreSQL 18.1"}, {}, "the server main was PostgreSQL 18.1 and is PostgreSQL"),
        ({}, {"cpus_usable": 1000}, "the number of usable processors was 1000 and is"),
        ({}, {"cpu_model": "Z80"}, "the processor was Z80 and is"),
        ({"main": "PostgreSQL 18.2"}, {"load_1min": 99.0}, ""),
    ],
)
def test_a_study_goes_on_only_as_it_was_begun(
    study_file: Path,
    tmp_path: Path,
    servers: dict[str, str],
    machines: dict[str, Any],
    message: str,
) -> None:
    facts = planned(study_file, tmp_path / "out").facts
    begun = facts.model_copy(update={"servers": servers, "machine": {**HERE, **machines}})
    if not message:
        planning.check_continued(begun, begun, {"main": "PostgreSQL 18.2"}, tmp_path)
        return
    with pytest.raises(UsageError, match=message):
        planning.check_continued(begun, begun, {"main": "PostgreSQL 18.2"}, tmp_path)


def test_a_study_that_another_process_began_meanwhile_is_not_mixed(
    study_file: Path, tmp_path: Path
) -> None:
    mine, theirs = (planned(study_file, tmp_path / "out", seed) for seed in (1, 2))
    assert all_steps(mine.study, 1) != all_steps(theirs.study, 2)
    begun = begin(theirs).facts()
    with pytest.raises(UsageError, match="begun just now"):
        planning.check_continued(begun, mine.facts, {}, tmp_path)


def test_a_report_of_a_study_in_which_nothing_counts_fails_as_its_run_does(
    study_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = planned(study_file, out, seed=7)
    known = found.facts.model_copy(update={"servers": {"main": "PostgreSQL 18.0"}})
    directory = begin(dataclasses.replace(found, facts=known))
    made = runs(found.study, {})
    proof = made.pop("W1-proof")
    for one in made.values():
        directory.keep(one, {})
    unfinished = in_process("ladder", "report", out)
    assert unfinished.returncode == 0, unfinished.stderr
    directory.keep(proof.model_copy(update={"failed": ("no wait was counted",)}), {})
    message = failed(in_process("ladder", "report", out), 1)
    assert "no workload counts: the page says of each why not" in message
    assert (out / "report.html").exists()
