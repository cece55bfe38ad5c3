"""Studies of built servers: linkings in the plan, and in what is said of two builds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import UsageError
from pgtare.weighing.ladder import linkings, markdown
from pgtare.weighing.ladder.bench import Bench
from pgtare.weighing.ladder.records import Run
from pgtare.weighing.ladder.study import Study
from tests.unit.simulated_study import STUDY, analysed, runs, steps, study

BUILT = (
    STUDY.replace("rounds = 10", "rounds = 12\nlayouts = 4")
    .replace('[[variant]]\nname = "stats"', '[[variant]]\nname = "stats"\nserver = "patched"')
    .replace(
        "[protocol]",
        "[servers]\nmain = { build = 18 }\npatched = { build = 18, cflags = '-O2 -g' }\n[protocol]",
    )
)


def on_layouts(found: Study, made: dict[str, Run], sd: float, variant: str) -> None:
    """Each linking of a build makes it faster or slower."""
    rng = np.random.default_rng(3)
    factors = 1 + rng.normal(0, sd, 5)
    for key, run in made.items():
        if run.step.variant == variant and run.step.kind == "run":
            tps = run.metrics["tps"] * factors[run.step.layout]
            made[key] = run.model_copy(update={"metrics": {**run.metrics, "tps": tps}})


def test_each_linking_is_used_as_often_and_by_a_whole_round() -> None:
    found = study(BUILT)
    by_round: dict[int, set[int]] = {}
    for step in steps(found):
        if step.kind == "run":
            by_round.setdefault(step.round, set()).add(step.layout)
    assert all(len(layouts) == 1 for layouts in by_round.values())
    order = [by_round[number].pop() for number in range(1, 13)]
    assert Counter(order) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert sorted(order[:4]) == [1, 2, 3, 4]
    assert linkings.order(8, 0, 12, 4) != linkings.order(9, 0, 12, 4)


def test_without_layouts_the_build_is_as_it_was_made() -> None:
    assert {step.layout for step in steps(study())} == {0}


def test_no_two_servers_share_a_linking() -> None:
    seeds = {linkings.link_seed(server, n) for server in ("a", "b") for n in range(50)}
    assert len(seeds) == 100


def test_an_interval_between_builds_is_over_their_linkings() -> None:
    found = study(BUILT)
    made = runs(found, {})
    on_layouts(found, made, 0.03, "stats")
    (workload,) = analysed(found, made).workloads
    builds, same = workload.compared
    assert builds.over_layouts is not None
    assert builds.over_layouts.layouts == 4
    assert builds.over_layouts.sd_layout_pct is not None
    assert builds.over_layouts.sd_layout_pct > 1
    assert "mean over 4 pairs of linkings in 12 rounds, t, 3 df" in builds.derivation
    assert builds.effect.lo_pct is not None
    assert builds.effect.hi_pct is not None
    assert builds.effect.covers_zero  # three per cent of layout are no difference of the builds
    d = np.log1p(np.array(builds.round_pct) / 100)
    alone = 2 * 1.96 * 100 * d.std(ddof=1) / np.sqrt(len(d))
    assert builds.effect.hi_pct - builds.effect.lo_pct > 1.5 * alone
    # variants of one server share its linking in a round
    assert same.over_layouts is None
    assert "ways" in same.derivation
    assert analysed(found, made).together == ()
    assert "over 4 linkings" in markdown.render(analysed(found, made))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layouts = 4", "layouts = 2"), "greater than or equal to 3"),
        (("rounds = 12", "rounds = 3"), "each of 4 linkings"),
        (("cflags = '-O2 -g'", "pg_config = '/x'"), "give one of"),
        (("build = 18 }", "source = 'wheel', cflags = '-O3' }"), "cflags and ldflags are for"),
        (("build = 18", "build = 14"), "greater than or equal to 15"),
        (("main = { build = 18 }", "main = { source = 'wheel' }"), "line 8: stats and off are on"),
    ],
)
def test_what_cannot_be_is_refused(change: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        study(BUILT.replace(*change))


def test_linkings_need_a_built_server() -> None:
    with pytest.raises(UsageError, match=r"line 5: .*none has build"):
        study(STUDY.replace("rounds = 10", "rounds = 12\nlayouts = 4"))


def test_what_a_built_server_can_run_is_known_without_building_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTARE_DIR", str(tmp_path))
    found = study(
        BUILT.replace("build = 18", "build = 17").replace('name = "W1"', 'name = "W1"\noldest = 18')
    )
    assert Bench(found).serves(found.workload[0]) == "it needs PostgreSQL 18, and off is 17"
    assert not list(tmp_path.iterdir())
