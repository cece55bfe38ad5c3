"""Guards of a fleet's trials: they rarely stop what is harmless, and find what they say."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy

from pgtare.estimate.arrays import Floats
from pgtare.estimate.fleet.guard import GuardedServer, GuardLook, HarmGuard
from pgtare.estimate.fleet.wealth import (
    body_wealth,
    log_combined,
    log_mean,
    odds_wealth,
    threshold,
)

ALPHA = 0.05
#: Simulated trials, and the share of them that a guard at ALPHA exceeds once in 10,000 runs.
TRIALS, LOOKS, BLOCKS = 1_500, 30, 20
MOST = ALPHA + 3.72 * math.sqrt(ALPHA * (1 - ALPHA) / TRIALS)

Times = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return 1000 * rng.lognormal(0, 1.5, shape)


def pareto(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return 1000 * (1 + rng.pareto(1.5, shape))


def cap_of(times: Times, share: float = 0.99) -> float:
    return float(np.quantile(times(np.random.default_rng(77), (100_000,)), share))


def ever(wealth: Floats, alpha: float = ALPHA) -> float:
    """Share of trials that are ever stopped; wealth (trials, looks, groups, bets), by look."""
    evidence = log_combined(log_mean(wealth.cumsum(axis=1)))
    return float((evidence.max(axis=1) >= threshold(alpha)).mean())


@pytest.mark.parametrize("times", [lognormal, pareto])
@pytest.mark.parametrize("groups", [1, 4])
def test_equal_bodies_rarely_breach_however_often_one_looks(times: Times, groups: int) -> None:
    rng = np.random.default_rng(groups)
    shape = (TRIALS, LOOKS, groups, BLOCKS)
    wealth = body_wealth(times(rng, shape), times(rng, shape), cap_of(times), 0.0)
    assert ever(wealth) <= MOST


@pytest.mark.parametrize("times", [lognormal, pareto])
def test_a_body_at_its_limit_rarely_breaches(times: Times) -> None:
    # load doubles halfway, which slows arm and base alike
    rng = np.random.default_rng(9)
    shape = (TRIALS, LOOKS, 1, BLOCKS)
    drift = np.where(np.arange(LOOKS) < LOOKS / 2, 1.0, 2.0)[:, np.newaxis, np.newaxis]
    arm, base = drift * times(rng, shape) * 1.25, drift * times(rng, shape)
    assert ever(body_wealth(arm, base, cap_of(times), 0.25)) <= MOST


def test_without_a_cap_a_heavy_tail_would_not_be_bounded() -> None:
    # a single transaction of an hour moves wealth no further than the cap lets it
    huge = body_wealth(np.array([3.6e9]), np.array([0.0]), 1000.0, 0.25)
    assert huge.max() == pytest.approx(math.log1p(0.5))
    ruin = body_wealth(np.array([0.0]), np.array([3.6e9]), 1000.0, 0.25)
    assert np.isfinite(ruin).all()
    assert ruin.min() == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("limit", [0.0, 0.25, 1.0])
def test_a_bet_on_the_body_is_fair_at_the_limit(limit: float) -> None:
    # the arm at its limit, as its mean is that much more than the base's: exact expectation over
    # a base that is at the cap in a tenth, and at 0 else
    cap, share = 1000.0, 0.1
    arm = np.array([(1 + limit) * share * cap])
    at_cap = np.exp(body_wealth(arm, np.array([cap]), cap, limit))
    at_zero = np.exp(body_wealth(arm, np.array([0.0]), cap, limit))
    assert share * at_cap + (1 - share) * at_zero == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("limit", [1.0, 1.5, 4.0])
@pytest.mark.parametrize(("arm_n", "base_n"), [(10, 10), (3, 40), (40, 3), (200, 100)])
def test_no_bet_on_events_wins_on_average(limit: float, arm_n: int, base_n: int) -> None:
    # given the number of events, the arm's is Fisher's noncentral hypergeometric at the limit
    for events in (1, 2, 5, min(arm_n, base_n), arm_n + base_n - 1):
        arm = np.arange(max(0, events - base_n), min(events, arm_n) + 1)
        chances = scipy.stats.nchypergeom_fisher.pmf(arm, arm_n + base_n, arm_n, events, limit)
        won = np.exp(odds_wealth(arm, events - arm, arm_n, base_n, limit))
        assert (chances @ won <= 1 + 1e-9).all()


@pytest.mark.parametrize(("limit", "arm_n", "base_n"), [(2.0, 10, 10), (1.5, 3, 40), (1.0, 40, 3)])
def test_a_bet_on_events_is_fair_by_the_arms_weighted_share(
    limit: float, arm_n: int, base_n: int
) -> None:
    share = limit * arm_n / (limit * arm_n + base_n)
    arm = np.arange(8)
    won = np.exp(odds_wealth(arm, 7 - arm, arm_n, base_n, limit))
    assert scipy.stats.binom.pmf(arm, 7, share) @ won == pytest.approx(1, abs=1e-12)


def test_no_transactions_are_no_evidence() -> None:
    assert odds_wealth(0, 0, 0, 0, 2.0) == pytest.approx(0.0)


def test_half_is_on_the_product_and_half_on_the_mean() -> None:
    assert log_mean(np.log([1.0, 4.0])) == pytest.approx(math.log(2.5))
    assert log_combined(np.log([4.0, 9.0])) == pytest.approx(math.log((36 + 6.5) / 2))
    assert log_combined(np.array([5_000.0, 0.0])) == pytest.approx(5_000 + math.log(0.75))


def test_events_at_the_limit_rarely_breach() -> None:
    rng = np.random.default_rng(3)
    shape = (TRIALS, 100, 1)
    # the base's rate drifts over a factor of ten, and so do the counts
    base_rate = 0.02 * np.exp(1.15 * np.sin(np.arange(100) / 10))[:, np.newaxis]
    odds = 2 * base_rate / (1 - base_rate)
    arm_n, base_n = rng.integers(1, 60, shape), rng.integers(1, 600, shape)
    arm, base = rng.binomial(arm_n, odds / (1 + odds)), rng.binomial(base_n, base_rate)
    assert ever(odds_wealth(arm, base, arm_n, base_n, 2.0)) <= MOST


def test_events_in_bursts_rarely_breach_if_assigned_at_random() -> None:
    # stalls hit whole stretches of transactions; blocks of two have one of the arm and one of the
    # base in random order
    rng = np.random.default_rng(4)
    stalled = rng.random((TRIALS, LOOKS, 1, 5)) < 0.1
    hit = np.repeat(stalled, 4, axis=-1)[..., np.newaxis] & (rng.random((1, 1, 1, 20, 2)) < 0.9)
    first = rng.random((TRIALS, LOOKS, 1, 20)) < 0.5
    arm = np.where(first, hit[..., 0], hit[..., 1]).sum(axis=-1)
    base = hit.sum(axis=(-1, -2)) - arm
    assert ever(odds_wealth(arm, base, 20, 20, 1.0)) <= MOST


def look(
    rng: np.random.Generator, slower: float = 1.0, slow: float = 0.01, aborted: float = 0.001
) -> GuardLook:
    """200 transactions of each; the arm's body, slow share and aborted share as given."""
    return GuardLook(
        arm_us=rng.exponential(1000 * slower, 200),
        base_us=rng.exponential(1000, 200),
        arm_n=200,
        base_n=200,
        arm_slow=int(rng.binomial(200, slow)),
        base_slow=int(rng.binomial(200, 0.01)),
        arm_aborted=int(rng.binomial(200, aborted)),
        base_aborted=int(rng.binomial(200, 0.001)),
    )


NOTHING = GuardLook(np.empty(0), np.empty(0), 0, 0, 0, 0, 0, 0)


def guard(names: str, groups: str = "", alpha: float = ALPHA) -> HarmGuard:
    of = dict(zip(names, groups or names, strict=True))
    return HarmGuard({name: GuardedServer(of[name], 4600.0) for name in names}, alpha=alpha)


def test_a_guard_without_data_has_no_evidence() -> None:
    fresh = guard("ab")
    assert fresh.e_value() == pytest.approx(1.0)
    assert fresh.breach is None


def test_a_harmless_fleet_is_left_alone() -> None:
    rng = np.random.default_rng(1)
    watching = guard("abc")
    for _ in range(60):
        for name in "abc":
            watching.update(name, look(rng))
    assert watching.breach is None
    assert watching.e_value() < 1


@pytest.mark.parametrize(
    ("harm", "changed"),
    [("body", {"slower": 1.8}), ("tail", {"slow": 0.06}), ("aborts", {"aborted": 0.03})],
)
def test_each_harm_is_found_and_named(harm: str, changed: dict[str, float]) -> None:
    rng = np.random.default_rng(2)
    watching = guard("abc")
    for _ in range(40):
        for name in "abc":
            watching.update(name, look(rng, **(changed if name == "b" else {})))
        if watching.breach is not None:
            break
    assert watching.breach is not None
    assert (watching.breach.harm, watching.breach.server) == (harm, "b")
    assert watching.breach.e_value >= 1 / ALPHA


def test_a_breach_stays() -> None:
    rng = np.random.default_rng(5)
    watching = guard("a")
    while watching.breach is None:
        watching.update("a", look(rng, slower=2.0))
    first = watching.breach
    watching.update("a", look(rng, slower=2.0))
    assert watching.breach is first
    for _ in range(60):
        watching.update("a", look(rng, slower=0.5))
    assert watching.e_value() < 1
    assert watching.breach is first


def test_servers_that_share_no_load_add_up_and_others_do_not() -> None:
    apart, together = guard("abcd"), guard("abcd", groups="gggg")
    rng = np.random.default_rng(6)
    for _ in range(4):
        for name in "abcd":
            seen = look(rng, slower=1.5)
            apart.update(name, seen)
            together.update(name, seen)
    assert apart.log_e_value > together.log_e_value + 2


def test_harm_on_one_server_of_many_is_not_drowned() -> None:
    rng = np.random.default_rng(7)
    watching = guard("abcdefghijkl")
    for _ in range(40):
        for name in "abcdefghijkl":
            watching.update(name, look(rng, slower=2.0 if name == "c" else 0.9))
    assert watching.breach is not None


def test_a_guard_gives_what_the_arrays_give() -> None:
    rng = np.random.default_rng(8)
    looks = [look(rng, slower=1.4) for _ in range(5)]
    watching = guard("a")
    for seen in looks:
        watching.update("a", seen)
    body = sum(body_wealth(s.arm_us, s.base_us, 4600.0, 0.25) for s in looks)
    slow = sum(odds_wealth(s.arm_slow, s.base_slow, 200, 200, 2.0) for s in looks)
    aborts = sum(odds_wealth(s.arm_aborted, s.base_aborted, 200, 200, 1.5) for s in looks)
    each = np.array([log_mean(np.asarray(wealth)) for wealth in (body, slow, aborts)])
    assert watching.log_e_value == pytest.approx(float(log_mean(each)))


@pytest.mark.parametrize("groups", ["abcdef", "aabbba", "cccbba"])
def test_a_look_at_one_server_gives_what_all_servers_anew_give(groups: str) -> None:
    rng = np.random.default_rng(10)
    watching = guard("abcdef", groups)
    for name in rng.choice(list("abcdef"), 40):
        watching.update(name, look(rng, slower=1.1))
    harms = []
    for wealth in watching._wealth.values():
        of_servers = log_mean(wealth)
        members = [[i for i in range(6) if groups[i] == group] for group in sorted(set(groups))]
        harms.append(log_combined(np.array([log_mean(of_servers[each]) for each in members])))
    expected = float(log_mean(np.array(harms)))
    assert watching.log_e_value == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_look_costs_the_same_with_many_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a thousand servers would wait for each other, and leases would run out."""
    calls = 0

    def counting(logs: Floats) -> Floats:
        nonlocal calls
        calls += 1
        return log_mean(logs)

    monkeypatch.setattr("pgtare.estimate.fleet.guard.log_mean", counting)
    counts = set()
    for servers in (10, 2_000):
        watching = HarmGuard({str(i): GuardedServer(str(i), 4600.0) for i in range(servers)})
        calls = 0
        watching.update("3", look(np.random.default_rng(11)))
        watching.e_value()
        counts.add(calls)
    assert len(counts) == 1


def test_evidence_beyond_all_numbers_is_a_number() -> None:
    watching = guard("a")
    watching._wealth["body"][:] = 1e5
    watching.update("a", NOTHING)
    assert watching.e_value() == pytest.approx(math.exp(700))
    assert watching.log_e_value == pytest.approx(1e5, rel=1e-4)


def test_evidence_of_just_the_threshold_is_a_breach() -> None:
    watching = guard("a")
    for of_servers in watching._wealth.values():
        of_servers[:] = threshold(ALPHA)
    watching.update("a", NOTHING)
    assert watching.breach is not None
