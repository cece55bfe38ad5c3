"""A study's page shows flame graphs of two variants and their difference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pgtare.observing.flame import recording
from pgtare.observing.flame.profile import changes, profile
from tests.commands import failed, pgtare
from tests.flame_recordings import needs_perf

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

STUDY = """
title = "Flames"
flames = ["W"]
[protocol]
kind = "rounds"
rounds = 2
run = "1s"
warm_up = "1s"
[quick]
rounds = 2
run = "1s"
warm_up = "1s"
[analysis]
alpha = 0.05
margin = "0.5%"
floor = "A"
[gates]
steal_at_most = "100%"
other_load_at_most = "100%"
dropped_at_most = "100%"
[[variant]]
name = "A"
[[variant]]
name = "B"
settings = { "log_min_duration_statement" = 0 }
[[comparison]]
arm = "B"
base = "A"
[[workload]]
name = "W"
title = "look-ups"
script = "look.sql"
setup = "made.sql"
clients = 2
scale = 1
metric = "tps"
"""


@pytest.mark.slow
def test_the_page_of_a_study_shows_both_variants_and_the_change(tmp_path: Path) -> None:
    needs_perf()
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    (tmp_path / "look.sql").write_text("SELECT n FROM made;\n")
    (tmp_path / "made.sql").write_text("DROP TABLE IF EXISTS made; CREATE TABLE made (n int);\n")
    done = pgtare("ladder", study, "--quick", "--out", tmp_path / "out", timeout=170)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "report.html").read_text()
    for id in ("W-A-off", "W-B-off", "W-change-off", "W-A-on", "W-B-on", "W-change-on"):
        assert f'id="flame-{id}"' in text
    kept = recording.load(tmp_path / "out" / "flames" / "W" / "B-on")
    assert any("errfinish" in stack for stack in kept.samples.stacks)
    # only what is missing recorded again
    kept_at = (tmp_path / "out" / "flames" / "W" / "B-on").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "out" / "flames" / "W" / "A-off")
    done = pgtare("ladder", "resume", tmp_path / "out", timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "flames" / "W" / "A-off" / "flame.json").exists()
    assert (tmp_path / "out" / "flames" / "W" / "B-on").stat().st_mtime_ns == kept_at
    places = [tmp_path / "out" / "flames" / "W" / f"{name}-on" for name in "AB"]
    before, after = (profile(recording.load(place).shown(idle=False)) for place in places)
    found = {frame.name: frame for frame in changes(before, after)}
    assert found["errfinish"].points > 0
    assert found["secure_read"].before_pct > 0  # computing on the way to a wait
    assert "errfinish" in pgtare("flame", "diff", *places).stdout
    assert json.loads((tmp_path / "out" / "result.json").read_text())["runs_done"] > 0


@pytest.mark.slow
def test_a_study_that_names_no_workload_of_its_own(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY.replace('flames = ["W"]', 'flames = ["X"]'))
    assert "flames names the workload 'X'" in failed(pgtare("ladder", study, "--dry-run"), 2)
