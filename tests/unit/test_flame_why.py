"""Samples meet the transactions of their sessions, whatever numbers the server has for these."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pgtare.estimate.trial.observations import OBSERVATION
from pgtare.observing.flame import perf, processes, why
from pgtare.observing.flame.processes import FlameTarget
from pgtare.observing.flame.recording import RUNNING, Collected, FlameRecording
from pgtare.observing.flame.why import TrialArms, Why

N = 400


def test_a_session_that_connects_during_the_trial_counts_once_its_number_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a container: 1007 is its process 7; process 8 ended before it was looked up."""
    numbers = {1000: [1000, 1], 1007: [1007, 7], 1008: []}
    monkeypatch.setattr(processes, "_numbers", lambda pid: numbers.get(pid, [pid]))
    monkeypatch.setattr(perf, "find_perf", lambda: "perf")
    target = FlameTarget([1000], 1000, "a server in a container")
    monkeypatch.setattr(processes, "of_connection", lambda conn: target)

    def run(stop: Callable[[], bool]) -> FlameRecording:
        target.forked(1007, 1007, 1000)
        target.forked(1008, 1008, 1000)
        taken = Collected()
        for k in range(N):
            for pid in (1007, 1008, 8):  # of the last one, another server's
                taken.add(1000 * k + 10, pid, ("backend", "f"), RUNNING, 100 + 400 * (k % 2))
        return FlameRecording("on", "server", taken.samples(), 0, 1.0, "fp", 99, "time")

    monkeypatch.setattr(why, "_recorder", lambda mode, target: SimpleNamespace(run=run))
    asked, conn = Why(), Any
    with asked.during(conn):  # type: ignore[arg-type]
        pass
    data = np.zeros(2 * N, OBSERVATION)
    data["pid"] = np.repeat([7, 8], N)
    data["start_ns"] = np.tile(1000 * np.arange(N), 2)
    data["service_ns"] = 500
    data["arm"] = np.arange(2 * N) % 2
    began = datetime.fromtimestamp(0, UTC).isoformat()
    (reason,) = asked.explain(TrialArms(["base", "arm"], data, began))["on"]
    assert reason.total.base_us == pytest.approx(0.1)
    assert reason.total.arm_us == pytest.approx(0.5)
    assert [note for note in asked.notes if note.startswith(f"{N} of {2 * N} transactions")]
