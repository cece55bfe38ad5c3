"""How much of a wait the kernel worked in is claimed as far as the data tell, and no further."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

from pgtare.observing.trace.analysis import kernel_time
from pgtare.observing.trace.analysis import ledger as ledgers
from tests.sample_trace import by
from tests.unit.made_traces import MS, US, session_stream, trace

pytestmark = pytest.mark.timeout(180)

READ, IDLE_NS = 0, 10 * US
#: Beside reads: how many waits of events without any work of the kernel.
RARE = {1: 20, 2: 50, 3: 100, 4: 1}
NOISES = ["preempted", "jitter", "bursts", "late readings", "drift"]


def noisy(rng: np.random.Generator, noise: str, n: int) -> kernel_time.Floats:
    """What an interval's CPU lacks, or has too much, for reasons that are no wait's."""
    away = np.where(rng.random(n) < 0.5, rng.exponential(4 * MS, n), 0)
    if noise == "preempted":
        return -away
    if noise == "jitter":
        return rng.normal(0, 100 * US, n) - away
    if noise == "bursts":
        return np.where(rng.random(n) < 0.03, rng.exponential(5 * MS, n), 0) - away
    if noise == "late readings":
        late = rng.exponential(200 * US, n)
        return np.asarray(late - np.roll(late, 1) - away, np.float64)
    return np.repeat(rng.normal(0, 300 * US, n // 20), 20) - away


def sample(seed: int, noise: str, n: int = 3_000, share: float = 0.6) -> kernel_time.Sample:
    """A read in each interval, in a share of which the kernel works; rare waits in which not."""
    rng = np.random.default_rng(seed)
    read = rng.integers(100 * US, MS, n)
    interval = [np.arange(n), *(rng.choice(n, times, replace=False) for times in RARE.values())]
    rare = [(rng.exponential(5 * MS, times) + 100 * US).astype(int) for times in RARE.values()]
    excess = share * read + IDLE_NS + noisy(rng, noise, n)
    return kernel_time.Sample(
        excess=excess,
        spent=np.maximum(excess + rng.exponential(MS, n), 0),
        idle=np.ones(n),
        interval=np.concatenate(interval),
        wait_ns=np.concatenate([read, *rare]),
        event=np.repeat([READ, *RARE], [n, *RARE.values()]),
        times=np.ones(n + sum(RARE.values()), np.int64),
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", ["preempted", "jitter", "bursts"])
def test_the_share_of_an_event_that_the_data_determine_is_found(noise: str, seed: int) -> None:
    found = kernel_time.shares([sample(seed, noise)])
    assert found.by_event[READ] == pytest.approx(0.6, abs=0.05)


@pytest.mark.parametrize("lack", [0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_fit_is_no_worse_than_that_of_scipy(seed: int, lack: float) -> None:
    rng = np.random.default_rng(seed)
    design = rng.exponential(1, (400, 6)) * 10.0 ** rng.uniform(-3, 3, 6)
    most = rng.uniform(0.2, 1, 6)
    excess = design @ (most * rng.choice([0, 0.4, 1.5], 6)) + rng.normal(0, 1, 400)

    def weighted(x: kernel_time.Floats) -> kernel_time.Floats:
        left = design @ x - excess
        return np.asarray(np.where(left > 0, lack, 1.0) * left / 0.1, np.float64)

    def loss(x: kernel_time.Floats) -> float:
        return float((np.sqrt(1 + weighted(x) ** 2) - 1).sum())

    theirs = optimize.least_squares(
        weighted, most / 100, bounds=(0.0, most), x_scale="jac", loss="soft_l1"
    ).x
    ours = kernel_time._solved(design, excess, most, lack)
    assert ((ours >= 0) & (ours <= most)).all()
    assert loss(ours) <= loss(theirs) * (1 + 1e-9)


@pytest.mark.parametrize("noise", NOISES)
def test_next_to_nothing_is_claimed_of_an_event_that_they_do_not_determine(noise: str) -> None:
    for seed, n in ((0, 200), (1, 1_000)):
        made = sample(seed, noise, n)
        found = kernel_time.shares([made])
        rare = made.event != READ
        claimed = float(found.of(made.event[rare]) @ made.wait_ns[rare])
        assert claimed < 0.005 * made.wait_ns[rare].sum(), (seed, n, found)


def test_what_only_one_stretch_of_a_trace_tells_is_not_claimed() -> None:
    """Some intervals in a row with work outside of waits that no reading of time explains."""
    n = 1_000
    rng = np.random.default_rng(3)
    read = rng.integers(100 * US, MS, n)
    excess = 0.6 * read + rng.normal(0, 10 * US, n)
    excess[500:508] += 4 * MS
    found = kernel_time.shares(
        [
            kernel_time.Sample(
                excess=excess,
                spent=excess + MS,
                idle=np.zeros(n),
                interval=np.append(np.arange(n), np.arange(500, 508)),
                event=np.repeat([READ, 1], [n, 8]),
                wait_ns=np.append(read, np.full(8, 5 * MS)),
                times=np.ones(n + 8, np.int64),
            )
        ]
    )
    assert found.by_event[READ] == pytest.approx(0.6, abs=0.01)
    assert found.by_event[1] == 0


def test_a_process_that_sleeps_until_it_is_woken_works_for_microseconds(tmp_path: Path) -> None:
    """400 sleeps whose time is all CPU, were one to believe the readings: it belongs elsewhere."""
    rng = np.random.default_rng(9)
    b = session_stream(waits=True)
    rows, now, cpu = [], 0, 0
    for _ in range(400):
        sleep, work = (int(x) for x in rng.integers(500 * US, MS, 2))
        rows.append((1, now + work, sleep))
        start, now = now, now + work + sleep
        cpu += work + sleep
        b.execution(start, now, cpu)
    book = ledgers.ledger(trace(tmp_path / "t.pgtrace", b.data, rows))
    slept = by(book)["Timeout/PgSleep"]
    assert 0 < book.kernel_share[1] * slept <= 400 * 30 * US * 1.001
