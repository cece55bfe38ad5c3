"""Scripts of a study that are filled in with a workload's values, and figures next to metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.weighing.ladder import scripts, study_file, tables, wording
from pgtare.weighing.ladder.server_reading import ServerReading
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import placed
from tests.unit.simulated_study import STUDY

STUDIES = Path(__file__).parents[2] / "studies"


def evictions() -> Study:
    found, _ = study_file.read(STUDIES / "pgss_eviction.toml")
    return found


def test_both_counts_of_the_eviction_study_can_be_set(tmp_path: Path) -> None:
    study = evictions()
    workload = study.the_workload("E1").model_copy(
        update={"values": {"scenarios": 3, "statements": 2}}
    )
    study = study.model_copy(update={"workload": (workload,)})
    scripts.place(study, STUDIES, tmp_path)
    script = (tmp_path / placed(workload.script or "", workload)).read_text()
    assert script.count("SELECT 1 FROM") == 2
    assert "random(0, 2) * 2" in script
    assert "{" not in script
    assert "1 .. 6 LOOP" in (tmp_path / placed(workload.setup or "", workload)).read_text()


def test_each_workload_has_its_own_script(tmp_path: Path) -> None:
    study = evictions()
    scripts.place(study, STUDIES, tmp_path)
    for workload in study.workload:
        (script,) = study.load_spec(workload, tmp_path, None).scripts
        distinct = workload.values["scenarios"] * workload.values["statements"]
        assert f"random(0, {workload.values['scenarios'] - 1})" in script.path.read_text()
        assert workload.name in ("E1", "E2") or workload.name == f"E{distinct}"


def test_in_a_script_scale_is_the_workload_s() -> None:
    study, _ = study_file.read(STUDIES / "wait_event_timing.toml")
    found = {w.name: study.load_spec(w, STUDIES, None).arguments() for w in study.workload}
    assert "scale=10" in found["W5"]
    assert "-D" not in found["W1"]  # pgbench counts the branches for its own scripts


def test_a_value_that_is_missing_is_reported(tmp_path: Path) -> None:
    study = evictions()
    workload = study.the_workload("E1").model_copy(update={"values": {"scenarios": 3}})
    study = study.model_copy(update={"workload": (workload,)})
    with pytest.raises(UsageError, match=r"pgss_scenario.sql.j2 cannot be filled in for E1.*state"):
        scripts.place(study, STUDIES, tmp_path)


@pytest.mark.parametrize("sum_", ["8 // n", "'8' + n"])
def test_a_sum_that_cannot_be_done_is_reported(tmp_path: Path, sum_: str) -> None:
    (tmp_path / "sum.sql.j2").write_text(f"SELECT {{{{ {sum_} }}}}")
    workload = evictions().the_workload("E1")
    workload = workload.model_copy(update={"script": "sum.sql.j2", "setup": None})
    workload = workload.model_copy(update={"values": {"n": 0}})
    study = evictions().model_copy(update={"workload": (workload,)})
    with pytest.raises(UsageError, match=r"sum\.sql\.j2 cannot be filled in for E1: "):
        scripts.place(study, tmp_path, tmp_path / "runs")


def test_a_script_elsewhere_is_refused(tmp_path: Path) -> None:
    workload = evictions().the_workload("E1").model_copy(update={"setup": "../elsewhere.sql"})
    study = evictions().model_copy(update={"workload": (workload,)})
    with pytest.raises(UsageError, match="must be next to the study file"):
        scripts.place(study, STUDIES, tmp_path / "runs")


def test_a_figure_is_a_query_or_the_log() -> None:
    text = STUDY.replace(
        "[[workload.profile]]",
        '[[workload.figure]]\nname = "x"\nunit = "1/s"\n[[workload.profile]]',
        1,
    )
    assert text != STUDY
    with pytest.raises(UsageError, match="give either query or log"):
        study_file.parse(text, "study.toml")


def test_lines_of_the_log_are_counted_between_two_places(tmp_path: Path) -> None:
    log = tmp_path / "log"
    early = "LOG:  duration: 30.1 ms  statement: COMMIT\n"
    early *= 3
    log.write_text(early)
    workload = evictions().the_workload("E2")
    nothing = ServerReading(0.0, {}, None, {}, {}, ())
    before = replace(nothing, figures={"deallocations": 10.0, "over-20-ms": float(len(early))})
    line = "LOG:  duration: 25.0 ms  statement: SELECT 1\n"
    log.write_text(early + line + "LOG:  checkpoint starting\n" + line)
    grown = {"deallocations": 40.0, "over-20-ms": float(log.stat().st_size)}
    found = replace(nothing, figures=grown).figures_since(before, log, workload, 3.0)
    assert found == {"deallocations": 10.0, "over-20-ms": 2.0}


def test_figures_read_as_people_write_them() -> None:
    assert [wording.figure(x) for x in (0.0, 0.25, 2.0, 1448.4)] == ["0", "0.2", "2", "1,448"]
    assert tables.wording.figure(None) == "–"
