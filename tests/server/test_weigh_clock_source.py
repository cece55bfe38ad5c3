"""The clock that PostgreSQL 19 takes times from, as an instrument."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.binaries import Binaries
from tests.commands import arm, pgtare, read, refused
from tests.servers import weighable
from tests.sessions import bare_session
from tests.trials import share, trial

pytestmark = pytest.mark.server


@pytest.fixture
def newer(wheel: Binaries) -> Binaries:
    if wheel.major < 19:
        pytest.skip("timing_clock_source came with PostgreSQL 19")
    return wheel


def test_each_transaction_takes_times_from_the_clock_of_its_arm(newer: Binaries) -> None:
    clocks = [{"timing_clock_source": name} for name in ("tsc", "system")]
    with (
        weighable(newer) as cluster,
        trial(cluster, clocks) as running,
        bare_session(cluster) as client,
    ):
        for _ in range(200):
            client.execute("SELECT 1")
        rows = running.observed(client, 200)
    assert share(rows[rows["arm"] == 0], UnitFlag.SYSTEM_CLOCK) == 0
    assert share(rows[rows["arm"] == 1], UnitFlag.SYSTEM_CLOCK) == 1


def test_it_is_weighed_with_proof(newer: Binaries, tmp_path: Path) -> None:
    done = pgtare(
        "weigh timing_clock_source --allow timing_clock_source --duration 3 --scale 1"
        " --pg-config {} --output {}",
        newer.pg_config,
        tmp_path / "w.json",
    )
    assert done.returncode == 0, done.stderr
    assert arm(read(tmp_path / "w.json"), "timing_clock_source")["proof"]["state"] == "active"


def test_an_older_server_has_no_choice_of_clocks(wheel: Binaries) -> None:
    if wheel.major >= 19:
        pytest.skip("PostgreSQL 19 has one")
    said = refused("weigh", "timing_clock_source", "--duration", "1")
    assert "timing_clock_source" in said
    assert "PostgreSQL 19" in said
