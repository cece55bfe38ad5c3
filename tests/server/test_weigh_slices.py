"""`pgtare weigh --unit slice | both` from end to end: contention of a known kind, and none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.cluster import Cluster
from pgtare.weighing.weigh import store
from tests.commands import arm, pgtare, read

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: The lock is held for half a millisecond longer where the arm is in force, and by whoever has it.
HOLDS = ("--arm", "holds: work_mem=8MB")
SCRIPT = (
    r"SELECT pg_advisory_xact_lock(1)\; SELECT pg_sleep("
    "CASE current_setting('work_mem') WHEN '8MB' THEN 0.0005 ELSE 0 END);\n"
)
# half-width of an interval that a correct program misses once in a million runs, in units of 95 %
WIDER = 4.89 / 1.96


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "lock.sql"
    path.write_text(SCRIPT)
    return path


def wide(interval: dict[str, Any]) -> tuple[float, float]:
    half = (interval["hi"] - interval["lo"]) / 2 * WIDER
    return interval["estimate"] - half, interval["estimate"] + half


@pytest.mark.slow
def test_a_lock_held_longer_falls_on_other_sessions(
    server18: Cluster, script: Path, tmp_path: Path
) -> None:
    done = pgtare(
        "weigh --unit both --slice-ms 15-45 --script {} --clients 4 --dsn {} -d 8 --output {}",
        script,
        server18.dsn(),
        tmp_path / "w.json",
        *HOLDS,
    )
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w.json")
    found = result["contention"]
    assert found["state"] == "spillover", found
    assert wide(found["spillover_us"])[0] > 100
    # whoever holds the lock for longer waits for one fewer who does: his own cost is hidden
    assert found["own_us"]["estimate"] < found["spillover_us"]["estimate"]
    answer = arm(result, "holds")["answer"]
    assert wide(answer["us"])[0] > 1_000
    assert answer["us"]["estimate"] > found["spillover_us"]["estimate"]
    assert answer["verdict"] == "cost"
    assert [a["role"] for a in result["arms"]] == ["base", "instrument"]
    assert "Part of the cost of holds falls on others" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_one_session_has_no_spillover(server18: Cluster, script: Path, tmp_path: Path) -> None:
    """The negative control: the same lock, and nobody to wait for it."""
    out = tmp_path / "out"
    done = pgtare(
        "weigh --unit both --script {} --clients 1 --dsn {} -d 8 --output {} --out {}",
        script,
        server18.dsn(),
        tmp_path / "w.json",
        out,
        *HOLDS,
    )
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "w.json")["contention"]
    assert found["state"] == "inconclusive"
    lo, hi = wide(found["spillover_us"])
    assert lo <= 0 <= hi
    assert wide(found["own_us"])[0] > 500
    assert found["n_base"] > 0

    stored = store.load(out)
    assert stored.design.unit == "both"
    assert (stored.observations["flags"] & UnitFlag.MIXED != 0).any()
    again = pgtare("report", out, "--output", tmp_path / "again.json")
    assert again.returncode == 0, again.stderr
    assert read(tmp_path / "again.json")["contention"] == found


@pytest.mark.slow
def test_slices_find_a_known_delay(server18: Cluster, tmp_path: Path) -> None:
    done = pgtare(
        "weigh track_io_timing --inject-ns 50000 --unit slice --slice-ms 5-15 "
        "--dsn {} --load select-only --scale 1 --yes -d 12 --output {}",
        server18.dsn(),
        tmp_path / "w.json",
    )
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w.json")
    assert result["design"]["unit"] == "slice"
    assert result["design"]["slices"]["kinds"] == [0, 1, 2, 3]
    assert result["design"]["blocks"] > 100
    injected = arm(result, "injected")["answer"]["us"]
    assert wide(injected)[0] > 25
    assert wide(injected)[0] < 50 < wide(injected)[1] or injected["estimate"] > 50
    lo, hi = wide(arm(result, "control")["answer"]["us"])
    assert lo <= 0 <= hi
    assert arm(result, "track_io_timing")["proof"]["state"] in ("active", "idle")
