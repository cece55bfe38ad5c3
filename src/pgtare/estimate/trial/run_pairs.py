"""Effects that last: what an arm costs in runs of transactions, compared with the base's runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.inference import Estimate, Expansion, Reference, effect_factor
from pgtare.estimate.trial.blocks import UNUSABLE
from pgtare.estimate.trial.observations import Observations, UnitFlag, finished

#: Units at the beginning of each run that are not compared: what came before may still last.
SETTLING = 12
#: With fewer pairs there is an estimate, but no interval.
MIN_PAIRS = 20


@dataclass(frozen=True)
class RunPairs:
    """Whole pairs of runs: P pairs, and N units that count, those after the first SETTLING."""

    arm: Ints  # (P,) the arm that is compared with the base
    backend: Ints  # (P,) ascending
    late: Ints  # (P,) units that count in each of the two runs
    pair: Ints  # (N,) the pair of each unit
    treated: Bools  # (N,) whether the unit is in the run of the arm
    service_us: Floats  # (N,)
    discarded: int  # pairs that were cut short, or in which an arm was not surely in force

    def differences(self, c: float) -> Floats:
        """Arm less base in each pair (P,), of the mean of min(x, c)."""
        body = np.minimum(self.service_us, c)
        signed = np.where(self.treated, body, -body)
        return np.asarray(np.bincount(self.pair, signed, len(self.arm)) / self.late)


def select_pairs(obs: Observations, n_arms: int) -> RunPairs:
    """The whole pairs of runs of a trial; obs in any order, times in ns.

    A pair is whole if each of its runs has as many units as the other, numbered without a gap.
    """
    units = finished(obs)
    units = units[units["flags"] & UnitFlag.RUN != 0]
    units = units[np.lexsort((units["position"], units["block"], units["backend"]))]
    key = (units["backend"].astype(np.int64) << 32) | units["block"]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    sizes = np.diff(np.append(starts, len(units)))
    arm = units["arm"].astype(np.int64)
    number = np.arange(len(units)) - np.repeat(starts, sizes)
    sound = (units["position"] == number) & (units["flags"] & UNUSABLE == 0)
    sound &= (arm == np.repeat(arm[starts], sizes)) & (arm < n_arms)
    whole = np.logical_and.reduceat(sound, starts) if len(starts) else np.zeros(0, dtype=np.bool_)

    run = key[starts]
    together = np.flatnonzero((run[:-1] % 2 == 0) & (np.diff(run) == 1))  # of the runs, the first
    first, second = arm[starts[together]], arm[starts[together + 1]]
    good = whole[together] & whole[together + 1] & (sizes[together] == sizes[together + 1])
    good &= ((first == 0) != (second == 0)) & (sizes[together] > SETTLING)
    kept = together[good]

    pair_of_run = np.full(len(starts), -1)
    pair_of_run[kept] = pair_of_run[kept + 1] = np.arange(len(kept))
    pair = np.repeat(pair_of_run, sizes)
    counted = (pair >= 0) & (number >= SETTLING)
    return RunPairs(
        arm=np.maximum(first, second)[good],
        backend=run[kept] >> 32,
        late=sizes[kept] - SETTLING,
        pair=pair[counted],
        treated=np.asarray(arm[counted] != 0, dtype=np.bool_),
        service_us=units["service_ns"][counted] / 1000.0,
        discarded=len(np.unique(run >> 1)) - len(kept),
    )


@dataclass(frozen=True)
class RunEffect:
    """What an arm costs by runs, and what of it the headline lacks; all of the body, in µs."""

    n: int  # pairs
    value: float
    se: float
    reference: Reference

    def interval(self, alpha: float = 0.05) -> Estimate:
        """The cost when the arm is left on, by runs."""
        return self.reference.interval(self.value, self.se, alpha)

    def against(self, margin: Expansion, alpha: float) -> Estimate:
        """The same plus a margin, with the margin's own error; runs and blocks share no units."""
        return self.reference.interval(
            self.value + margin.value, math.hypot(self.se, margin.se), alpha
        )

    def long_carry_over(self, body: Expansion, within: Reference, alpha: float = 0.05) -> Estimate:
        """Cost by runs less the headline: the part that lasts longer than the next transaction.

        body: the headline. within: its reference. Their errors are independent, as no unit is in
        both; degrees of freedom by Welch and Satterthwaite.
        """
        variances = np.array([self.se, body.se]) ** 2
        if not (np.isfinite(variances).all() and variances.sum() > 0):
            return Estimate(self.value - body.value, math.nan, math.nan, math.nan)
        dfs = np.array([self.reference.df, within.df])
        df = variances.sum() ** 2 / float((variances**2 / np.maximum(dfs, 1)).sum())
        reference = Reference(within.blocks, int(df) if dfs.min() > 0 else 0, within.peeked)
        return reference.interval(self.value - body.value, math.sqrt(variances.sum()), alpha)

    def factor(self, margin: float) -> float:
        """By what factor the trial must lengthen for runs to show that the cost is inside."""
        return effect_factor(self.interval(), margin, 1, self.reference)


def run_effect(pairs: RunPairs, c: float, arm: int, blocks: int, *, peeked: bool) -> RunEffect:
    """The mean difference of an arm's pairs, weighted by the units that count in each.

    The order within each pair is random, so that the noise of one pair is uncorrelated with that
    of any other, whatever drifts. The variance is CR2 with pairs as clusters (Bell and McCaffrey
    2002); the degrees of freedom are Satterthwaite's for sessions that vary differently, so that a
    session whose few pairs dominate counts for no more than it has. blocks: of the trial, by which
    the confidence sequence of a trial that was ended by looking counts its time.
    """
    own = pairs.arm == arm
    d, weight, backend = pairs.differences(c)[own], pairs.late[own], pairs.backend[own]
    if len(d) == 0:
        return RunEffect(0, math.nan, math.nan, Reference(blocks, 0, peeked))
    share = weight / weight.sum()
    value = float(share @ d)
    if len(d) < MIN_PAIRS:
        return RunEffect(len(d), value, math.nan, Reference(blocks, 0, peeked))
    squares = (share * (d - value)) ** 2 / (1 - share)
    session = np.unique(backend, return_inverse=True)[1]
    by_session = np.bincount(session, squares)
    variance = float(by_session.sum())
    spread = float((by_session**2 / np.bincount(session)).sum())
    df = min(len(d) - 1, int(variance**2 / spread)) if spread > 0 else 0
    return RunEffect(len(d), value, math.sqrt(variance), Reference(blocks, df, peeked))
