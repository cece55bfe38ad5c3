"""What an instrument costs others: the saturation design of slices, one instrument against base."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pgtare.estimate.arrays import Bools, Floats
from pgtare.estimate.inference import NAN, Estimate, Expansion, Reference
from pgtare.estimate.trial.design import MIXED, Design
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.results import Contention, ContentionState, Live, LiveArm
from pgtare.estimate.trial.slices import SliceMeans, SliceUnits, select_slices
from pgtare.estimate.trial.threshold import threshold

#: With fewer blocks of slices nothing is said.
MIN_BLOCKS = 30


def contention(
    obs: Observations,
    design: Design,
    *,
    proven: bool,
    peeked: bool = False,
    ended_early: bool = False,
) -> Contention:
    """Total, own effect and spillover of the instrument of a saturation design.

    Within a block of slices come, in random order, slices of the base, slices of the instrument,
    and mixed ones in which half of the sessions have it. All figures are of the body, min(x, c)
    with c the 99.9th percentile over all kinds of slices. obs, design: as of `analyse`, the design
    with MIXED slices and two arms. Data that are missing give NaN and "inconclusive".
    """
    selection = select_slices(obs, design)
    units = selection.units
    found = _Saturation(units, peeked)
    state, reason = _judge(found, proven and not ended_early)
    counts = [int(np.count_nonzero(units.kind == kind)) for kind in (0, 1, MIXED)]
    return Contention(
        name=design.arms[1].name,
        state=state,
        reason=reason,
        base_us=found.base.value,
        total_us=found.interval(found.total),
        total_pct=found.percent(found.total),
        own_us=found.interval(found.own),
        spillover_us=found.interval(found.spillover),
        spillover_pct=found.percent(found.spillover),
        total_less_own_us=found.interval(found.total - found.own),
        blocks=units.n_blocks,
        blocks_discarded=selection.blocks_discarded,
        sessions=units.n_sessions,
        n_base=counts[0],
        n_instrument=counts[1],
        n_mixed=counts[2],
        straddled_pct=selection.straddled_pct,
    )


def live_contention(obs: Observations, design: Design) -> Live:
    """Total and spillover so far; see `live`."""
    found = _Saturation(select_slices(obs, design).units, peeked=True)
    return Live(
        blocks=found.units.n_blocks,
        arms=tuple(
            LiveArm.of(name, cost, found.base.value, found.reference(cost))
            for name, cost in (("total", found.total), ("spillover", found.spillover))
        ),
    )


def _judge(found: _Saturation, proven: bool) -> tuple[ContentionState, str]:
    if not proven:
        return "not_verified", "no proof that the instrument ran, or the trial ended early"
    if found.units.n_blocks < MIN_BLOCKS:
        return "inconclusive", f"only {found.units.n_blocks} blocks of slices"
    if found.units.n_sessions < 2:
        return "inconclusive", "one session has nobody to slow down"
    spillover = found.interval(found.spillover)
    if not (np.isfinite(spillover.lo) and np.isfinite(spillover.hi)):
        return "inconclusive", "it could not be estimated"
    covers = spillover.lo <= 0 <= spillover.hi
    if covers:
        return "not_shown", "the interval of the spillover covers 0"
    return "spillover", ""


@dataclass(frozen=True)
class _Saturation:
    """The estimators, each with its error by blocks of slices."""

    units: SliceUnits
    peeked: bool

    @cached_property
    def means(self) -> SliceMeans:
        return SliceMeans(self.units, self.peeked)

    @cached_property
    def body(self) -> Floats:
        return np.minimum(self.units.service_us, threshold(self.units.service_us))

    @cached_property
    def mixed_base(self) -> Bools:
        """The base's units in mixed slices."""
        return np.asarray((self.units.kind == MIXED) & (self.units.arm == 0), dtype=np.bool_)

    @cached_property
    def base(self) -> Expansion:
        """Mean of slices in which all follow the base."""
        return self.means.mean(self.body, self.means.base)

    @cached_property
    def total(self) -> Expansion:
        """All sessions with the instrument less all without it."""
        instrument = np.asarray(self.units.kind == 1, dtype=np.bool_)
        return self.means.mean(self.body, instrument) - self.base

    @cached_property
    def own(self) -> Expansion:
        """In mixed slices: sessions that have the instrument less those that have not.

        Each session is weighed as it is in all slices, and has both now and then.
        """
        treated = np.asarray((self.units.kind == MIXED) & (self.units.arm == 1), dtype=np.bool_)
        return self.means.mean(self.body, treated) - self.means.mean(self.body, self.mixed_base)

    @cached_property
    def spillover(self) -> Expansion:
        """Base sessions among instrumented ones less base sessions among their like."""
        return self.means.mean(self.body, self.mixed_base) - self.base

    def interval(self, expansion: Expansion) -> Estimate:
        return self.reference(expansion).interval(expansion.value, expansion.se)

    def percent(self, expansion: Expansion) -> Estimate:
        factor = 100 / self.base.value if self.base.value > 0 else NAN
        return self.interval(expansion).times(factor)

    def reference(self, expansion: Expansion) -> Reference:
        """Of both intervals, so that they say the same of zero."""
        return self.means.by_blocks(expansion, 0, 1, MIXED)
