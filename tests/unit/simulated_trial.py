"""Trials with known truths, simulated unit by unit, and how often the verdicts on them are wrong.

Nothing here is taken from the estimators. Every scenario is a function of a number of trials and a
seed that returns `Count`: how often something happened, in how many cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial import ArmEstimate, Estimate, TrialEstimate, analyse
from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.estimate.trial.observations import NO_SLICE, OBSERVATION, Observations, UnitFlag

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Generator = np.random.Generator

GAP_US = 5.0
MEAN_US = 100.0


class Count(NamedTuple):
    """So many hits in so many trials."""

    hits: int
    trials: int


@dataclass
class Session:
    """Units of one session before its end cuts them short."""

    service_us: Floats
    aborted: npt.NDArray[np.bool_]


#: Service times of the arms (N,) of one session's units, in order.
Model = Callable[[Ints, Generator], Session]


def arms_of(instruments: int) -> tuple[Arm, ...]:
    """A base, a control, and instruments x0, x1, ..."""
    named = [Arm(f"x{k}", "instrument") for k in range(instruments)]
    return (Arm("base", "base"), Arm("control", "control"), *named)


def record(
    instruments: int,
    model: Model,
    rng: Generator,
    *,
    sessions: int = 4,
    units: int = 3_000,
    life_us: float | None = None,
) -> tuple[Design, Observations]:
    """A trial of sessions that send `units` transactions one after another.

    life_us: then every session is cut off, and a transaction under way is recorded as open.
    """
    arms = arms_of(instruments)
    layout = np.array(block_layout(len(arms)))
    parts = []
    for backend in range(sessions):
        blocks = -(-units // len(layout))
        drawn = rng.permuted(np.tile(layout, (blocks, 1)), axis=1).ravel()[:units]
        arm = np.concatenate(([0], drawn))
        session = model(arm, rng)
        start = np.concatenate(([0.0], np.cumsum(session.service_us + GAP_US)[:-1]))
        part = np.zeros(len(arm), OBSERVATION)
        part["backend"], part["pid"], part["slice"] = backend, 1000 + backend, NO_SLICE
        part["unit"], part["arm"], part["requests"] = np.arange(len(arm)), arm, 1
        part["block"][1:] = np.arange(units) // len(layout)
        part["position"][1:] = np.arange(units) % len(layout)
        part["flags"] = np.where(session.aborted, int(UnitFlag.ABORTED), 0)
        part["flags"][0] |= int(UnitFlag.UNBLOCKED)
        part["cpu_ns"] = -1
        part["start_ns"] = np.rint(1000 * start)
        service_us = session.service_us
        if life_us is not None:
            part, service_us = part[start < life_us], service_us[start < life_us].copy()
            left = life_us - start[len(part) - 1]
            if service_us[-1] > left:
                service_us[-1] = left
                part["flags"][-1] = int(part["flags"][-1]) & int(UnitFlag.UNBLOCKED)
                part["flags"][-1] |= int(UnitFlag.OPEN)
        part["service_ns"] = np.rint(1000 * service_us)
        parts.append(part)
    return Design(arms, tuple(int(a) for a in layout), 1), np.concatenate(parts)


def judged(design: Design, obs: Observations, margin: float = 0.005) -> TrialEstimate:
    """The trial's estimate, every instrument proven."""
    proven = {arm.name: True for arm in design.arms}
    return analyse(obs, design, margin=margin, proven=proven, seed=1)


def instruments_of(found: TrialEstimate) -> list[ArmEstimate]:
    """The arms that are instruments."""
    return [arm for arm in found.arms if arm.role == "instrument"]


def first(found: TrialEstimate) -> ArmEstimate:
    """The first instrument, which has the effect where there is one."""
    return instruments_of(found)[0]


def covers(interval: Estimate, truth: float) -> bool:
    """Whether an interval holds the truth; infinite ends do."""
    return interval.lo <= truth <= interval.hi


# --- service times -----------------------------------------------------------------------------


def lognormal(n: int, rng: Generator) -> Floats:
    """Mean MEAN_US, a spread of 20 %."""
    return MEAN_US * rng.lognormal(-0.02, 0.2, n)


def pareto(n: int, rng: Generator) -> Floats:
    """Pareto of index 1.5: its variance is infinite."""
    return MEAN_US * (0.5 + 0.25 * rng.pareto(1.5, n))


def bimodal_with_drift(n: int, rng: Generator) -> Floats:
    """Two kinds of transactions, ever more of the slow one."""
    slow = rng.random(n) < np.linspace(0.1, 0.4, n)
    return np.where(slow, 4.0, 0.7) * MEAN_US * rng.lognormal(0, 0.05, n)


def wandering(n: int, rng: Generator) -> Floats:
    """Autoregressive of first order, .999 from unit to unit."""
    level, noise = np.empty(n), rng.normal(0, 0.01, n)
    at = rng.normal(0, 0.2)
    for i in range(n):
        at = 0.999 * at + noise[i]
        level[i] = at
    return np.asarray(MEAN_US * np.exp(level) * rng.lognormal(0, 0.05, n), dtype=np.float64)


NOISES = {
    "lognormal": lognormal,
    "Pareto 1.5": pareto,
    "bimodal with drift": bimodal_with_drift,
    "AR .999": wandering,
}
Noise = Callable[[int, Generator], Floats]


def plain(noise: Noise = lognormal, factors: Sequence[float] = ()) -> Model:
    """Arm k takes factors[k] times as long, 1 where there is none."""

    def model(arm: Ints, rng: Generator) -> Session:
        factor = np.ones(int(arm.max()) + 1)
        factor[: len(factors)] = factors[: len(factor)]
        service_us = noise(len(arm), rng) * factor[arm]
        return Session(service_us, np.zeros(len(arm), dtype=np.bool_))

    return model


def stalling(share: float, stall_us: float, noise: Noise = lognormal, whose: int = 2) -> Model:
    """One arm stalls for a fixed time in a share of its units."""

    def model(arm: Ints, rng: Generator) -> Session:
        service_us = noise(len(arm), rng)
        service_us[(arm == whose) & (rng.random(len(arm)) < share)] += stall_us
        return Session(service_us, np.zeros(len(arm), dtype=np.bool_))

    return model


def failing(rates: Sequence[float], factor: float = 1.0, early: float = 0.1) -> Model:
    """Units of arm k fail with rate rates[k] after a tenth of their time; arm 2 takes `factor`."""

    def model(arm: Ints, rng: Generator) -> Session:
        service_us = lognormal(len(arm), rng) * np.where(arm == 2, factor, 1.0)
        aborted = rng.random(len(arm)) < np.array(rates)[arm]
        return Session(np.where(aborted, early * service_us, service_us), aborted)

    return model


def failing_in_spells(rate: float) -> Model:
    """All arms fail alike, in spells of some 50 transactions in which every second one does."""

    def model(arm: Ints, rng: Generator) -> Session:
        n = len(arm)
        spell = np.zeros(n, dtype=np.bool_)
        for at in np.flatnonzero(rng.random(n) < 2 * rate / 50):
            spell[at : at + 50] = True
        return Session(lognormal(n, rng), spell & (rng.random(n) < 0.5))

    return model


# --- scenarios ---------------------------------------------------------------------------------


def trials(
    number: int, seed: int, instruments: int, model: Model, **how: float
) -> Iterator[TrialEstimate]:
    """Judged trials, each with a random stream of its own."""
    for i in range(number):
        rng = np.random.default_rng((seed, i))
        design, obs = record(instruments, model, rng, **how)  # type: ignore[arg-type]
        yield judged(design, obs)


def family_wise_errors(number: int, seed: int, instruments: int, noise: str) -> Count:
    """A/A trials in which any instrument is called a cost or a gain."""
    wrong = 0
    for found in trials(number, seed, instruments, plain(NOISES[noise]), units=2_400):
        wrong += any(arm.verdict in ("cost", "gain") for arm in instruments_of(found))
    return Count(wrong, number)


def withheld_from_good_trials(number: int, seed: int) -> tuple[Count, Count]:
    """Trials of a clear cost: withheld because of the control, and not called a cost at all."""
    off = other = 0
    for found in trials(number, seed, 1, plain(factors=(1, 1, 1.05)), units=2_400):
        arm = first(found)
        off += "control" in arm.verdict_reason
        other += arm.verdict != "cost"
    return Count(off, number), Count(other, number)


def flat_verdicts_with_the_control_off(number: int, seed: int) -> Count:
    """Cost, gain or equivalent although the control is off by as much as the instrument."""
    decided = 0
    for found in trials(number, seed, 1, plain(factors=(1, 1.05, 1.05))):
        decided += first(found).verdict in ("cost", "gain", "equivalent")
    return Count(decided, number)


def one_slow_session(number: int, seed: int) -> tuple[Count, Count, Count]:
    """A/A with one session of 1 % of the transactions, 100 times as slow.

    How often body_us covers 0, body_pct does, and the two disagree.
    """

    def model(arm: Ints, rng: Generator) -> Session:
        slow = 100.0 if len(arm) < 500 else 1.0
        return Session(slow * lognormal(len(arm), rng), np.zeros(len(arm), dtype=np.bool_))

    us = pct = differ = 0
    for i in range(number):
        rng = np.random.default_rng((seed, i))
        parts = []
        for backend, units in enumerate((8_000, 8_000, 160)):
            design, obs = record(1, model, rng, sessions=1, units=units)
            obs["backend"] = backend
            parts.append(obs)
        effect = first(judged(design, np.concatenate(parts))).effect
        assert effect is not None
        one, other = covers(effect.body_us, 0), covers(effect.body_pct, 0)
        us, pct, differ = us + one, pct + other, differ + (one != other)
    return Count(us, number), Count(pct, number), Count(differ, number)


def stalls_called_a_cost(number: int, seed: int, instruments: int) -> Count:
    """Stalls of 5 ms in 0.5 % of one instrument's transactions, whoever is weighed with it."""
    decided = 0
    # In each arm some 40,000 transactions or more: fewer hold too few slow ones to be judged.
    layout = block_layout(instruments + 2)
    units = 40_000 // layout.count(0) * len(layout) // 4
    for found in trials(number, seed, instruments, stalling(0.005, 5_000.0), units=units):
        decided += first(found).verdict == "cost"
    return Count(decided, number)


def tails_covered(number: int, seed: int, instruments: int) -> tuple[Count, Count, Count]:
    """A/A with stalls in all arms: rate ratio, excess and total cover the truth, where judged."""

    def noise(n: int, rng: Generator) -> Floats:
        return lognormal(n, rng) + (rng.random(n) < 0.002) * 2_000.0 * rng.lognormal(0, 0.5, n)

    ratio = excess = total = known = 0
    for found in trials(number, seed, instruments, plain(noise), units=24_000):
        arm = first(found)
        assert arm.effect is not None
        assert arm.tail_rate_ratio is not None
        if arm.effect.total_us.lo == arm.effect.total_us.lo:
            known += 1
            ratio += covers(arm.tail_rate_ratio, 1.0)
            excess += covers(arm.effect.excess_us, 0.0)
            total += covers(arm.effect.total_us, 0.0)
    return Count(ratio, known), Count(excess, known), Count(total, known)


def verdicts_despite_failures(number: int, seed: int) -> Count:
    """A cost of 2 % in which 5 % fail early, called cost, gain or equivalent."""
    decided = 0
    for found in trials(number, seed, 1, failing((0, 0, 0.05), factor=1.02)):
        decided += first(found).verdict in ("cost", "gain", "equivalent")
    return Count(decided, number)


def failures_told_apart_by_chance(number: int, seed: int, spells: bool) -> Count:
    """All arms fail alike, and the test of the rates says that they differ."""
    model = failing_in_spells(0.02) if spells else failing((0.02,) * 3)
    wrong = 0
    for found in trials(number, seed, 1, model, units=1_200):
        p = first(found).p_aborted
        wrong += p is not None and p < 0.05
    return Count(wrong, number)


class Censored(NamedTuple):
    """Trials whose sessions end within stalls."""

    share: float  # mean estimate over the truth
    covered: Count  # the 95 % interval of the total holds the truth, where there is one
    harmless: Count  # called equivalent or a gain


def stalls_cut_short(number: int, seed: int, part_of_life: float) -> Censored:
    """Stalls that take a part of a session's life each: mean cost against the truth."""
    life_us = 200_000.0
    stall_us, share = part_of_life * life_us, 0.0015
    truth = share * stall_us
    values = []
    covered = known = harmless = 0
    for found in trials(
        number, seed, 1, stalling(share, stall_us), sessions=64, units=2_000, life_us=life_us
    ):
        arm = first(found)
        assert arm.effect is not None
        values.append(arm.effect.total_us.estimate)
        if arm.effect.total_us.lo == arm.effect.total_us.lo:
            known += 1
            covered += covers(arm.effect.total_us, truth)
        harmless += arm.verdict in ("equivalent", "gain")
    share_found = float(np.mean(values)) / truth
    return Censored(share_found, Count(covered, known), Count(harmless, number))


def bounds_that_hold(number: int, seed: int) -> Count:
    """`at_most_us` of an effect of 1 % is not below it."""
    held = 0
    for found in trials(number, seed, 1, plain(factors=(1, 1, 1.01)), units=2_400):
        bound = first(found).at_most_us
        held += bound is not None and bound >= 0.01 * MEAN_US
    return Count(held, number)


def margins_that_settle(number: int, seed: int) -> Count:
    """A/A trials that do find the margin they say they can settle, judged by the body alone."""
    settled = 0
    for found in trials(number, seed, 1, plain(), units=2_400):
        arm = first(found)
        assert arm.equivalence_us is not None
        assert arm.settles_pct is not None
        margin = arm.settles_pct / 100 * found.baseline.body_mean_us
        settled += -margin < arm.equivalence_us.lo and arm.equivalence_us.hi < margin
    return Count(settled, number)
