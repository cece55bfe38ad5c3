"""The duet driver in an open loop: its schedule, servers that stall, and who shares a processor."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load.duet import run_duet
from pgtare.postgres.load.duet_plan import Length
from pgtare.postgres.load.duet_records import Outcome
from tests.duet_runs import (
    SELECT_1,
    assert_nothing_lost,
    backend_of,
    latencies_us,
    signal_driver,
)
from tests.loads import during
from tests.sessions import eventually, one

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


# The open loop


@pytest.mark.slow
def test_the_schedule_is_poisson_and_the_same_for_a_seed(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    runs = [
        run_duet(
            driver, targets, script(SELECT_1, rate=500, clients=2), Length(1.0), tmp_path / name
        )
        for name in ("a", "b")
    ]
    due = []
    for run in runs:
        assert run.whole
        assert_nothing_lost(run.records)
        rows = run.records.rows
        assert (rows["lag_ns"] >= 0).all()
        assert (rows["latency_ns"] > rows["lag_ns"]).all()
        due.append(np.sort(rows["scheduled_ns"]))
    assert np.array_equal(*due)
    # 1,000 expected in a second at 500 for each of two clusters; fixed seed, so no chance here
    assert len(due[0]) == pytest.approx(1000, abs=130)
    gaps = np.diff(due[0])
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.15)


def test_of_several_that_are_due_the_first_due_is_sent_first(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    """In an order of the clusters' own, those started first would look slower than the others.

    A backend on the thread's processor may run before the next request is sent.
    """
    four = [*targets, *targets]
    hurried = script(SELECT_1, clients=1, rate=3_000.0)
    run = run_duet(driver, four, hurried, Length(0.5, drain_s=10.0), tmp_path / "r")
    rows = np.sort(run.records.rows[run.records.rows["outcome"] == Outcome.OK], order="cycle")
    due, sent = rows["scheduled_ns"], rows["scheduled_ns"] + rows["lag_ns"]
    # A connection is free from the answer to its last transaction on.
    free = np.full(len(rows), np.iinfo(np.int64).min)
    for cluster in range(4):
        own = np.flatnonzero(rows["cluster"] == cluster)
        free[own[1:]] = (due + rows["latency_ns"])[own[:-1]]
    together = overtaken = 0
    order = np.argsort(sent, kind="stable")
    for i, row in enumerate(order):
        for other in order[i + 1 : i + 4]:
            if due[other] < sent[row] and free[other] < sent[row] and due[row] < sent[row]:
                together += 1
                overtaken += bool(due[other] < due[row])
    assert together > 100
    assert overtaken == 0


def session_of(output: Path, cluster: Cluster) -> int:
    """The process of a run's only session; that of an earlier run may take a while to end."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgtare-load-%'"
    eventually(output.exists)  # it is made once all sessions are there
    with cluster.connect() as connection:
        eventually(lambda: one(connection, count) == 1)
    return backend_of(cluster)


@pytest.mark.parametrize("rate", [200.0, None])
def test_a_stalled_server_shows_as_latency(
    driver: Path, targets: Any, pair: list[Cluster], script: Any, tmp_path: Path, rate: float | None
) -> None:
    """A backend stopped for 300 ms: who keeps to a schedule sees all that it kept waiting."""
    stopped_s = []
    output = tmp_path / "r"

    def stall() -> None:
        pid = session_of(output, pair[0])
        time.sleep(0.5)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(0.3)
        stopped_s.append(time.monotonic() - began)
        os.kill(pid, signal.SIGCONT)

    with during(stall):
        run = run_duet(driver, targets, script(SELECT_1, rate=rate), Length(2.5), output)
    assert run.whole
    assert_nothing_lost(run.records)
    stalled, other = (latencies_us(run.records, c) for c in (0, 1))
    assert stalled.max() >= 0.65 * stopped_s[0] * 1e6
    late, other_late = (int((latencies > 100_000).sum()) for latencies in (stalled, other))
    if rate is None:
        # coordinated omission: a closed loop stops asking
        assert late < 10
        return
    # 60 or more were due in the meantime, and waited for as long as was left of it: those of all
    # but its last 100 ms for that long; a busy machine can only add to that
    due = rate * (stopped_s[0] - 0.1)
    assert late > 0.6 * due
    # the other cluster's transactions, of the same thread, were not held up by it: what holds up
    # the whole machine adds to both
    assert late - other_late > 0.4 * due


def test_what_was_due_but_never_answered_is_recorded(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    spec = script("SELECT pg_sleep(0.02);", rate=500)
    run = run_duet(driver, targets, spec, Length(0.5, drain_s=0.1), tmp_path / "r")
    outcomes = run.records.outcomes()
    assert_nothing_lost(run.records)
    assert len(run.records.rows) == pytest.approx(500, abs=90)
    assert outcomes["unsent"] > 400
    assert outcomes["unfinished"] <= 2
    unsent = run.records.rows[run.records.rows["outcome"] == Outcome.UNSENT]
    assert (unsent["latency_ns"] + unsent["scheduled_ns"] > 590_000_000).all()


def test_threads_and_backends_share_processors(
    driver: Path, targets: Any, pair: list[Cluster], script: Any, tmp_path: Path
) -> None:
    usable = sorted(os.sched_getaffinity(0))
    seen: list[set[int]] = []
    output = tmp_path / "r"

    def look() -> None:
        try:
            pids = [session_of(output, cluster) for cluster in pair]
            time.sleep(0.2)
            eventually(lambda: all(len(os.sched_getaffinity(pid)) == 1 for pid in pids), 20)
            seen.extend(os.sched_getaffinity(pid) for pid in pids)
        finally:
            signal_driver(output, signal.SIGINT)

    with during(look):
        run_duet(driver, targets, script(SELECT_1), Length(30), output)
    assert seen == [{usable[0]}, {usable[0]}]
