"""The estimators written plainly, as a check on the fast ones, and simulated recordings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.observations import NO_SLICE, OBSERVATION, Observations, UnitFlag
from tests.assignment import permuted_block

BAD = UnitFlag.SWITCH_FAILED | UnitFlag.APP_CHANGED | UnitFlag.RELOADED


def design_of(n_arms: int, *, block: Sequence[int] | None = None, seed: int = 1) -> Design:
    """A base, a control and instruments i2, i3, ..."""
    arms = [Arm("base", "base"), Arm("control", "control")]
    arms += [Arm(f"i{k}", "instrument") for k in range(2, n_arms)]
    return Design(tuple(arms[:n_arms]), tuple(block or range(n_arms)), seed)


def noise(n: int, rng: np.random.Generator, *, stalls: float = 0.0005) -> npt.NDArray[np.float64]:
    """Service times in microseconds: autocorrelated, lognormal, with rare long stalls."""
    drift = np.empty(n)
    level = 0.0
    for i, step in enumerate(rng.normal(0, 0.02, n)):
        level = 0.9 * level + step
        drift[i] = level
    stall = (rng.random(n) < stalls) * rng.pareto(1.5, n) * 2000
    return 70 * np.exp(drift + rng.normal(0, 0.05, n)) + stall


def simulate(
    design: Design,
    blocks: int,
    *,
    backends: int = 1,
    seed: int = 1,
    own: Sequence[float] = (),
    carry: Sequence[float] = (),
    stalls: float = 0.0005,
) -> Observations:
    """A trial as the server records it: a thrown-away first unit, then whole blocks.

    own, carry: effect of each arm on its unit and on the next, microseconds.
    """
    rng = np.random.default_rng(seed)
    size, n_arms = len(design.block), len(design.arms)
    tau, after = np.zeros(n_arms), np.zeros(n_arms)
    tau[: len(own)], after[: len(carry)] = own, carry
    parts = []
    for backend in range(backends):
        arm = np.array([0, *(a for b in range(blocks) for a in permuted_block(design, backend, b))])
        x = noise(len(arm), rng, stalls=stalls) + tau[arm]
        x[1:] += after[arm[:-1]]
        part = np.zeros(len(arm), OBSERVATION)
        part["backend"], part["pid"] = backend, 100 + backend
        part["unit"], part["arm"] = np.arange(len(arm)), arm
        part["block"][1:] = np.arange(len(arm) - 1) // size
        part["position"][1:] = np.arange(len(arm) - 1) % size
        part["flags"][0] = UnitFlag.UNBLOCKED
        part["slice"] = NO_SLICE
        part["service_ns"] = np.rint(1000 * x)
        part["cpu_ns"] = np.rint(900 * x)
        part["switch_ns"] = 500
        part["start_ns"] = np.cumsum(part["service_ns"] + 2000) - part["service_ns"]
        parts.append(part)
    return np.concatenate(parts)


@dataclass
class Unit:
    """One unit of a usable block, with the arms before it (None where unknown)."""

    arm: int
    service_us: float
    before: tuple[int | None, int | None]


@dataclass
class Block:
    """A usable block."""

    backend: int
    units: list[Unit]


def usable_blocks(obs: Observations, design: Design) -> list[Block]:
    """Whole blocks without a doubtful unit, by (backend, block)."""
    by_unit = {(int(o["backend"]), int(o["unit"])): o for o in obs}
    members: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for backend, unit in sorted(by_unit):
        o = by_unit[backend, unit]
        if not o["flags"] & UnitFlag.UNBLOCKED:
            members.setdefault((backend, int(o["block"])), []).append((backend, unit))
    blocks = []
    for (backend, _), keys in sorted(members.items()):
        if sorted(int(by_unit[key]["arm"]) for key in keys) != sorted(design.block):
            continue
        if any(by_unit[key]["flags"] & BAD for key in keys):
            continue
        units = []
        for key in keys:
            before = []
            for lag in (1, 2):
                o = by_unit.get((key[0], key[1] - lag))
                before.append(None if o is None or o["flags"] & BAD else int(o["arm"]))
            o = by_unit[key]
            units.append(Unit(int(o["arm"]), o["service_ns"] / 1000, (before[0], before[1])))
        blocks.append(Block(backend, units))
    return blocks


def clusters_of(blocks: list[Block]) -> list[int]:
    """The cluster of each block: runs of 16 within a backend, shorter in a small trial."""
    length = max(1, min(16, len(blocks) // 32))
    clusters: list[int] = []
    within = 0
    for i, block in enumerate(blocks):
        if i == 0:
            clusters.append(0)
            continue
        within = within + 1 if block.backend == blocks[i - 1].backend else 0
        clusters.append(clusters[-1] + (within % length == 0))
    return clusters


@dataclass
class Regression:
    """Coefficients by (lag, arm), their sandwich covariance, and the order of both."""

    terms: list[tuple[int, int]]
    coefficients: npt.NDArray[np.float64]
    covariance: npt.NDArray[np.float64]

    def effect(self, arm: int, *lags: int) -> tuple[float, float]:
        """Sum of an arm's coefficients over the lags, and its standard error."""
        pick = np.array([float(term in {(lag, arm) for lag in lags}) for term in self.terms])
        return float(pick @ self.coefficients), math.sqrt(pick @ self.covariance @ pick)


def regress(blocks: list[Block], n_arms: int, outcome, lags: int = 1) -> Regression:  # type: ignore[no-untyped-def]
    """OLS with every dummy written out, and the cluster sandwich written out."""
    terms = [(lag, arm) for lag in range(lags + 1) for arm in range(1, n_arms)]
    clusters = clusters_of(blocks)
    rows, y, cluster = [], [], []
    for b, block in enumerate(blocks):
        for unit in block.units:
            if None in unit.before[:lags]:
                continue
            arms = (unit.arm, *unit.before)
            dummies = [float(arms[lag] == arm) for lag, arm in terms]
            rows.append(dummies + [float(b == other) for other in range(len(blocks))])
            y.append(outcome(unit.service_us))
            cluster.append(clusters[b])
    x = np.array(rows)
    coefficients = np.linalg.lstsq(x, np.array(y), rcond=None)[0]
    residual = np.array(y) - x @ coefficients
    bread = np.linalg.pinv(x.T @ x)
    meat = np.zeros_like(bread)
    for g in set(clusters):
        rows_of_g = [i for i, own in enumerate(cluster) if own == g]
        score = x[rows_of_g].T @ residual[rows_of_g]
        meat += np.outer(score, score)
    n_clusters = max(clusters) + 1
    covariance = n_clusters / (n_clusters - 1) * bread @ meat @ bread
    p = len(terms)
    return Regression(terms, coefficients[:p], covariance[:p, :p])


def block_differences(blocks: list[Block], arm: int, outcome) -> list[float]:  # type: ignore[no-untyped-def]
    """Arm less base in each block."""
    differences = []
    for block in blocks:
        treated = [outcome(u.service_us) for u in block.units if u.arm == arm]
        base = [outcome(u.service_us) for u in block.units if u.arm == 0]
        differences.append(sum(treated) / len(treated) - sum(base) / len(base))
    return differences


def mean_and_se(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def sign_flip_p(d: Sequence[float], theta: float = 0.0) -> float:
    """Two-sided sign-flip p of the mean, flip by flip."""
    shifted = [x - theta for x in d]
    observed = abs(sum(shifted))
    flips = list(itertools.product((1, -1), repeat=len(d)))
    sums = [abs(sum(s * x for s, x in zip(signs, shifted, strict=True))) for signs in flips]
    return sum(total >= observed * (1 - 1e-12) - 1e-15 for total in sums) / len(flips)


def one_sided_flip_p(d: Sequence[float], theta: float, *, above: bool) -> float:
    """p of "the mean is θ" against a larger (or smaller) one, flip by flip."""
    shifted = [x - theta if above else theta - x for x in d]
    observed = sum(shifted)
    flips = list(itertools.product((1, -1), repeat=len(d)))
    sums = [sum(s * x for s, x in zip(signs, shifted, strict=True)) for signs in flips]
    return sum(total >= observed - 1e-12 for total in sums) / len(flips)


def sign_flip_interval(d: Sequence[float], alpha: float) -> tuple[float, float]:
    """The interval that inverts `sign_flip_p`, each end by halving."""
    mean = sum(d) / len(d)
    ends = []
    for direction in (-1, 1):
        inside, outside = mean, mean + direction * 10 * (max(d) - min(d) + 1)
        if sign_flip_p(d, outside) > alpha:
            ends.append(direction * math.inf)
            continue
        for _ in range(60):
            middle = (inside + outside) / 2
            if sign_flip_p(d, middle) > alpha:
                inside = middle
            else:
                outside = middle
        ends.append(inside)
    return ends[0], ends[1]
