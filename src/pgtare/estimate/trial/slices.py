"""Trials in slices: the usable units of blocks of slices, and means over them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.inference import Expansion, Reference
from pgtare.estimate.trial.design import MIXED, Design, slice_ends, slice_order
from pgtare.estimate.trial.observations import (
    NO_SLICE,
    UNUSABLE,
    Observations,
    UnitFlag,
    finished,
)

#: Units of each session at the beginning of a slice that are left out, as in runs: what came before
#: still lasts, and what the arm needs is not warm yet.
DROPPED = 8
#: No unit is taken that starts so late in its slice that one in a hundred would outlast it.
LATE_QUANTILE = 0.99


@dataclass(frozen=True)
class SliceUnits:
    """Usable units, by (backend, unit); arrays are (N,) unless it is said."""

    service_us: Floats
    cpu_us: Floats  # NaN if not taken
    kind: Ints  # of the slice: an arm, or MIXED
    arm: Ints
    backend: Ints  # ordinal among the sessions that are left, from 0
    slice: Ints
    block: Ints  # ordinal among the blocks of slices that are left, from 0
    aborted: Bools  # the transaction ended in an error
    weight: Floats  # how many units of its session's part of the slice it stands for

    @property
    def n_blocks(self) -> int:
        """Blocks of slices."""
        return int(self.block.max()) + 1 if len(self.block) else 0

    @property
    def n_sessions(self) -> int:
        """Sessions with units in every kind of slice."""
        return int(self.backend.max()) + 1 if len(self.backend) else 0

    def where(self, keep: Bools) -> SliceUnits:
        """The units that a mask keeps, their sessions and blocks numbered anew."""
        kept = {field.name: getattr(self, field.name)[keep] for field in fields(self)}
        kept |= {name: _renumbered(kept[name]) for name in ("backend", "block")}
        return SliceUnits(**kept)


@dataclass(frozen=True)
class SliceSelection:
    """The usable units and an account of what was left out."""

    units: SliceUnits
    used: Ints  # (K,) units of each arm that entered
    excluded: Ints  # (K,) units of each arm left out
    blocks_discarded: int  # blocks of slices without a usable unit, or cut short
    straddled_pct: float  # units answered after the end of their slice, of the arm with most
    open: Observations  # (O,) units that were not seen to their end
    open_in_whole: Bools  # (O,) in time for their slice, in a block of slices that was over


def select_slices(obs: Observations, design: Design) -> SliceSelection:
    """Usable units of the whole blocks of slices of a trial.

    obs: observations of dtype OBSERVATION in any order; times in ns. Units are taken by when they
    start, never by how long they take, so that slow ones are not left out more often: what starts
    within the guard after a switch is not taken, nor what starts so late that it may well outlast
    the slice, nor a session's first DROPPED. A unit
    that outlasts its slice all the same is kept, and counted in straddled_pct. Left out are
    sessions without units in every kind of slice, and the last block of slices, which the end cut
    short. A block that lacks a kind is kept: it is when all are slow that a slice has no unit to
    give.
    """
    assert design.slices is not None
    left_open = obs[obs["flags"] & UnitFlag.OPEN != 0]
    obs = finished(obs)
    n_arms = len(design.arms)
    key = (obs["backend"].astype(np.int64) << 32) | obs["unit"]
    order = np.argsort(key, kind="stable")
    rows = obs[order]
    arm = rows["arm"].astype(np.int64)
    known = arm < n_arms
    sure = (rows["flags"] & (UNUSABLE | UnitFlag.OPEN) == 0) & known & (rows["slice"] != NO_SLICE)
    number = np.where(sure, rows["slice"], 0).astype(np.int64)
    kinds, begin_ns, end_ns = _schedule(design, number)
    kind = kinds[number]
    service_ns = rows["service_ns"] + rows["client_ns"].clip(min=0)

    in_window = rows["start_ns"] >= begin_ns[number] + 1_000 * design.slices.guard_us
    late_ns = _late_ns(design, service_ns[sure])
    in_window &= rows["start_ns"] <= end_ns[number] - late_ns
    usable = sure & in_window & ((kind == MIXED) | (arm == kind))
    taken = usable & (rows["position"] >= DROPPED)

    cpu_us = rows["cpu_ns"] / 1000.0
    cpu_us[cpu_us < 0] = np.nan
    straddled = rows["flags"] & UnitFlag.STRADDLED != 0
    units = SliceUnits(
        service_us=rows["service_ns"] / 1000.0,
        cpu_us=cpu_us,
        kind=kind,
        arm=arm,
        backend=rows["backend"].astype(np.int64),
        slice=number,
        block=number // len(design.slices.kinds),
        aborted=np.asarray(rows["flags"] & UnitFlag.ABORTED != 0, dtype=np.bool_),
        weight=_stands_for(rows["backend"].astype(np.int64) << 32 | number, usable, taken),
    )
    ended = rows["start_ns"].max(initial=0)
    block_end = end_ns[(units.block + 1) * len(design.slices.kinds) - 1]
    units = _comparable(units.where(taken & (block_end <= ended)), design)
    used = np.bincount(units.arm, minlength=n_arms)
    seen = len(np.unique(number[sure] // len(design.slices.kinds)))
    return SliceSelection(
        units=units,
        used=used,
        excluded=np.bincount(arm[known], minlength=n_arms) - used,
        blocks_discarded=seen - units.n_blocks,
        straddled_pct=_largest_share(straddled[sure], arm[sure], n_arms),
        open=left_open,
        open_in_whole=_in_whole_blocks(left_open, design, late_ns),
    )


def _stands_for(part: Ints, usable: Bools, taken: Bools) -> Floats:
    """How many usable units each taken one stands for (N,).

    A slow slice has few units, so that the first DROPPED are more of it: what is left is weighed as
    if none had been.
    """
    number = np.unique(part, return_inverse=True)[1]
    kept = np.bincount(number, taken)
    return np.asarray((np.bincount(number, usable) / np.maximum(kept, 1))[number])


def _in_whole_blocks(left_open: Observations, design: Design, late_ns: float) -> Bools:
    """Which open units (O,) began in time for their slice, in a block that ended before they did.

    Of the block that the end of the trial cuts short all sessions leave units of one arm.
    """
    assert design.slices is not None
    known = left_open["slice"] != NO_SLICE
    number = np.where(known, left_open["slice"], 0).astype(np.int64)
    _, _, end_ns = _schedule(design, number)
    block_end = end_ns[(number // len(design.slices.kinds) + 1) * len(design.slices.kinds) - 1]
    until = left_open["start_ns"] + left_open["service_ns"] + left_open["client_ns"]
    in_time = left_open["start_ns"] <= end_ns[number] - late_ns
    return np.asarray(known & in_time & (block_end <= until), dtype=np.bool_)


def _largest_share(hit: Bools, arm: Ints, n_arms: int) -> float:
    """Hits in percent of an arm's units, of the arm with the largest share; 0 without units."""
    hits = np.bincount(arm[hit], minlength=n_arms)
    return 100 * float((hits / np.maximum(np.bincount(arm, minlength=n_arms), 1)).max())


def _schedule(design: Design, number: Ints) -> tuple[Ints, Ints, Ints]:
    """Kind, begin and end (ns since the trial began) of every slice of the blocks there are."""
    assert design.slices is not None
    blocks = int(number.max(initial=0)) // len(design.slices.kinds) + 1
    kinds = np.array([k for b in range(blocks) for k in slice_order(design, b)], dtype=np.int64)
    ends = np.fromiter(itertools.islice(slice_ends(design), len(kinds)), np.int64, len(kinds))
    return kinds, np.concatenate(([0], ends[:-1])), ends


def _late_ns(design: Design, service_ns: Ints) -> float:
    """How long before the end of its slice a unit must start: at most half of what is left.

    From all arms together, so that it favours none.
    """
    assert design.slices is not None
    most = 500.0 * (design.slices.min_us - design.slices.guard_us)
    if len(service_ns) == 0:
        return most
    return min(most, float(np.quantile(service_ns, LATE_QUANTILE)))


def _comparable(units: SliceUnits, design: Design) -> SliceUnits:
    """The units of sessions that have some in every kind of slice, of every arm in mixed ones."""
    assert design.slices is not None
    groups = [(kind, kind) for kind in sorted(set(design.slices.kinds) - {MIXED})]
    if MIXED in design.slices.kinds:
        groups += [(MIXED, arm) for arm in range(len(design.arms))]
    keep = np.ones(len(units.arm), dtype=np.bool_)
    for kind, arm in groups:
        there = (units.kind == kind) & (units.arm == arm)
        keep &= (np.bincount(units.backend[there], minlength=units.n_sessions) > 0)[units.backend]
    return units if keep.all() else units.where(keep)


def _renumbered(values: Ints) -> Ints:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class SliceMeans:
    """Means over units of slices, at one mix of sessions, and their error by blocks of slices.

    In a given time a fast session answers more often than a slow one, and an arm that costs the
    fast ones more changes how many of all transactions are theirs. So each session's mean is
    weighted by its share of the base's transactions, in every arm alike.
    """

    units: SliceUnits
    peeked: bool = False

    @cached_property
    def held(self) -> dict[int, int]:
        """In how many blocks there are units of slices of each kind."""
        kind, block = self.units.kind, self.units.block
        return {int(k): len(np.unique(block[kind == k])) for k in np.unique(kind)}

    def reference(self, *kinds: int) -> Reference:
        """Student's t over the blocks with units of the kind of slice that has the fewest.

        A block that lacks a kind says nothing of it.
        """
        fewest = min(self.held.get(kind, 0) for kind in kinds)
        return Reference(self.units.n_blocks, fewest - 1, self.peeked)

    def by_blocks(self, expansion: Expansion, *kinds: int) -> Reference:
        """The same, with fewer degrees of freedom if a few blocks dominate the estimate."""
        return self.reference(*kinds).of(expansion.influence)

    @cached_property
    def base(self) -> Bools:
        """The units of slices in which all sessions follow the base."""
        return np.asarray(self.units.kind == 0, dtype=np.bool_)

    @cached_property
    def weights(self) -> Floats:
        """Each session's share of the base's units (S,)."""
        base = self.base
        counts = np.bincount(
            self.units.backend[base], self.units.weight[base], self.units.n_sessions
        )
        return np.asarray(counts / max(float(counts.sum()), 1.0))

    def mean(self, values: Floats, members: Bools) -> Expansion:
        """Mean of the values (N,) of the units of a mask, at the base's mix of sessions.

        A ratio of sums in each session, linearised: a unit's share of the error is its distance
        from its session's mean, and a base unit's also what it says of the mix.
        """
        units = self.units
        if not units.n_blocks:
            return Expansion(float("nan"), np.empty(0))
        session, weight = units.backend[members], units.weight[members]
        counts = np.bincount(session, weight, units.n_sessions)
        means = np.bincount(session, weight * values[members], units.n_sessions) / counts
        mean = float(self.weights @ means)
        share = (self.weights / counts)[session] * weight * (values[members] - means[session])
        influence = np.bincount(units.block[members], share, units.n_blocks)
        base_weight = units.weight[self.base]
        mix = (means[units.backend[self.base]] - mean) * base_weight / base_weight.sum()
        influence = influence + np.bincount(units.block[self.base], mix, units.n_blocks)
        return Expansion(mean, np.asarray(influence, dtype=np.float64))

    def differences(self, values: Floats, arm: int) -> Floats:
        """Mean of the arm's slices less that of the base's in each block that has both.

        Over all sessions' transactions as they come; a check on the other.
        """
        found = self._by_block(values, arm) - self._by_block(values, 0)
        return found[np.isfinite(found)]

    def _by_block(self, values: Floats, kind: int) -> Floats:
        members = self.units.kind == kind
        block, n = self.units.block[members], self.units.n_blocks
        counts = np.bincount(block, minlength=n)
        sums = np.bincount(block, values[members], n)
        means = np.divide(sums, counts, out=np.full(n, np.nan), where=counts > 0)
        return np.asarray(means, dtype=np.float64)
