"""Duet rounds on real clusters: roles, restarts, known effects, and variants that cannot be."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pgtare import parquet
from pgtare.errors import MeasurementError, UsageError
from pgtare.ladder.duet import DuetBlock, DuetRound, DuetVariant, play_duet
from pgtare.ladder.roles import roles_of_set
from pgtare.load import LoadSpec, Script
from pgtare.load.duet_plan import Length
from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from pgtare.server.signals import StopRequest

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

#: What a transaction sleeps in either variant.
BASE_MS, ARM_MS = 1, 3
SEED = 20


def variants_of(binaries: Binaries, runtime: bool) -> list[DuetVariant]:
    """A base, and an arm that differs by a run-time setting, or by what needs a restart too."""
    arm_start = {} if runtime else {"max_connections": 50}
    return [
        DuetVariant("base", binaries, runtime={"duet.ms": BASE_MS}),
        DuetVariant("arm", binaries, settings=arm_start, runtime={"duet.ms": ARM_MS}),
    ]


@pytest.fixture
def load(tmp_path: Path) -> LoadSpec:
    path = tmp_path / "sleep.sql"
    path.write_text("SELECT pg_sleep(current_setting('duet.ms')::float8 / 1000);")
    return LoadSpec(scripts=(Script(path),), protocol="prepared", seed=0)


@pytest.fixture(scope="module")
def block(wheel: Binaries) -> Iterator[DuetBlock]:
    with DuetBlock(variants_of(wheel, runtime=True), scale=None) as running:
        yield running


def test_a_known_effect_is_recovered_by_sets_of_rounds(
    block: DuetBlock, load: LoadSpec, tmp_path: Path
) -> None:
    played: list[DuetRound] = []
    starts = [_postmaster(cluster) for cluster in block.clusters]
    result = play_duet(
        block, load, Length(0.2, warmup_s=0.1), sets=3, seed=SEED, directory=tmp_path,
        on_round=played.append,
    )  # fmt: skip
    assert tuple(played) == result.rounds
    assert not result.interrupted
    expected = [roles for number in range(3) for roles in roles_of_set(SEED, number, 2)]
    assert [r.roles for r in result.rounds] == expected
    assert [r.dropped for r in result.rounds] == [None] * 6
    for metric in ("latency_us", "service_us"):
        ratios = result.log_ratios(metric, "p50")  # type: ignore[arg-type]
        values = result.values(metric, "p50")  # type: ignore[arg-type]
        assert ratios.shape == (3, 2)
        assert (ratios[:, 0] == 0).all()
        assert np.median(values[:, 1] - values[:, 0]) == pytest.approx(2000, rel=0.15)
        truth = np.log((values[:, 0].mean() + 2000) / values[:, 0].mean())
        assert ratios[:, 1].mean() == pytest.approx(truth, abs=0.12)
    # run-time settings need no restart
    assert [_postmaster(cluster) for cluster in block.clusters] == starts
    kept = parquet.read(tmp_path / "round-0003.parquet")
    assert len(kept["cycle"]) == len(result.rounds[2].run.records.rows)
    described = result.rounds[0].describe(result.variants)
    assert described["roles"] == [result.variants[v].name for v in result.rounds[0].roles]


def _postmaster(cluster: Cluster) -> int:
    return cluster.postmaster_pid


def test_roles_and_settings_go_together(block: DuetBlock) -> None:
    for roles in ((1, 0), (0, 1)):
        block.assign(roles)
        assert _shown(block, "duet.ms") == [str((BASE_MS, ARM_MS)[role]) for role in roles]


def _shown(block: DuetBlock, name: str) -> list[str]:
    shown = []
    for cluster in block.clusters:
        with cluster.connect() as connection:
            row = connection.execute(f"SHOW {name}").fetchone()
        assert row is not None
        shown.append(str(row[0]))
    return shown


def test_asked_to_stop_it_keeps_the_whole_sets(
    block: DuetBlock, load: LoadSpec, tmp_path: Path
) -> None:
    stop = StopRequest()

    def note(played: DuetRound) -> None:
        stop.made = played.number == 2

    result = play_duet(
        block, load, Length(0.2), sets=5, seed=1, directory=tmp_path, stop=stop, on_round=note
    )
    assert result.interrupted
    assert len(result.rounds) == 3
    assert result.log_ratios("latency_us", "body").shape == (1, 2)


def test_an_overloaded_round_is_dropped_and_says_why(
    block: DuetBlock, load: LoadSpec, tmp_path: Path
) -> None:
    """Dropping only the transactions without an answer would flatter the slower server."""
    hurried = dataclasses.replace(load, rate=50_000.0)
    played = block.play(0, 1, hurried, Length(0.3, drain_s=0.1), tmp_path / "r")
    assert played.statistics is None
    assert re.search(r"\d+ transactions had no answer", str(played.dropped))


def test_a_crash_drops_the_round_and_the_next_one_goes_on(
    block: DuetBlock, load: LoadSpec, tmp_path: Path
) -> None:
    """With the set of a dropped round its partner goes, as placement would not cancel."""
    crash = tmp_path / "crash.sql"
    crash.write_text("SELECT pg_terminate_backend(pg_backend_pid());")
    bad = dataclasses.replace(load, scripts=(Script(crash),))
    first = block.play(0, 1, bad, Length(0.3), tmp_path / "a")
    assert "was lost: FATAL:  terminating connection" in str(first.dropped)
    second = block.play(1, 1, load, Length(0.3), tmp_path / "b")
    assert second.dropped is None


@pytest.mark.parametrize(
    "name",
    ["wheel", pytest.param("debian15", marks=[pytest.mark.debian, pytest.mark.slow])],
)
def test_variants_that_need_a_restart_get_one(
    name: str, request: pytest.FixtureRequest, load: LoadSpec, tmp_path: Path
) -> None:
    """Preloaded libraries too; what only one variant sets is taken back in the other."""
    base, arm = variants_of(request.getfixturevalue(name), runtime=False)
    arm = dataclasses.replace(arm, preload=("auto_explain",))
    with DuetBlock([base, arm], scale=None) as block:
        for number, roles in enumerate(roles_of_set(3, 0, 2)):
            played = block.play(number, 3, load, Length(0.3, warmup_s=0.1), tmp_path / str(number))
            assert played.dropped is None
            assert played.statistics is not None
            assert _shown(block, "max_connections") == [("100", "50")[role] for role in roles]
            assert _shown(block, "shared_preload_libraries") == [
                ("", "auto_explain")[role] for role in roles
            ]
            p50 = played.statistics.latency_us["p50"]
            assert p50[1] - p50[0] == pytest.approx(2000, rel=0.2)


def test_a_variant_that_cannot_start_is_named_with_its_log(wheel: Binaries) -> None:
    variants = [DuetVariant("odd", wheel, settings={"work_mem": "x"}), DuetVariant("base", wheel)]
    with pytest.raises(MeasurementError, match=r"(?s)variant odd: .*did not start.*work_mem"):
        DuetBlock(variants).__enter__()


def test_variants_that_cannot_share_directories_are_refused(
    wheel: Binaries, debian15: Binaries
) -> None:
    with pytest.raises(UsageError, match="one major version"):
        DuetBlock([DuetVariant("new", wheel), DuetVariant("old", debian15)])
    with pytest.raises(UsageError, match="name of its own"):
        DuetBlock([DuetVariant("same", wheel), DuetVariant("same", wheel)])
