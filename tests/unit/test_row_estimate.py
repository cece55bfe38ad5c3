"""The time of a plan node from a sample of its calls, on calls of known length."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.signal import lfilter

from tests.unit.simulated_rows import Estimator, RowEstimate, RowShare, RowTimes, Times

Rng = np.random.Generator
REPETITIONS = 100
SLOW = pytest.mark.slow
#: A correct interval covers less often than this once in 10,000 tests of 100 repetitions.
LEAST_COVERAGE = 0.85


@pytest.fixture(scope="module")
def estimator(tmp_path_factory: pytest.TempPathFactory) -> Estimator:
    return Estimator(tmp_path_factory.mktemp("estimator"))


def even(rng: Rng, n: int, mean: float) -> Times:
    return rng.gamma(9, mean / 9, n)


def pages(rng: Rng, n: int) -> Times:
    """As a sequential scan: every 185th call takes fifty times the usual."""
    inside = even(rng, n, 40)
    at = np.arange(int(rng.integers(0, 185)), n, 185)
    inside[at] += rng.gamma(2, 1500, len(at))
    return inside


def interrupted(
    rng: Rng, inside: Times, outside: Times, run: float, off: float
) -> tuple[Times, Times]:
    """As on a machine short of processors: after some time that runs, some that does not."""
    lengths = np.column_stack([inside, outside]).ravel()
    ends = np.cumsum(lengths)
    at = np.cumsum(rng.exponential(run, int(3 * ends[-1] / run) + 20))
    at = at[at < ends[-1]]
    np.add.at(lengths, np.searchsorted(ends, at), rng.gamma(1, off, len(at)))
    return lengths[0::2].copy(), lengths[1::2].copy()


def with_one(rng: Rng, calls: Times, at: int, length: float) -> Times:
    calls[at] = length
    return calls


def periodic(rng: Rng, n: int, period: int) -> Times:
    """One call of each period takes as much as all its others."""
    inside = even(rng, n, 20)
    inside[int(rng.integers(0, period)) :: period] += period * 20
    return inside


def drifting(rng: Rng, n: int) -> Times:
    """Each call is much like the one before it; over some hundred of them they change."""
    steps = rng.normal(0, np.sqrt(1 - 0.999**2), n)
    steps[0] = rng.normal()
    return np.exp(lfilter([1], [1, -0.999], steps))


def mid(rng: Rng, n: int) -> int:
    return int(rng.integers(0, n - 1))


KINDS: dict[str, Callable[[Rng, int], tuple[Times, Times]]] = {
    "exponential": lambda r, n: (r.gamma(1, 50, n), r.gamma(1, 30, n)),
    "pages": lambda r, n: (pages(r, n), even(r, n, 15)),
    "skewed": lambda r, n: (np.exp(r.normal(3, 2, n)), np.exp(r.normal(3, 1, n))),
    "alternating": lambda r, n: (
        np.where(np.arange(n) % 2, 1000, 50) * even(r, n, 1),
        np.where(np.arange(n) % 2, 300, 10) * even(r, n, 1),
    ),
    "growing": lambda r, n: (np.linspace(20, 400, n) * even(r, n, 1), even(r, n, 40)),
    "parent growing": lambda r, n: (even(r, n, 40), np.linspace(20, 400, n) * even(r, n, 1)),
    "seldom long": lambda r, n: (
        np.where(r.random(n) < 0.025, 400, 5) * even(r, n, 1),
        r.gamma(1, 15, n),
    ),
    "interrupted": lambda r, n: interrupted(r, r.gamma(1, 15, n), r.gamma(1, 22, n), 3000, 3000),
    "often away": lambda r, n: interrupted(r, r.gamma(1, 15, n), r.gamma(1, 22, n), 3000, 18000),
    "away for long": lambda r, n: interrupted(r, even(r, n, 15), even(r, n, 22), 10000, 10000),
    "little of it": lambda r, n: interrupted(r, even(r, n, 5), even(r, n, 45), 3000, 3000),
    "steps": lambda r, n: (
        np.where(np.arange(n) < n // 3, 50, 800) * even(r, n, 1),
        np.where(np.arange(n) < n // 2, 500, 20) * even(r, n, 1),
    ),
    # a sort, read by a parent that takes ever longer for a row
    "parent sorted": lambda r, n: (even(r, n, 0.1), np.sort(r.exponential(15, n))),
    "falling": lambda r, n: (np.linspace(400, 20, n) * even(r, n, 1), even(r, n, 40)),
    "against each other": lambda r, n: (
        np.linspace(400, 20, n) * even(r, n, 1),
        np.linspace(20, 400, n) * even(r, n, 1),
    ),
    "two lengths": lambda r, n: (
        np.where(r.random(n) < 0.3, 40, 5) * even(r, n, 1),
        even(r, n, 30),
    ),
    "in step": lambda r, n: (periodic(r, n, 128), even(r, n, 20)),
    "drifting": lambda r, n: (20 * drifting(r, n), 20 * drifting(r, n)),
    "one of all": lambda r, n: (with_one(r, even(r, n, 20), mid(r, n), n * 2000.0), even(r, n, 20)),
    "heavy tail": lambda r, n: (5 * (r.pareto(1.3, n) + 1), even(r, n, 20)),
    "little, and interrupted": lambda r, n: interrupted(
        r, r.gamma(2, 0.25, n), r.gamma(2, 20, n), 20000, 20000
    ),
    "nearly all, and interrupted": lambda r, n: interrupted(
        r, r.gamma(2, 30, n), r.gamma(2, 0.5, n), 20000, 20000
    ),
}


@pytest.mark.parametrize(
    "calls", [70, 1001, *(pytest.param(n, marks=SLOW) for n in (100, 300, 5000, 12000))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_interval_covers(estimator: Estimator, kind: str, calls: int) -> None:
    if (kind, calls) in (("seldom long", 100), ("seldom long", 300), ("heavy tail", 100)):
        pytest.skip("often none of the few long calls is in the sample")
    rng = np.random.default_rng([calls, len(kind)])
    covered = 0
    for _ in range(REPETITIONS):
        inside, outside = KINDS[kind](rng, calls)
        found = estimator.sample(inside, outside, 128, rng)
        covered += found.low <= inside.sum() * (1 + 1e-6) and found.high >= inside.sum() * (
            1 - 1e-6
        )
    assert covered / REPETITIONS >= LEAST_COVERAGE


@pytest.mark.parametrize(
    "calls", [20_000, *(pytest.param(n, marks=SLOW) for n in (50_000, 100_000))]
)
@pytest.mark.parametrize("outside", [2.0, 20.0, 200.0])
def test_interval_covers_one_long_call_in_a_thousand(
    estimator: Estimator, outside: float, calls: int
) -> None:
    """Half of the time is in calls of which the sample has one or none; gaps show that it is."""
    rng = np.random.default_rng([calls, int(outside)])
    covered = 0
    for _ in range(REPETITIONS):
        long = np.where(rng.random(calls) < 0.001, 1000, 1)
        inside = even(rng, calls, 20) * long
        found = estimator.sample(inside, even(rng, calls, outside), 128, rng)
        covered += found.low <= inside.sum() <= found.high
    # 94 of 100 are required; a correct interval covers fewer than this once in 10,000 tests
    assert covered / REPETITIONS >= LEAST_COVERAGE


def test_preempted_call_is_not_multiplied(estimator: Estimator) -> None:
    """Wherever it falls, sampled or not, and whether inside the node or outside of it."""
    rng = np.random.default_rng(1)
    for where in ("inside", "outside"):
        for _ in range(REPETITIONS):
            n = 20_000
            inside, outside = even(rng, n, 50), even(rng, n, 30)
            within = inside if where == "inside" else outside
            with_one(rng, within, int(rng.integers(0, n - 1)), n * 10.0)
            found = estimator.sample(inside, outside, 128, rng)
            assert found.time <= (inside.sum() + outside.sum()) * 1.001
            assert found.low <= inside.sum() <= found.high


def test_long_search_for_the_end_is_seen(estimator: Estimator) -> None:
    """A scan that has returned its last row early takes most of its time to find that."""
    rng = np.random.default_rng(2)
    for _ in range(REPETITIONS):
        n = 3000
        inside = with_one(rng, even(rng, n, 50), n - 1, n * 500.0)
        found = estimator.sample(inside, even(rng, n, 30), 128, rng)
        assert found.time == pytest.approx(inside.sum(), rel=0.02)


def test_few_calls_are_exact(estimator: Estimator) -> None:
    rng = np.random.default_rng(3)
    inside = even(rng, 60, 50)
    found = estimator.sample(inside, even(rng, 60, 30), 128, rng)
    assert found.low == found.time == found.high == pytest.approx(inside.sum())


def test_interval_reaches_a_long_call_of_a_node_that_takes_little(estimator: Estimator) -> None:
    """Its parent takes most of the time, so the call is taken for the parent's, but not surely."""
    rng = np.random.default_rng(4)
    for _ in range(REPETITIONS):
        n = 20_000
        inside = with_one(rng, even(rng, n, 5), int(rng.integers(0, n - 1)), n * 1000.0)
        found = estimator.sample(inside, even(rng, n, 45), 128, rng)
        assert found.low <= inside.sum() <= found.high


def test_node_never_called(estimator: Estimator) -> None:
    found = estimator.interval(RowTimes())
    assert (found.time, found.low, found.high) == (0, 0, 0)


def share(
    whole: int, time: float, deviation: float, summed: bool = True, apart: bool = False
) -> RowShare:
    return RowShare(whole, summed, apart, RowEstimate(time, deviation**2, 0, 1e9, 1.96))


def test_children_give_way_to_an_exact_parent(estimator: Estimator) -> None:
    times = estimator.reconcile([share(-1, 100, 0), share(0, 80, 10), share(0, 50, 20)], 1e9)
    assert times == pytest.approx([100, 80 - 30 / 5, 50 - 30 * 4 / 5])


def test_parent_gives_way_to_exact_children(estimator: Estimator) -> None:
    times = estimator.reconcile([share(-1, 100, 10), share(0, 80, 0), share(0, 50, 0)], 1e9)
    assert times == pytest.approx([130, 80, 50])


def test_what_agrees_stays(estimator: Estimator) -> None:
    times = estimator.reconcile([share(-1, 100, 10), share(0, 60, 5), share(0, 30, 5)], 1e9)
    assert times == pytest.approx([100, 60, 30])


def test_init_plans_are_not_added_up(estimator: Estimator) -> None:
    """They run within another child's calls."""
    times = estimator.reconcile([share(-1, 100, 0), share(0, 90, 5), share(0, 80, 5, False)], 1e9)
    assert times == pytest.approx([100, 90, 80])


def test_what_goes_on_at_the_end_is_not_within_the_root(estimator: Estimator) -> None:
    known = RowEstimate(500, 0, 500, 500, 1.96)
    shares = [share(-1, 100, 0), RowShare(0, False, True, known), share(1, 400, 0)]
    assert estimator.reconcile([*shares, share(0, 120, 5)], 1e9) == pytest.approx(
        [100, 500, 400, 100]
    )


def test_nothing_takes_longer_than_the_execution(estimator: Estimator) -> None:
    times = estimator.reconcile([share(-1, 100, 10), share(0, 95, 10)], 90)
    assert max(times) <= 90
