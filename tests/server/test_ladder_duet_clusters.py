"""Duet rounds on real clusters: roles, restarts, known effects, and variants that cannot be."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.study.duet import RoundStatistics
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import BenchDatabase, LoadSpec, Script
from pgtare.postgres.load.duet_plan import Length
from pgtare.weighing.ladder.duet_clusters import (
    DuetBlock,
    DuetVariant,
    judge,
    load_seed,
    roles_of_set,
)
from pgtare.weighing.ladder.evidence import SessionsLook
from pgtare.weighing.ladder.study_sections import Variant, Workload
from pgtare.weighing.ladder.study_servers import Serving
from tests.loads import during
from tests.servers import binaries_slowly_on_15

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

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
def warmed() -> list[Cluster]:
    """The clusters of the block whose data were made ready."""
    return []


@pytest.fixture(scope="module")
def block(wheel: Binaries, warmed: list[Cluster]) -> Iterator[DuetBlock]:
    def warm(cluster: Cluster, _: BenchDatabase) -> None:
        warmed.append(cluster)

    with DuetBlock(variants_of(wheel, runtime=True), warm=warm) as running:
        yield running


@dataclasses.dataclass
class Played:
    """One round."""

    roles: tuple[int, ...]
    statistics: RoundStatistics | None
    dropped: str | None


def play(
    block: DuetBlock, number: int, load: LoadSpec, length: Length, output: Path, seed: int = SEED
) -> Played:
    """Give the clusters their roles in a round and run the load on them."""
    n = len(block.variants)
    roles = roles_of_set(seed, number // n, n)[number % n]
    block.assign(roles)
    run = block.drive(dataclasses.replace(load, seed=load_seed(seed, number)), length, output)
    return Played(roles, *judge(run, roles))


@pytest.mark.slow
def test_a_known_effect_is_recovered_in_every_set_of_rounds(
    block: DuetBlock, load: LoadSpec, tmp_path: Path
) -> None:
    starts = [_postmaster(cluster) for cluster in block.clusters]
    length = Length(0.2, warmup_s=0.1)
    played = [play(block, n, load, length, tmp_path / str(n)) for n in range(6)]
    assert [r.dropped for r in played] == [None] * 6
    values = np.array([r.statistics.latency_us["p50"] for r in played if r.statistics])
    by_set = (values[:, 1] - values[:, 0]).reshape(3, 2).mean(axis=1)
    assert np.median(by_set) == pytest.approx(2000, rel=0.15)
    for first in (0, 2, 4):
        assert {r.roles for r in played[first : first + 2]} == {(0, 1), (1, 0)}
    # run-time settings need no restart
    assert [_postmaster(cluster) for cluster in block.clusters] == starts


def _postmaster(cluster: Cluster) -> int:
    return cluster.postmaster_pid


@pytest.mark.slow
def test_roles_and_settings_go_together(block: DuetBlock) -> None:
    for roles in ((1, 0), (0, 1)):
        block.assign(roles)
        assert _shown(block, "duet.ms") == [str((BASE_MS, ARM_MS)[role]) for role in roles]


def test_a_look_that_a_stuck_server_does_not_answer_is_given_up(block: DuetBlock) -> None:
    """Closing its session would wait for the thread that looks."""
    cluster = block.clusters[0]
    look = SessionsLook(Serving(cluster, cluster.dsn(), Variant(name="off"), Workload(name="W1")))
    with contextlib.ExitStack() as stack:
        stack.enter_context(look)
        with cluster.connect() as connection:
            row = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgtare'"
                " ORDER BY backend_start DESC"  # one that was closed may take a while to end
            ).fetchone()
        assert row is not None
        os.kill(row[0], signal.SIGSTOP)
        try:
            with during(look) as looking:
                time.sleep(0.3)  # for the query to be sent
                assert looking.is_alive()
                stack.close()
            assert not looking.is_alive()
        finally:
            os.kill(row[0], signal.SIGCONT)
    assert look.trouble


def _shown(block: DuetBlock, name: str) -> list[str]:
    shown = []
    for cluster in block.clusters:
        with cluster.connect() as connection:
            row = connection.execute(f"SHOW {name}").fetchone()
        assert row is not None
        shown.append(str(row[0]))
    return shown


def test_data_are_made_ready_before_each_round(block: DuetBlock, warmed: list[Cluster]) -> None:
    """Even if no server is started for it."""
    for roles in ((1, 0), (0, 1)):
        warmed.clear()
        block.assign(roles)
        assert warmed == block.clusters


def test_an_overloaded_round_is_dropped_and_says_why(
    block: DuetBlock, load: LoadSpec, tmp_path: Path
) -> None:
    """Dropping only the transactions without an answer would flatter the slower server."""
    hurried = dataclasses.replace(load, rate=50_000.0)
    played = play(block, 0, hurried, Length(0.3, drain_s=0.1), tmp_path / "r")
    assert played.statistics is None
    assert re.search(r"\d+ transactions had no answer", str(played.dropped))


def test_a_crash_drops_the_round_and_the_next_one_goes_on(
    block: DuetBlock, load: LoadSpec, tmp_path: Path
) -> None:
    """With the set of a dropped round its partner goes, as placement would not cancel."""
    crash = tmp_path / "crash.sql"
    crash.write_text("SELECT pg_terminate_backend(pg_backend_pid());")
    bad = dataclasses.replace(load, scripts=(Script(crash),))
    first = play(block, 0, bad, Length(0.3), tmp_path / "a")
    assert "was lost: FATAL:  terminating connection" in str(first.dropped)
    # a round needs 20 cycles, for which a busy machine may need a second
    second = play(block, 1, load, Length(2.0), tmp_path / "b")
    assert second.dropped is None


@pytest.mark.slow
@binaries_slowly_on_15
def test_variants_that_need_a_restart_get_one(
    binaries: Binaries, load: LoadSpec, tmp_path: Path
) -> None:
    """Preloaded libraries too; what only one variant sets is taken back in the other."""
    base, arm = variants_of(binaries, runtime=False)
    arm = dataclasses.replace(arm, preload=("auto_explain",))
    with DuetBlock([base, arm]) as block:
        for number, roles in enumerate(roles_of_set(3, 0, 2)):
            played = play(block, number, load, Length(0.3, warmup_s=0.1), tmp_path / str(number), 3)
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
