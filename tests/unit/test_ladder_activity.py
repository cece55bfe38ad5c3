"""Proof that variants did their work, and programs that run next to a load."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from pgtare.errors import MeasurementError
from pgtare.weighing.ladder import companion
from pgtare.weighing.ladder.activity import Activity, judge
from tests.sessions import eventually

TRACED = Activity(
    name="row-sources", query="SELECT 1", when={"level": 12, "every": (1, 128)}, per_transaction=3
)
SETTINGS = {
    "off": {"level": 0, "every": 0},
    "plain": {"level": 12, "every": 0},
    "sampled": {"level": 12, "every": 128},
    "each": {"level": 12, "every": 1},
}


def judged(grown: float, transactions: int, variant: str, wanted: Activity = TRACED) -> list[str]:
    before, after = {"row-sources": 50.0}, {"row-sources": 50.0 + grown}
    shown, against = judge((wanted,), before, after, transactions, SETTINGS[variant])
    assert bool(shown) != bool(against) or not wanted.grows_with(SETTINGS[variant])
    return against


def test_a_variant_is_held_to_what_it_must_have_done() -> None:
    assert not judged(6000, 2000, "each")
    assert not judged(6000, 2000, "sampled")
    assert "not by 3 each" in judged(3000, 2000, "each")[0]
    assert "more than 3 each" in judged(9000, 2000, "each")[0]
    assert not judged(9000, 2000, "each", TRACED.model_copy(update={"at_least": True}))
    assert "not by 3 each" in judged(0, 2, "each")[0]


def test_a_variant_that_should_not_must_not() -> None:
    assert not judged(0, 1000, "plain")
    assert "though nothing in it should" in judged(1, 1000, "plain")[0]
    assert not judged(0, 1000, "off")


def test_an_activity_says_when() -> None:
    with pytest.raises(ValidationError, match="when is empty"):
        Activity(name="a", query="q", when={}, per_transaction=1)


def test_a_program_runs_beside_and_is_ended(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f"import time, sys; open({str(seen)!r}, 'w').write(sys.argv[1]); time.sleep(60)"
    with companion.running(
        [sys.executable, "-c", script, "{dsn} {folder}"], "host=x", tmp_path
    ) as (pid,):
        while not (seen.exists() and seen.read_text()):
            time.sleep(0.01)
    assert seen.read_text() == f"host=x {tmp_path}"
    assert not psutil.pid_exists(pid)


def test_what_a_program_leaves_in_the_background_is_ended_too(tmp_path: Path) -> None:
    """Else it would run next to the base, which is measured afterwards."""
    seen = tmp_path / "seen"
    script = "sleep 600 & echo $! > {folder}/new; mv {folder}/new {folder}/seen; wait"
    with companion.running(["sh", "-c", script], "host=x", tmp_path):
        eventually(seen.exists)
    pid = int(seen.read_text())

    def gone() -> bool:
        try:
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    eventually(gone)


def test_a_program_that_ends_early_or_is_not_there_is_an_error(tmp_path: Path) -> None:
    script = "import sys; print('out of paper', file=sys.stderr); sys.exit(3)"
    early = pytest.raises(MeasurementError, match="ended early with status 3: out of paper")
    with early, companion.running([sys.executable, "-c", script], "", tmp_path) as (pid,):
        eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    missing = pytest.raises(MeasurementError, match="cannot run the companion no-such-program")
    with missing, companion.running(["no-such-program"], "", tmp_path):
        pass
    with companion.running([], "", tmp_path) as pids:
        assert pids == []
