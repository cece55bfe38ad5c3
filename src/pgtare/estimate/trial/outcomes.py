"""Outcomes besides times: transactions that failed, and those that were still open at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.distributions import (
    binomial_at_least,
    binomial_at_most,
    normal_below,
    student_below,
)
from pgtare.estimate.inference import NAN
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import UNUSABLE, Observations, UnitFlag

#: Up to this many failures their distribution is computed exactly; beyond, it is normal.
_EXACT = 4096
#: A transaction that is still open counts as this many times its time so far: at a random moment
#: the age of what is under way and what it still takes have the same distribution.
AGE_TO_LENGTH = 2.0
#: If more of the runs have a failure, their rates are compared.
_MOST_RUNS = 0.3


@dataclass(frozen=True)
class Failures:
    """Transactions that ended in an error, of an arm against the base.

    explained_us: what their rates and lengths alone do to the difference of the arms' bodies.
    """

    p: float  # two-sided, of "they fail as often as the base's"; NaN without data
    rate: float
    base_rate: float
    explained_us: float

    def mixed(self, other: Failures, share: float) -> Failures:
        """With those of another stratum, which has this share; twice the smaller p of the two."""
        if math.isnan(other.p) or math.isnan(self.p):
            return self if math.isnan(other.p) else other

        def both(own: float, others: float) -> float:
            return (1 - share) * own + share * others

        return Failures(
            p=min(1.0, 2 * min(self.p, other.p)),
            rate=both(self.rate, other.rate),
            base_rate=both(self.base_rate, other.base_rate),
            explained_us=both(self.explained_us, other.explained_us),
        )


@dataclass(frozen=True)
class Unanswered:
    """Transactions still open at the end, of an arm against the base.

    imputed_us: what they are taken to add to the arm's mean more than to the base's, with each
    counted as AGE_TO_LENGTH times its time so far. NaN without data.
    """

    n: int
    p: float  # two-sided, of "one is as likely to be open as the base's"
    longest_us: float
    imputed_us: float


def rate_p(arm: Ints, both: Ints, own: int, slots: int) -> float:
    """Two-sided p-value of events that fall on an arm's slots as often as on the base's.

    arm, both: events in the arm's slots, and in those of arm and base, in each block (B,); own of
    the slots are the arm's. Under "the arm changes no event" labels are exchangeable within a
    block, so that the arm's count is hypergeometric given the block's, however events cluster in
    time or in sessions. Twice the smaller tail.
    """
    if not len(both):
        return NAN
    times = np.bincount(both, minlength=slots + 1)
    observed = int(arm.sum())
    most = np.minimum(np.arange(slots + 1), own)
    size = int(times @ most) + 1
    if size > _EXACT:
        share = own / slots
        m = np.arange(slots + 1)
        variance = float(times @ (m * share * (1 - share) * (slots - m) / max(slots - 1, 1)))
        distance = abs(observed - share * float(times @ m)) - 0.5
        if not variance > 0:
            return 1.0
        return min(1.0, 2 * normal_below(-max(distance, 0.0) / math.sqrt(variance)))
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for events in np.flatnonzero(times[1:]) + 1:
        chance = _hypergeometric(int(events), own, slots)
        spectrum *= np.fft.rfft(chance, size) ** times[events]
    chances = np.clip(np.fft.irfft(spectrum, size), 0.0, None) if size > 1 else np.ones(1)
    tails = float(chances[: observed + 1].sum()), float(chances[observed:].sum())
    return min(1.0, 2 * min(tails))


@cache
def _hypergeometric(events: int, own: int, slots: int) -> Floats:
    """Chance of k of a block's events in the arm's slots, k from 0 to min(events, own)."""
    return np.array(
        [
            math.comb(own, k) * math.comb(slots - own, events - k) / math.comb(slots, events)
            if events - k >= 0
            else 0.0
            for k in range(min(events, own) + 1)
        ]
    )


@dataclass(frozen=True)
class FailedRuns:
    """Failed transactions in the runs of whole blocks, or in first runs: R runs, N transactions.

    A first run is a block of its own, as its arm is drawn by itself. layout: the arms of a block's
    runs.
    """

    block: Ints  # (R,)
    arm: Ints  # (R,)
    failed: Floats  # (R,) transactions that failed
    size: Floats  # (R,) transactions
    service_us: Floats  # (N,)
    aborted: Bools  # (N,)
    arm_of_unit: Ints  # (N,)
    layout: tuple[int, ...]

    def p(self, arm: int) -> float:
        """Two-sided p-value of "the arm's transactions fail as often as the base's".

        What is counted are runs with a failure: failures come in spells, and it is runs whose order
        was drawn. If many runs have some, it is Student's t of the blocks' rates, or of the first
        runs' own.
        """
        pair = (self.arm == arm) | (self.arm == 0)
        block = np.unique(self.block[pair], return_inverse=True)[1]
        mine, hit = self.arm[pair] == arm, self.failed[pair] > 0
        if not len(block):
            return NAN
        if hit.mean() > _MOST_RUNS:
            return self._p_of_rates(block, mine, self.failed[pair] / self.size[pair])
        own, slots = self.layout.count(arm), self.layout.count(arm) + self.layout.count(0)
        both = np.bincount(block, hit).astype(np.int64)
        return rate_p(np.bincount(block, hit & mine).astype(np.int64), both, own, slots)

    def _p_of_rates(self, block: Ints, mine: Bools, rate: Floats) -> float:
        n = int(block.max()) + 1
        if n == len(block):
            return _welch(rate[mine], rate[~mine])
        with np.errstate(divide="ignore", invalid="ignore"):
            of_arm = np.bincount(block, np.where(mine, rate, 0), n) / np.bincount(block, mine, n)
            of_base = np.bincount(block, np.where(mine, 0, rate), n) / np.bincount(block, ~mine, n)
        difference = of_arm - of_base
        difference = difference[np.isfinite(difference)]
        if len(difference) < 2 or not difference.std() > 0:
            return 1.0
        t = difference.mean() / (difference.std(ddof=1) / math.sqrt(len(difference)))
        return 2 * student_below(len(difference) - 1, -abs(t))

    def failures(self, arm: int, c: float) -> Failures:
        """Failed transactions of an arm and of the base; c: where their times are cut."""
        mine, base = self.arm_of_unit == arm, self.arm_of_unit == 0
        rate, base_rate = _share(self.aborted[mine]), _share(self.aborted[base])
        both = mine | base
        return Failures(
            p=self.p(arm),
            rate=rate,
            base_rate=base_rate,
            explained_us=explained(
                rate - base_rate, np.minimum(self.service_us[both], c), self.aborted[both]
            ),
        )


def _welch(one: Floats, other: Floats) -> float:
    """Two-sided p-value of "both have one mean"."""
    if min(len(one), len(other)) < 2:
        return 1.0
    a, b = one.var(ddof=1) / len(one), other.var(ddof=1) / len(other)
    if not a + b > 0:
        return 1.0 if one.mean() == other.mean() else 0.0
    df = (a + b) ** 2 / (a**2 / (len(one) - 1) + b**2 / (len(other) - 1))
    return 2 * student_below(float(df), -abs(float(one.mean() - other.mean())) / math.sqrt(a + b))


def explained(difference: float, body: Floats, failed: Bools) -> float:
    """What a difference between rates of failure does to a mean, by how long either kind takes."""
    if not failed.any() or failed.all():
        return 0.0
    return difference * float(body[failed].mean() - body[~failed].mean())


def _share(failed: Bools) -> float:
    return float(failed.mean()) if failed.size else NAN


def below(service_us: Floats, unanswered: Bools, c: float) -> Floats:
    """What each transaction is taken to add below c (N,); of open ones the time so far is given.

    What was under way belongs to the mean as well, as the transaction at which a session stops is a
    stopping time (Wald's identity). With X the length and a the age at a random moment,
    h(a) + a h'(a) has the mean that h(X) has, for any h (renewal theory); here h(x) = min(x, c). It
    is not min(2a, c), whose mean is too small.
    """
    found = np.minimum(service_us, c)
    young = unanswered & (service_us < c)
    return np.asarray(np.where(young, AGE_TO_LENGTH * service_us, found), dtype=np.float64)


def above(service_us: Floats, unanswered: Bools, c: float) -> Floats:
    """The same above c; the two add up to AGE_TO_LENGTH ages."""
    whole = np.where(unanswered, AGE_TO_LENGTH * service_us, service_us)
    return np.asarray(whole - below(service_us, unanswered, c), dtype=np.float64)


def unanswered(
    rows: Observations, comparable: Bools, layout: Sequence[int], used: Ints
) -> list[Unanswered]:
    """Open transactions of every arm against the base's.

    rows: (O,) open units; all of them are counted. comparable: (O,) those that drew their arm as
    the units that entered did, each arm as often as `layout` holds it. used: (K,) units that
    entered.
    """
    n_arms = len(used)
    known = rows["arm"] < n_arms
    rows, comparable = rows[known], comparable[known]
    arm = rows["arm"].astype(np.int64)
    service_us = rows["service_ns"] / 1000.0
    n = np.bincount(arm, minlength=n_arms)
    counts = np.bincount(arm[comparable], minlength=n_arms)
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = np.bincount(arm[comparable], service_us[comparable], n_arms)
        added = AGE_TO_LENGTH * lengths / used
    # a layout of slices may hold MIXED, which is no arm
    slots = [layout.count(k) for k in range(n_arms)]
    return [
        Unanswered(
            n=int(n[k]),
            p=_binomial_p(int(counts[k]), int(counts[k] + counts[0]), slots[k], slots[0]),
            longest_us=float(service_us[arm == k].max(initial=0.0)),
            imputed_us=float(added[k] - added[0]),
        )
        for k in range(n_arms)
    ]


def unanswered_in_runs(obs: Observations, design: Design, used: Ints) -> list[Unanswered]:
    """The same of a trial by runs."""
    rows = obs[obs["flags"] & UnitFlag.OPEN != 0]
    comparable = np.asarray(rows["flags"] & UNUSABLE == 0, dtype=np.bool_)
    return unanswered(rows, comparable, design.block, used)


def _binomial_p(hits: int, trials: int, own: int, base: int) -> float:
    """Two-sided: a session ends in one of its arm's or of the base's slots as they are many."""
    share = own / (own + base)
    tails = binomial_at_most(hits, trials, share), binomial_at_least(hits, trials, share)
    return min(1.0, 2 * min(tails))
