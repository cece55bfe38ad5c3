"""Slices in the server module: all sessions follow one schedule, which the seed says."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pgtare.estimate.trial.design import MIXED, Design, Slices, slice_ends, slice_order
from pgtare.estimate.trial.observations import NO_BLOCK, Observations, UnitFlag
from pgtare.postgres.cluster import Cluster
from tests.assignment import mixed_arm
from tests.sessions import bare_session, eventually, one
from tests.trials import MARKED, MARKER, Running, flagged, trial
from tests.wire_protocol import Wire, query_message

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Short ones, so that a test sees many.
SHORT = Slices(kinds=(0, 1, MIXED), min_us=1_000, max_us=4_000, guard_us=0)
ALTERNATING = Slices(kinds=(0, 1), min_us=1_000, max_us=4_000, guard_us=0)

Worked = tuple[Design, Observations]


def work(cluster: Cluster, running: Running, sessions: int, requests: int) -> Observations:
    """Sessions that send requests one by one, at the same time, and what was observed."""

    def send() -> None:
        with bare_session(cluster) as client, Wire(client) as wire:
            for _ in range(requests):
                wire.send(query_message("SELECT 1"))
                wire.read_until_ready()

    threads = [threading.Thread(target=send) for _ in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.02)
    return running.drained()


def kind_of(design: Design, number: int) -> int:
    """The kind of a slice by the seed."""
    assert design.slices is not None
    n = len(design.slices.kinds)
    return slice_order(design, number // n)[number % n]


def bounds(design: Design, rows: Observations) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each row's slice, in ns since the trial began."""
    ends = np.array([0, *itertools.islice(slice_ends(design), int(rows["slice"].max()) + 1)])
    return ends[rows["slice"]], ends[rows["slice"] + 1]


@pytest.fixture
def worked(server: Cluster, request: pytest.FixtureRequest) -> Iterator[Worked]:
    """Three sessions at work in a trial of three kinds of slices."""
    with trial(server, slices=SHORT, seed=getattr(request, "param", 1)) as running:
        yield running.design, work(server, running, 3, 700)


@pytest.mark.parametrize("worked", [1, (1 << 64) - 1], indirect=True)
def test_sessions_follow_the_schedule_of_the_seed(worked: Worked) -> None:
    design, rows = worked
    assert len(np.unique(rows["backend"])) == 3
    assert len(np.unique(rows["slice"])) > 8
    kinds = np.array([kind_of(design, int(number)) for number in rows["slice"]])
    mixed = kinds == MIXED
    assert set(kinds) == {0, 1, MIXED}
    assert np.array_equal(rows["flags"] & UnitFlag.MIXED != 0, mixed)
    assert np.array_equal(rows["arm"][~mixed], kinds[~mixed])
    # a request begins in the slice whose arm it has; clocks are turned into ns with 1 ns of error
    begin, end = bounds(design, rows)
    seen = rows["flags"] & UnitFlag.NO_ARRIVAL == 0
    assert (rows["start_ns"] >= begin - 1)[seen].all()
    answer = rows["start_ns"] + rows["service_ns"] + rows["client_ns"]
    straddled = rows["flags"] & UnitFlag.STRADDLED != 0
    assert (answer[~straddled] <= end[~straddled] + 1).all()
    assert (answer[straddled] >= end[straddled] - 1).all()
    assert 0 < straddled.mean() < 0.5


def test_in_a_mixed_slice_each_session_keeps_the_arm_that_it_drew(worked: Worked) -> None:
    design, rows = worked
    mixed = rows[rows["flags"] & UnitFlag.MIXED != 0]
    assert len(mixed) > 100
    drawn = [mixed_arm(design, int(row["backend"]), int(row["slice"])) for row in mixed]
    assert list(mixed["arm"]) == drawn
    assert set(drawn) == {0, 1}


def test_units_of_slices_belong_to_no_run(worked: Worked) -> None:
    """Their position is that in the slice, which stops at 255."""
    _, rows = worked
    assert set(rows["block"]) == {NO_BLOCK}
    assert set(rows["run"]) == {0}
    assert not any(flagged(rows, UnitFlag.FIRST_RUN | UnitFlag.UNDRAWN))
    key = rows["backend"].astype(np.int64) << 32 | rows["slice"]
    for k in np.unique(key):
        positions = rows["position"][key == k]
        assert list(positions) == [min(i, 255) for i in range(len(positions))]


def test_in_a_mixed_slice_half_of_the_sessions_have_each_arm(server: Cluster) -> None:
    """Of each two that came one after the other, one has each; its settings are in force."""
    slices = Slices(kinds=(0, 1, MIXED), min_us=20_000, max_us=20_000, guard_us=0)
    with trial(server, slices=slices) as running, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(bare_session(server)) for _ in range(4)]
        seen: dict[int, list[str]] = {client.info.backend_pid: [] for client in clients}
        until, rounds = time.monotonic() + 1, 0
        while time.monotonic() < until or rounds < 200:
            rounds += 1
            for client in clients:
                seen[client.info.backend_pid].append(one(client, f"SHOW {MARKER}"))
            running.drain()  # a session's ring holds 4,096
        with contextlib.suppress(TimeoutError):
            eventually(lambda: len(running.drained()) == sum(map(len, seen.values())))
        rows = running.drained()
    assert {pid: sum(rows["pid"] == pid) for pid in seen} == {
        pid: len(values) for pid, values in seen.items()
    }
    for pid, values in seen.items():
        assert values == [MARKED[arm][MARKER] for arm in rows["arm"][rows["pid"] == pid]]
    mixed = rows[rows["flags"] & UnitFlag.MIXED != 0]
    drawn: dict[tuple[int, int], dict[int, int]] = {}
    for row in mixed:
        pair = drawn.setdefault((int(row["slice"]), int(row["backend"]) // 2), {})
        assert pair.setdefault(int(row["backend"]), int(row["arm"])) == row["arm"]
    whole = [sorted(arms.values()) for arms in drawn.values() if len(arms) == 2]
    assert whole == [[0, 1]] * len(whole)
    assert whole


def test_an_idle_session_takes_the_arm_of_the_slice_its_request_comes_in(server: Cluster) -> None:
    with trial(server, slices=ALTERNATING) as running, bare_session(server) as client:
        seen = []
        for _ in range(40):
            time.sleep(0.01)
            seen.append(one(client, f"SELECT current_setting('{MARKER}')"))
        rows = running.observed(client, 40)
    assert seen == [MARKED[arm][MARKER] for arm in rows["arm"]]
    assert set(rows["arm"]) == {0, 1}
    begin, end = bounds(running.design, rows)
    assert (rows["start_ns"] >= begin - 1).all()
    # all but what was interrupted between the switch and its own clock
    assert np.mean(rows["start_ns"] < end) > 0.9


def test_a_transaction_keeps_its_arm_over_slices(server: Cluster) -> None:
    with trial(server, slices=ALTERNATING) as running, bare_session(server) as client:
        seen = []
        for _ in range(10):
            client.execute("BEGIN")
            first = one(client, f"SELECT current_setting('{MARKER}')")
            client.execute("SELECT pg_sleep(0.01)")
            seen.append({first, one(client, f"SELECT current_setting('{MARKER}')")})
            client.execute("COMMIT")
        rows = running.observed(client, 10)
    assert seen == [{MARKED[arm][MARKER]} for arm in rows["arm"]]
    assert flagged(rows, UnitFlag.STRADDLED) == [True] * 10


@pytest.mark.slow
def test_a_session_that_idled_for_many_slices_catches_up_in_steps(server: Cluster) -> None:
    """One request is not held up for all of them: it ends after its slice, and the next goes on."""
    brief = Slices(kinds=(0, 1), min_us=1_000, max_us=1_000, guard_us=0)
    with trial(server, slices=brief, seconds=120.0) as running, bare_session(server) as client:
        client.execute("SELECT 1")
        time.sleep(55)
        for _ in range(5):
            client.execute("SELECT 1")
        rows = running.observed(client, 6)
    begin, _ = bounds(running.design, rows)
    assert flagged(rows, UnitFlag.STRADDLED)[1]
    behind_ns = rows["start_ns"] - begin
    assert behind_ns[1] > 1_000_000_000
    assert behind_ns[-1] < 1_000_000_000


def test_a_session_that_joins_late_is_in_step(server: Cluster) -> None:
    with trial(server, slices=SHORT) as running, bare_session(server) as early:
        early.execute("SELECT 1")
        time.sleep(0.4)
        with bare_session(server) as late:
            for _ in range(20):
                late.execute("SELECT 1")
            rows = running.observed(late, 20)
    begin, _ = bounds(running.design, rows)
    assert rows["slice"].min() > 40
    assert (rows["start_ns"] >= begin - 1).all()
    assert (rows["start_ns"] - begin < 1_000_000_000).all()
