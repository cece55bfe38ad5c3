"""The two strata of a trial by runs: first runs of new sessions, and later runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.inference import NAN, Expansion
from pgtare.estimate.trial.outcomes import above, below

#: With fewer sessions of an arm, or of the base, those of several roles and databases are pooled;
#: and if there are fewer in all, they are not compared.
MIN_SESSIONS = 10


@dataclass(frozen=True)
class Units:
    """Transactions of one stratum; arrays are (N,)."""

    service_us: Floats  # of open ones the time so far
    cpu_us: Floats  # NaN if not taken
    arm: Ints
    cluster: Ints  # number of the block, or of the session
    open: Bools  # had no answer yet
    n_clusters: int

    def where(self, keep: Bools) -> Units:
        """Some of them; clusters keep their numbers."""
        columns = ("service_us", "cpu_us", "arm", "cluster", "open")
        return replace(self, **{name: getattr(self, name)[keep] for name in columns})

    def as_cpu(self) -> Units:
        """The same with processor time in the place of service time."""
        return replace(self, service_us=self.cpu_us)

    def body(self, c: float) -> Floats:
        """What each adds below c."""
        return below(self.service_us, self.open, c)

    def excess(self, c: float) -> Floats:
        """What each adds above c."""
        return above(self.service_us, self.open, c)

    def exceeds(self, c: float) -> Floats:
        """1 if it takes longer than c, else 0."""
        return (self.service_us > c).astype(np.float64)

    @cached_property
    def _members(self) -> dict[int, Ints]:
        return {int(k): np.flatnonzero(self.arm == k) for k in np.unique(self.arm)}

    def members(self, arm: int) -> Ints:
        """Where the transactions of an arm are."""
        return self._members.get(arm, np.empty(0, dtype=np.int64))

    @cached_property
    def _counts(self) -> dict[int, Floats]:
        return {}

    def counts(self, arm: int) -> Floats:
        """Transactions of an arm in each cluster (G,)."""
        if arm not in self._counts:
            found = np.bincount(self.cluster[self.members(arm)], minlength=self.n_clusters)
            self._counts[arm] = found.astype(np.float64)
        return self._counts[arm]

    def sums(self, values: Floats, arm: int) -> Floats:
        """Sums of the values (N,) of an arm in each cluster (G,)."""
        at = self.members(arm)
        return np.asarray(np.bincount(self.cluster[at], values[at], self.n_clusters))

    def mean(self, values: Floats, arm: int) -> Expansion:
        """The mean of an arm's transactions."""
        n, s = self.counts(arm), self.sums(values, arm)
        total = n.sum()
        if not total:
            return Expansion(NAN, np.full(self.n_clusters, NAN))
        mean = float(s.sum() / total)
        return Expansion(mean, (s - mean * n) / total)


@dataclass(frozen=True)
class LaterRuns:
    """Runs of sessions that have met each arm; clusters are their blocks.

    The cost is the coefficient of the arm in a least-squares regression of the arm's and the
    base's transactions with a constant for each block. One that was cut short is part of the block
    before it.
    """

    units: Units

    def cost(self, values: Floats, arm: int) -> Expansion:
        """An arm less the base, of values (N,), with the share of each block in the error."""
        units = self.units
        n, base_n = units.counts(arm), units.counts(0)
        both = (n > 0) & (base_n > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.where(both, n * base_n / (n + base_n), 0.0)
            difference = units.sums(values, arm) / n - units.sums(values, 0) / base_n
        total, blocks = weight.sum(), int(np.count_nonzero(both))
        if not total:
            return Expansion(NAN, np.full(units.n_clusters, NAN))
        difference = np.where(both, difference, 0.0)
        value = float(weight @ difference / total)
        correction = math.sqrt(blocks / (blocks - 1)) if blocks > 1 else NAN
        influence = weight * (difference - value) / total * correction
        return Expansion(value, influence)

    def blocks(self, arm: int) -> int:
        """Blocks with transactions of both the arm and the base."""
        return int(np.count_nonzero((self.units.counts(arm) > 0) & (self.units.counts(0) > 0)))


@dataclass(frozen=True)
class FirstRuns:
    """First runs of sessions that began during the trial; clusters are the sessions.

    group: (G,) number of the session's role and database. Sessions are compared within groups,
    whose weights are their shares of transactions.
    """

    units: Units
    group: Ints
    arm: Ints  # (G,) of each session

    def sessions(self, arm: int) -> int:
        """Sessions that began with an arm."""
        return int(np.count_nonzero(self.arm == arm))

    def comparable(self, arm: int) -> bool:
        """Whether enough sessions began with the arm, and with the base."""
        return min(self.sessions(arm), self.sessions(0)) >= MIN_SESSIONS

    def groups(self, arm: int) -> Ints:
        """The group of each session (G,), those with few sessions pooled.

        What is pooled and still has few sessions joins the largest group.
        """
        size = int(self.group.max(initial=-1)) + 1
        mine = np.bincount(self.group[self.arm == arm], minlength=size)
        base = np.bincount(self.group[self.arm == 0], minlength=size)
        large = np.minimum(mine, base) >= MIN_SESSIONS
        if large.all() or not large.any():
            return self.group if large.all() else np.zeros_like(self.group)
        pooled_is_large = min(mine[~large].sum(), base[~large].sum()) >= MIN_SESSIONS
        other = size if pooled_is_large else int(np.argmax(np.where(large, mine + base, -1)))
        found = np.where(large, np.arange(size), other)[self.group]
        return np.asarray(np.unique(found, return_inverse=True)[1], dtype=np.int64)

    def cost(self, values: Floats, arm: int) -> Expansion:
        """An arm less the base, of values (N,), with the share of each session in the error."""
        return self._mean(values, arm, arm) - self._mean(values, 0, arm)

    def _mean(self, values: Floats, of: int, arm: int) -> Expansion:
        units, group = self.units, self.groups(arm)
        size = int(group.max(initial=-1)) + 1
        every = np.bincount(units.cluster, minlength=units.n_clusters)
        share = np.bincount(group, every, size) / max(int(every.sum()), 1)
        n, s = units.counts(of), units.sums(values, of)
        group_n, group_s = np.bincount(group, n, size), np.bincount(group, s, size)
        sessions = np.bincount(group[self.arm == of], minlength=size)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = group_s / group_n
            correction = np.sqrt(sessions / (sessions - 1))
            influence = (share * correction / group_n)[group] * (s - means[group] * n)
        return Expansion(float(share @ means), np.where(self.arm == of, influence, 0.0))


def mixed(first: Expansion, later: Expansion, share: float) -> Expansion:
    """Both strata's estimates, the first with this share; their clusters one after the other."""
    if share == 1:
        later = nothing(len(later.influence))
    influence = np.concatenate([share * first.influence, (1 - share) * later.influence])
    return Expansion(share * first.value + (1 - share) * later.value, influence)


def nothing(clusters: int) -> Expansion:
    """Zero, without an error."""
    return Expansion(0.0, np.zeros(clusters))
