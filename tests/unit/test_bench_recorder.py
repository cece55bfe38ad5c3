"""The arithmetic of the recorder's benchmarks."""

from __future__ import annotations

import pytest
from bench.incident_stage import Named
from bench.incidents import document, first_wait, row
from bench.recorder_day import complaints, holes
from bench.recorder_sessions import throughput


def test_cost_as_throughput() -> None:
    found = throughput({"estimate": 25.0, "lo": 0.0, "hi": 100.0})
    assert found == pytest.approx({"estimate": -20.0, "lo": -50.0, "hi": 0.0})


def test_numbers_that_are_missing() -> None:
    assert holes([1, 4, 2], 5) == [3, 5]
    assert holes([], 0) == []


def test_complaints_of_a_log() -> None:
    fine = "ERROR:  deadlock detected\nLOG:  checkpoint starting: time\n"
    wrong = (
        "LOG:  server process (PID 3) was terminated by signal 11",
        "LOG:  sql_trace cannot keep the trace of this session: out of memory",
        "PANIC:  no",
    )
    assert complaints(fine + "\n".join(wrong)) == list(wrong)


def test_first_wait_of_grab() -> None:
    said = "2 sessions\nwhere the time went: CPU 62 %, Client/ClientRead 9 %, IO/WalSync 2 %\n"
    assert first_wait(said) == "IO/WalSync"
    assert first_wait("where the time went: CPU 100 %") is None
    assert first_wait("nothing") is None


def test_runs_in_which_each_was_named() -> None:
    good, bad = Named("x", True, True, True, True), Named("x", True, False, None, True)
    assert row([good, bad]) == ["2 of 2", "1 of 2", "1 of 1", "2 of 2", "1 of 2"]
    assert row([bad])[2] == "–"
    assert [one["all"] for one in document({18: {"x": [good, bad]}}, 9)["runs"]] == [True, False]
