"""Selection of usable units: the observations of a trial as a matrix of whole blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import NO_SLICE, Observations, UnitFlag, finished

#: In such a unit the arm was not, or not surely, in force.
UNUSABLE = UnitFlag.SWITCH_FAILED | UnitFlag.APP_CHANGED | UnitFlag.RELOADED

#: Why a block was discarded; one that qualifies twice is counted under the first.
REASONS = ("switch_failed", "app_changed", "reloaded", "incomplete")

#: Blocks in a cluster of the sandwich variance.
RUN_LENGTH = 16
#: Clusters below which shorter runs are taken: with few of them the variance is hardly estimated.
MIN_CLUSTERS = 32


@dataclass(frozen=True)
class Blocks:
    """Whole blocks of a trial, one a row, in the order of (backend, block).

    Columns are the slots of a block sorted by arm, not by time: column j of every matrix belongs
    to arm `layout[j]`, the base first. What time order is for, the arm of the preceding units, is
    in `previous`.
    """

    service_us: Floats  # (B, L) service time
    cpu_us: Floats  # (B, L) CPU time of the cycle, NaN if not taken
    previous: Ints  # (2, B, L) arm of the unit before, and of the one before that; -1 unknown
    backend: Ints  # (B,)
    aborted: Bools  # (B, L) the transaction ended in an error
    cluster: Ints  # (B,) ascending cluster number from 0: a run of consecutive blocks of a backend
    layout: tuple[int, ...]  # (L,)
    n_arms: int

    @property
    def n(self) -> int:
        """The number of blocks."""
        return len(self.backend)

    @property
    def n_clusters(self) -> int:
        """The number of clusters."""
        return int(self.cluster[-1]) + 1 if self.n else 0

    @property
    def cluster_starts(self) -> Ints:
        """Index of each cluster's first block, for `np.add.reduceat`."""
        return np.flatnonzero(np.diff(self.cluster, prepend=-1))

    def slots(self, arm: int) -> list[int]:
        """The columns of an arm."""
        return [column for column, held in enumerate(self.layout) if held == arm]

    def columns(self, arms: Sequence[int]) -> list[int]:
        """The columns of several arms."""
        return [column for column, held in enumerate(self.layout) if held in arms]

    def arm_mean(self, values: Floats, arm: int) -> Floats:
        """Mean of an arm's slots in each block; values (B, L), result (B,)."""
        columns = self.slots(arm)
        if len(columns) == 1:
            return values[:, columns[0]]
        return np.asarray(values[:, columns].mean(axis=1), dtype=np.float64)

    def difference(self, values: Floats, arm: int) -> Floats:
        """D_b: arm less base in each block; values (B, L), result (B,)."""
        return self.arm_mean(values, arm) - self.arm_mean(values, 0)

    def where(self, keep: Bools) -> Blocks:
        """The blocks that a mask (B,) keeps, their clusters numbered anew."""
        backend = self.backend[keep]
        return Blocks(
            service_us=self.service_us[keep],
            cpu_us=self.cpu_us[keep],
            previous=self.previous[:, keep],
            backend=backend,
            aborted=self.aborted[keep],
            cluster=runs(backend),
            layout=self.layout,
            n_arms=self.n_arms,
        )


@dataclass(frozen=True)
class Selection:
    """The usable blocks and an account of what was left out."""

    blocks: Blocks
    used: Ints  # (K,) units of each arm that entered
    excluded: Ints  # (K,) units of each arm left out, first units among them, those in runs not
    discarded: dict[str, int]  # blocks discarded, by reason
    foreign: int  # units of an arm that the design does not know

    @property
    def blocks_discarded(self) -> int:
        """Blocks discarded for any reason."""
        return sum(self.discarded.values())


def run_length(blocks: int) -> int:
    """Blocks in a cluster: RUN_LENGTH, fewer if that would leave under MIN_CLUSTERS."""
    return max(1, min(RUN_LENGTH, blocks // MIN_CLUSTERS))


def runs(backend: Ints) -> Ints:
    """Cluster number of each block (B,): runs of consecutive blocks of a backend.

    A cluster ends with its backend, as backends draw their arms independently.
    """
    if len(backend) == 0:
        return np.empty(0, dtype=np.int64)
    starts = np.flatnonzero(np.diff(backend, prepend=backend[0] - 1))
    within = np.arange(len(backend)) - np.repeat(starts, np.diff(np.append(starts, len(backend))))
    return np.cumsum(within % run_length(len(backend)) == 0) - 1


def by_arm(
    arm: Ints,
    service_us: Floats,
    cpu_us: Floats,
    previous: Ints,
    backend: Ints,
    block: Sequence[int],
    aborted: Bools | None = None,
) -> Blocks:
    """Blocks from matrices (B, L) in time order, each row of `arm` a permutation of `block`.

    previous: (2, B, L). aborted: None if no transaction ended in an error.
    """
    if aborted is None:
        aborted = np.zeros(arm.shape, dtype=np.bool_)
    order = np.argsort(arm, axis=1, kind="stable")
    layout = tuple(sorted(block))
    return Blocks(
        service_us=np.take_along_axis(service_us, order, axis=1),
        cpu_us=np.take_along_axis(cpu_us, order, axis=1),
        previous=np.take_along_axis(previous, order[np.newaxis], axis=2),
        backend=backend,
        aborted=np.take_along_axis(aborted, order, axis=1),
        cluster=runs(backend),
        layout=layout,
        n_arms=len(set(layout)),
    )


def select(obs: Observations, design: Design) -> Selection:
    """Usable whole blocks of a trial.

    obs: observations of dtype OBSERVATION in any order; times in ns. A backend's first units are
    thrown away, but still are the previous arm of what follows; so are those of slices in which all
    sessions follow one arm. A block is discarded if a unit
    of it is missing or was not finished, and if the arm was not surely in force in one of its
    units.
    """
    obs = finished(obs)
    n_arms, size = len(design.arms), len(design.block)
    key = (obs["backend"].astype(np.int64) << 32) | obs["unit"]
    order = np.argsort(key, kind="stable")
    key = key[order]
    flags = obs["flags"][order]
    arm = obs["arm"][order].astype(np.int64)

    previous = previous_arms(key, arm, (flags & UNUSABLE == 0) & (arm < n_arms))

    blocked = flags & (UnitFlag.UNBLOCKED | UnitFlag.OPEN) == 0
    blocked &= (obs["slice"][order] == NO_SLICE) | (flags & UnitFlag.MIXED != 0)
    kept = np.flatnonzero(blocked)
    group = (obs["backend"][order[kept]].astype(np.int64) << 32) | obs["block"][order[kept]]
    starts = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1]))[: len(group)])
    complete, discarded = _whole(starts, arm[kept], flags[kept], design.block)

    rows = kept[starts[complete][:, np.newaxis] + np.arange(size)]  # (B, L), in time order
    source = order[rows]
    cpu_us = obs["cpu_ns"][source] / 1000.0
    cpu_us[cpu_us < 0] = np.nan
    known = arm[(arm < n_arms) & (flags & UnitFlag.RUN == 0)]
    used = np.bincount(arm[rows].ravel(), minlength=n_arms)
    blocks = by_arm(
        arm=arm[rows],
        service_us=obs["service_ns"][source] / 1000.0,
        cpu_us=cpu_us,
        previous=previous[:, rows],
        backend=obs["backend"][source[:, 0]].astype(np.int64),
        block=design.block,
        aborted=np.asarray(obs["flags"][source] & UnitFlag.ABORTED != 0, dtype=np.bool_),
    )
    return Selection(
        blocks=blocks,
        used=used,
        excluded=np.bincount(known, minlength=n_arms) - used,
        discarded=discarded,
        foreign=int(np.count_nonzero(arm >= n_arms)),
    )


def previous_arms(key: Ints, arm: Ints, sure: Bools) -> Ints:
    """Arm of the unit before and of the one before that (2, N), -1 if not surely known.

    The key of a backend's next unit is one larger, so that a lost unit and a change of backend
    both show as a gap. The second is not looked for across a gap: it is of no use without the
    first.
    """
    previous = np.full((2, len(key)), -1, dtype=np.int64)
    for lag in (1, 2):
        known = (key[lag:] - key[:-lag] == lag) & sure[:-lag]
        previous[lag - 1, lag:][known] = arm[:-lag][known]
    return previous


def _whole(
    starts: Ints, arm: Ints, flags: npt.NDArray[np.uint32], block: Sequence[int]
) -> tuple[Bools, dict[str, int]]:
    """Which groups of rows are usable whole blocks, and the count of the others by reason.

    starts: index of each group's first row; arm, flags: of all rows.
    """
    size = len(block)
    if len(starts) == 0:
        return np.zeros(0, dtype=np.bool_), dict.fromkeys(REASONS, 0)
    whole = np.diff(np.append(starts, len(arm))) == size
    arms = np.sort(arm[starts[whole][:, np.newaxis] + np.arange(size)], axis=1)
    whole[whole] = (arms == np.sort(block)).all(axis=1)
    union = np.bitwise_or.reduceat(flags, starts)
    reason = np.select(
        [
            union & UnitFlag.SWITCH_FAILED != 0,
            union & UnitFlag.APP_CHANGED != 0,
            union & UnitFlag.RELOADED != 0,
            ~whole,
        ],
        range(len(REASONS)),
        default=len(REASONS),
    )
    counts = np.bincount(reason, minlength=len(REASONS) + 1)
    discarded = {name: int(counts[i]) for i, name in enumerate(REASONS)}
    return reason == len(REASONS), discarded
