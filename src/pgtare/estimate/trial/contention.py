"""What an instrument costs others: the saturation design of slices, one instrument against base."""

from __future__ import annotations

from typing import Any

import numpy as np

from pgtare.estimate.inference import NAN, Estimate, Expansion, Reference
from pgtare.estimate.trial.design import LEAST_BLOCKS, MIXED, Design
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.results import Contention, ContentionState, Live, LiveArm
from pgtare.estimate.trial.slices import SliceMeans, SliceUnits, select_slices
from pgtare.estimate.trial.threshold import threshold


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
        own_us=found.interval(found.own),
        spillover_us=found.interval(found.spillover),
        spillover_pct=found.interval(found.spillover).times(
            100 / found.base.value if found.base.value > 0 else NAN
        ),
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
    if found.units.n_blocks < LEAST_BLOCKS:
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


class _Saturation:
    """The estimators, each with its error by blocks of slices.

    total: all sessions with the instrument less all without it. own: in mixed slices, sessions that
    have it less those that have not; each session is weighed as it is in all slices, and has both
    now and then. spillover: base sessions among instrumented ones less those among their like.
    """

    def __init__(self, units: SliceUnits, peeked: bool) -> None:
        self.units, self.means = units, SliceMeans(units, peeked)
        body, mixed = np.minimum(units.service_us, threshold(units.service_us)), units.kind == MIXED

        def mean(members: Any) -> Expansion:
            return self.means.mean(body, np.asarray(members, dtype=np.bool_))

        self.base, among_others = mean(units.kind == 0), mean(mixed & (units.arm == 0))
        self.total = mean(units.kind == 1) - self.base
        self.own = mean(mixed & (units.arm == 1)) - among_others
        self.spillover = among_others - self.base

    def interval(self, expansion: Expansion) -> Estimate:
        return self.reference(expansion).interval(expansion.value, expansion.se)

    def reference(self, expansion: Expansion) -> Reference:
        """Of both intervals, so that they say the same of zero."""
        return self.means.by_blocks(expansion, 0, 1, MIXED)
