"""Outcomes besides times: transactions that failed, and those that were still open at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.inference import NAN, Expansion
from pgtare.estimate.trial.blocks import UNUSABLE, Blocks
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import NO_SLICE, Observations, UnitFlag

#: Up to this many failures their distribution is computed exactly; beyond, it is normal.
_EXACT = 4096
#: A transaction that is still open counts as this many times its time so far: at a random moment
#: the age of what is under way and what it still takes have the same distribution.
AGE_TO_LENGTH = 2.0


@dataclass(frozen=True)
class Failures:
    """Transactions that ended in an error, of an arm against the base.

    explained_us: what their rates and lengths alone do to the difference of the arms' bodies.
    """

    n: int
    p: float  # two-sided, of "they fail as often as the base's"; NaN without data
    rate: float
    base_rate: float
    explained_us: float


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
        return float(min(1.0, 2 * scipy.special.ndtr(-max(distance, 0.0) / math.sqrt(variance))))
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


def failures_p(failed: Bools, own: list[int], base: list[int]) -> float:
    """`rate_p` of failures (B, L); own, base: the columns of the arm and of the base."""
    in_arm = failed[:, own].sum(axis=1)
    return rate_p(in_arm, in_arm + failed[:, base].sum(axis=1), len(own), len(own) + len(base))


def failures(blocks: Blocks, body: Floats, arm: int) -> Failures:
    """Failed transactions of an arm and of the base; body: (B, L)."""
    own, base = blocks.slots(arm), blocks.slots(0)
    in_arm, in_base = blocks.aborted[:, own], blocks.aborted[:, base]
    both = own + base
    return Failures(
        n=int(in_arm.sum()),
        p=failures_p(blocks.aborted, own, base),
        rate=_share(in_arm),
        base_rate=_share(in_base),
        explained_us=explained(
            _share(in_arm) - _share(in_base), body[:, both].ravel(), blocks.aborted[:, both].ravel()
        ),
    )


def explained(difference: float, body: Floats, failed: Bools) -> float:
    """What a difference between rates of failure does to a mean, by how long either kind takes."""
    if not failed.any() or failed.all():
        return 0.0
    return difference * float(body[failed].mean() - body[~failed].mean())


def _share(failed: Bools) -> float:
    return float(failed.mean()) if failed.size else NAN


@dataclass(frozen=True)
class Unfinished:
    """Units of blocks that their session had begun when the trial or the session ended (M,).

    Whole blocks alone are a selection: a block is the more likely to be under way at the end the
    longer it takes. What was under way belongs to the mean as well, as the unit at which a session
    stops is a stopping time (Wald's identity).
    """

    arm: Ints
    backend: Ints
    service_us: Floats  # of open units the time so far
    open: Bools  # had no answer yet

    def body(self, c: float) -> Floats:
        """What each unit is taken to add below c (M,).

        With X the length and a the age at a random moment, h(a) + a h'(a) has the mean that h(X)
        has, for any h (renewal theory); here h(x) = min(x, c). It is not min(2a, c), whose mean is
        too small.
        """
        age = self.service_us
        imputed = np.where(age < c, AGE_TO_LENGTH * age, c)
        return np.where(self.open, imputed, np.minimum(age, c))

    def excess(self, c: float) -> Floats:
        """The same above c; the two add up to AGE_TO_LENGTH ages."""
        age = self.service_us
        return np.where(self.open, AGE_TO_LENGTH * age, age) - self.body(c)

    def mean_shift(self, blocks: Blocks, outcome: Floats, values: Floats, arm: int) -> Expansion:
        """What these units add to the mean of an arm over whole blocks.

        values: (B, L) of the whole blocks; outcome: (M,) the same of these units. They are compared
        with the arm's mean at their session's level, as arms are not balanced in them. The error is
        that of the sessions that have such units, each at its last cluster of blocks.
        """
        influence = np.zeros(blocks.n_clusters)
        mine = self.arm == arm
        if not blocks.n or not mine.any():
            return Expansion(0.0, influence)
        whole = values[:, blocks.slots(arm)]
        n = whole.size + int(np.count_nonzero(mine))
        last = np.searchsorted(blocks.backend, self.backend[mine], side="right") - 1
        level = float(whole.mean()) + self._levels(blocks, values)[mine]
        shares = (outcome[mine] - level) / n
        np.add.at(influence, blocks.cluster[np.maximum(last, 0)], shares)
        return Expansion(float(shares.sum()), influence)

    def _levels(self, blocks: Blocks, values: Floats) -> Floats:
        """By how much each unit's session (M,) is above the mean, in its whole blocks."""
        sessions, at = np.unique(blocks.backend, return_inverse=True)
        above = values.mean(axis=1) - values.mean()
        levels = np.bincount(at, above) / np.bincount(at)
        place = np.minimum(np.searchsorted(sessions, self.backend), len(sessions) - 1)
        return np.where(sessions[place] == self.backend, levels[place], 0.0)


def unfinished(obs: Observations, design: Design) -> Unfinished:
    """The units of every session's last block, if that is not whole and no unit is doubtful.

    None in mixed slices, whose ends cut blocks short all the time.
    """
    in_block = obs[(obs["flags"] & UnitFlag.UNBLOCKED == 0) & (obs["slice"] == NO_SLICE)]
    backends, at = np.unique(in_block["backend"], return_inverse=True)
    newest = np.zeros(len(backends), dtype=np.int64)
    np.maximum.at(newest, at, in_block["block"].astype(np.int64))
    units = in_block[in_block["block"] == newest[at]] if len(in_block) else in_block
    at = np.searchsorted(backends, units["backend"])
    open_unit = units["flags"] & UnitFlag.OPEN != 0
    count = np.bincount(at[~open_unit], minlength=len(backends))
    doubtful = np.bincount(at[units["flags"] & UNUSABLE != 0], minlength=len(backends)) > 0
    keep = (count < len(design.block))[at] & ~doubtful[at] & (units["arm"] < len(design.arms))
    units, open_unit = units[keep], open_unit[keep]
    return Unfinished(
        arm=units["arm"].astype(np.int64),
        backend=units["backend"].astype(np.int64),
        service_us=units["service_ns"] / 1000.0,
        open=np.asarray(open_unit, dtype=np.bool_),
    )


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
    slots = np.bincount(layout, minlength=n_arms)
    return [
        Unanswered(
            n=int(n[k]),
            p=_binomial_p(int(counts[k]), int(counts[k] + counts[0]), slots[k], slots[0]),
            longest_us=float(service_us[arm == k].max(initial=0.0)),
            imputed_us=float(added[k] - added[0]),
        )
        for k in range(n_arms)
    ]


def unanswered_in_blocks(obs: Observations, design: Design, used: Ints) -> list[Unanswered]:
    """The same if the estimates are of blocks of transactions.

    Not compared are units in runs, half of which are the base's, and those in slices of one arm.
    """
    rows = obs[obs["flags"] & UnitFlag.OPEN != 0]
    comparable = np.asarray(rows["flags"] & UnitFlag.RUN == 0, dtype=np.bool_)
    return unanswered(rows, comparable & _drew_alone(rows), design.block, used)


def _drew_alone(rows: Observations) -> Bools:
    """Which units (N,) drew their arm, and do not follow a slice of one arm."""
    alone = (rows["slice"] == NO_SLICE) | (rows["flags"] & UnitFlag.MIXED != 0)
    return np.asarray(alone, dtype=np.bool_)


def _binomial_p(hits: int, trials: int, own: int, base: int) -> float:
    """Two-sided: a session ends in one of its arm's or of the base's slots as they are many."""
    share = own / (own + base)
    below = float(scipy.special.bdtr(hits, trials, share))
    above = float(scipy.special.bdtrc(hits - 1, trials, share)) if hits else 1.0
    return min(1.0, 2 * min(below, above))
