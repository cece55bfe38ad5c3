"""The eviction study's two variants, a short run of each: figures, and the wait by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.weighing.ladder import scripts, study_file
from pgtare.weighing.ladder.records import Step
from pgtare.weighing.ladder.rounds import StepContext, play
from pgtare.weighing.ladder.study_servers import Bench
from tests.commands import pgtare, read
from tests.doctor_servers import STUDIES

pytestmark = [pytest.mark.server, pytest.mark.timeout(330)]
LOCK = "LWLock/pg_stat_statements"


@pytest.mark.slow
def test_one_run_of_each_variant(tmp_path: Path) -> None:
    study, _ = study_file.read(STUDIES / "pgss_eviction.toml")
    short = study.protocol.model_copy(update={"run": 1, "warm_up": 1})
    study = study.only(["E1"]).model_copy(update={"protocol": short})
    scripts.place(study, STUDIES, tmp_path)
    found = {}
    with Bench(study, tmp_path) as bench:
        for name in ("M400", "M100"):
            step = Step(id=name, kind="run", workload="E1", variant=name, round=1)
            found[name] = play(step, StepContext(study, bench, tmp_path, {})).run
    assert found["M400"].figures == {"deallocations": 0.0}
    assert found["M100"].figures["deallocations"] > 100
    waited = {
        name: sum(w.of_sessions for w in run.waits if w.event == LOCK)
        for name, run in found.items()
    }
    assert waited["M100"] > waited["M400"]


@pytest.mark.slow
def test_the_quick_study_shows_the_loss_and_names_the_wait(tmp_path: Path) -> None:
    text = (STUDIES / "pgss_eviction.toml").read_text()
    opened = text.replace('steal_at_most = "20%"', 'steal_at_most = "100%"')
    opened = opened.replace('other_load_at_most = "75%"', 'other_load_at_most = "100%"')
    assert opened.count('"100%"') == 2
    path = tmp_path / "pgss_eviction.toml"
    path.write_text(opened)
    (tmp_path / "scripts").symlink_to(STUDIES / "scripts")
    done = pgtare("ladder", path, "--quick", "-w", "E1", "--out", tmp_path / "out", timeout=320)
    assert done.returncode == 0, done.stderr
    (workload,) = read(tmp_path / "out" / "result.json")["workloads"]
    (compared,) = workload["compared"]
    assert compared["effect"]["hi_pct"] < 0
    figures = {rung["variant"]: rung["figures"]["deallocations"] for rung in workload["rungs"]}
    assert figures["M400"] == 0
    assert figures["M100"] > 300
    assert f"waits for more than M400 is {LOCK}" in done.stdout
    assert "deallocations, 1/s: M400 0, M100" in done.stdout
