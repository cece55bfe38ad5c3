"""Raw observations of trials with a known truth, made without any of the estimators.

A session is an array of the service times (n,) in microseconds that its transactions would have
under the base. `simulate` deals the arms as the server would and applies the effects; of the
assignment it takes design.py's word, of the layout of an observation observations.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tests.assignment import filler, permuted_block

from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.estimate.trial.observations import NO_SLICE, OBSERVATION, Observations, UnitFlag

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator
#: Service times (n,) and what each would be under the instrument.
EffectOf = Callable[[Floats], Floats]


def design_of(n_arms: int, seed: int) -> Design:
    """A base and instruments i1, i2, …, in the blocks that a weighing would have."""
    arms = (Arm("base", "base"), *(Arm(f"i{k}", "instrument") for k in range(1, n_arms)))
    return Design(arms, block_layout(n_arms), seed)


@dataclass(frozen=True)
class Simulated:
    """Observations, and for each of them what the first instrument would make of it.

    base_us, treated_us: (N,) both potential service times, in the order of the observations.
    """

    observations: Observations
    base_us: Floats
    treated_us: Floats

    def truth_of_body(self, c: float) -> float:
        """Mean over all transactions of what the instrument adds below c."""
        added = np.minimum(self.treated_us, c) - np.minimum(self.base_us, c)
        return float(added.mean())

    def base_body(self, c: float) -> float:
        """Mean of the base's service times below c, over all transactions."""
        return float(np.minimum(self.base_us, c).mean())

    def truth(self) -> float:
        """The same of the whole service time."""
        return float((self.treated_us - self.base_us).mean())


def arms_of(design: Design, session: int, units: int) -> tuple[Ints, ...]:
    """Arm, block, position and whether it is in no block (units,) of a session's transactions.

    Runs are not dealt: these designs have none.
    """
    arm, block, position, outside = [0], [0], [0], [True]
    number = 0
    while len(arm) < units:
        extra = filler(design, session, number)
        if extra is not None:
            arm.append(extra)
            block.append(number)
            position.append(0)
            outside.append(True)
        order = permuted_block(design, session, number)
        arm += order
        block += [number] * len(order)
        position += range(len(order))
        outside += [False] * len(order)
        number += 1
    return tuple(np.array(column[:units]) for column in (arm, block, position, outside))


def simulate(
    sessions: Sequence[Floats],
    design: Design,
    effect: EffectOf = lambda x: x,
    *,
    only: int = 1,
    after: Sequence[float] = (),
    life_us: float = np.inf,
) -> Simulated:
    """A trial by transactions. effect: of arm `only`; the other instruments do nothing.

    after: what a transaction of that arm adds to the one after it, the one after that, …, in µs.
    life_us: when a session ends; a transaction that is then under way is reported as open, with
    the time that it has taken so far.
    """
    parts, base, treated = [], [], []
    for number, x in enumerate(sessions):
        arm, block, position, outside = arms_of(design, number, len(x))
        hit = arm == only
        with_effect = effect(x)
        found = np.where(hit, with_effect, x)
        for lag, added in enumerate(after, start=1):
            found[lag:] += added * hit[:-lag]
        rows = _rows(found, arm, block, position, outside, number)
        part = _until(rows, life_us)
        parts.append(part)
        base.append(x[: len(part)])
        treated.append((with_effect + sum(after))[: len(part)])
    return Simulated(np.concatenate(parts), np.concatenate(base), np.concatenate(treated))


def _until(rows: Observations, life_us: float) -> Observations:
    """What the server reports of a session that ends then."""
    if not np.isfinite(life_us):
        return rows
    kept = rows[rows["start_ns"] < 1_000 * life_us]
    left = round(1_000 * life_us) - kept["start_ns"]
    cut = kept["service_ns"] > left
    kept["service_ns"][cut] = left[cut]
    kept["flags"][cut] |= int(UnitFlag.OPEN)
    return kept


def _rows(
    found: Floats, arm: Ints, block: Ints, position: Ints, outside: Ints, number: int
) -> Observations:
    part = np.zeros(len(found), OBSERVATION)
    service_ns = np.rint(1_000 * found).astype(np.int64)
    part["service_ns"] = service_ns
    part["start_ns"] = np.cumsum(service_ns + 20_000) - service_ns
    part["cpu_ns"] = -1
    part["backend"], part["pid"] = number, 1_000 + number
    part["unit"] = np.arange(len(found))
    part["block"], part["position"], part["arm"] = block, position, arm
    part["requests"] = 1
    part["flags"] = np.where(outside, int(UnitFlag.UNBLOCKED), 0)
    part["slice"] = NO_SLICE
    return part


# Service times of n transactions of a session, in microseconds


def lognormal(n: int, rng: Rng, sigma: float = 0.5) -> Floats:
    return np.asarray(100 * np.exp(rng.normal(0, sigma, n)))


def pareto(n: int, rng: Rng, index: float = 1.5) -> Floats:
    return np.asarray(50 * (1 + rng.pareto(index, n)))


def bimodal_with_drift(n: int, rng: Rng) -> Floats:
    share = 0.1 + 0.5 * np.abs(np.sin(np.linspace(0, 3, n) + rng.uniform(0, 6)))
    level = np.exp(np.cumsum(rng.normal(0, 0.005, n)))
    slow = rng.random(n) < share
    return np.asarray(level * np.where(slow, 1_000, 100) * np.exp(rng.normal(0, 0.1, n)))


def autoregressive(n: int, rng: Rng, rho: float = 0.999) -> Floats:
    # so slow a process is nearly a random walk: sums of steps that are forgotten by and by
    level, steps = np.empty(n), rng.normal(0, np.sqrt(1 - rho**2), n)
    value = float(rng.normal())
    for i, step in enumerate(steps.tolist()):
        value = rho * value + step
        level[i] = value
    return np.asarray(100 * np.exp(0.5 * level + rng.normal(0, 0.1, n)))


def cycle(n: int, rng: Rng, period: int) -> Floats:
    """The same few transactions again and again, of very different lengths."""
    lengths = 100 * np.exp(rng.normal(0, 1, period))
    return np.asarray(np.resize(lengths, n) * np.exp(rng.normal(0, 0.05, n)))


def bursts(n: int, rng: Rng, length: int = 100, times: float = 20.0) -> Floats:
    """One stretch of slow transactions."""
    x = lognormal(n, rng, 0.2)
    start = int(rng.integers(0, n - length))
    x[start : start + length] *= times
    return x


def doubling(n: int, rng: Rng) -> Floats:
    x = lognormal(n, rng)
    x[n // 2 :] *= 2
    return x
