"""Studies of servers built from source: each round has a linking of its own."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from pgtare.weighing.ladder.bench import Bench
from pgtare.weighing.ladder.study_file import parse
from tests.commands import pgtare
from tests.servers import BUILT

pytestmark = [pytest.mark.source, pytest.mark.server, pytest.mark.timeout(1800)]

RECIPE = (
    f"{{ build = {BUILT.major}, configure = {json.dumps(BUILT.configure)}, "
    f"cflags = {json.dumps(BUILT.cflags)}, ldflags = {json.dumps(BUILT.ldflags)} }}"
)
STUDY = f"""
title = "One build twice"
[servers]
main = {RECIPE}
again = {RECIPE}
[protocol]
rounds = 3
run = "1s"
warm_up = "1s"
layouts = 3
[analysis]
floor = "VAN"
[gates]
steal_at_most = "100%"
other_load_at_most = "100%"
[[variant]]
name = "VAN"
preload = ["wait_event_timing"]
runtime = {{ "wait_event_timing.capture" = "stats" }}
capture = "stats"
[[variant]]
name = "STB"
server = "again"
[[comparison]]
arm = "STB"
base = "VAN"
[[workload]]
name = "W1"
builtin = "select-only"
scale = 1
"""


def executable(bench: Bench, variant: str, layout: int) -> Path:
    """What a variant's server runs."""
    study = bench.study
    serving = bench.serve(variant, study.the_workload("W1"), layout)
    return Path(psutil.Process(serving.cluster.postmaster_pid).exe())


def test_a_round_serves_the_linking_that_it_was_given() -> None:
    with Bench(parse(STUDY, "study.toml")) as bench:
        own = executable(bench, "VAN", 0)
        seen = [executable(bench, name, layout) for name in ("VAN", "STB") for layout in (1, 2)]
        assert executable(bench, "VAN", 1) == seen[0]
    assert len({own, *seen}) == 5
    assert len({path.read_bytes() for path in (own, *seen)}) == 5


def test_a_study_of_builds_speaks_over_their_linkings(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    done = pgtare("ladder", path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (workload,) = json.loads((tmp_path / "out" / "result.json").read_text())["workloads"]
    assert workload["rounds_kept"] == 3, workload["dropped"]
    (compared,) = workload["compared"]
    assert compared["over_layouts"]["layouts"] == 3
    assert compared["effect"]["lo_pct"] < compared["effect"]["pct"] < compared["effect"]["hi_pct"]
    assert "3 pairs of linkings" in compared["derivation"]
