"""What an instrument costs others: the saturation design of slices, one instrument against base."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pgtare.estimate.arrays import Bools, Floats
from pgtare.estimate.inference import NAN, Estimate, Expansion, Reference, percent
from pgtare.estimate.trial.design import MIXED, Design
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.results import Contention, ContentionState, Live, LiveArm
from pgtare.estimate.trial.slices import SliceMeans, SliceUnits, select_slices
from pgtare.estimate.trial.threshold import threshold
from pgtare.estimate.trial.timing import duration_s

#: With fewer blocks of slices nothing is said.
MIN_BLOCKS = 30
#: Earlier units whose arm the regression in mixed slices takes into account.
LAGS = 2


def contention(
    obs: Observations,
    design: Design,
    *,
    proven: bool,
    peeked: bool = False,
    ended_early: bool = False,
) -> Contention:
    """Total, own effect, carry-over and spillover of the instrument of a saturation design.

    Within a block of slices come, in random order, slices of the base, slices of the instrument,
    and mixed ones in which each transaction draws its arm. All figures are of the body, min(x, c)
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
        carry_over_us=found.interval(found.carry_over),
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
        duration_s=duration_s(obs),
        arms=tuple(
            LiveArm.of(name, cost, found.base, found.reference(cost))
            for name, cost in (("total", found.total), ("spillover", found.spillover))
        ),
    )


def _judge(found: _Saturation, proven: bool) -> tuple[ContentionState, str]:
    if not proven:
        return "not_verified", "no proof that the instrument ran, or the trial ended early"
    if found.units.n_blocks < MIN_BLOCKS:
        return "inconclusive", f"only {found.units.n_blocks} blocks of slices"
    spillover = found.interval(found.spillover)
    if not (np.isfinite(spillover.lo) and np.isfinite(spillover.hi)):
        return "inconclusive", "the effects of earlier transactions could not be separated"
    covers = spillover.lo <= 0 <= spillover.hi
    if found.units.n_sessions == 1:
        if covers:
            return "none", "one session has nobody to slow down, and none is seen"
        return (
            "not_separable",
            "one session has nobody to slow down, and yet a difference is left: an effect that "
            "lasts longer than the regression follows it",
        )
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
    def lags(self) -> list[Expansion]:
        """In mixed slices: the effect on the unit itself, on the next, and on the one after."""
        return lag_effects(self.units, self.body)

    @property
    def own(self) -> Expansion:
        return self.lags[0]

    @property
    def carry_over(self) -> Expansion:
        """What falls on the session's own next transactions."""
        return self.lags[1] + self.lags[2]

    @cached_property
    def spillover(self) -> Expansion:
        """Base units among instrumented ones less base units among their like.

        What their own sessions' earlier units carried over to them is taken off: for each lag its
        effect times the share of base units that follow an instrumented one at that distance.
        """
        found = self.means.mean(self.body, self.mixed_base) - self.base
        for lag in range(1, LAGS + 1):
            after = (self.units.previous[lag - 1] == 1).astype(np.float64)
            found = found - self.lags[lag].times(self.means.mean(after, self.mixed_base))
        return found

    def interval(self, expansion: Expansion) -> Estimate:
        return self.reference(expansion).interval(expansion.value, expansion.se)

    def percent(self, expansion: Expansion) -> Estimate:
        return percent(expansion, self.base, self.reference(expansion))

    def reference(self, expansion: Expansion) -> Reference:
        """Of both intervals, so that they say the same of zero."""
        return self.means.by_blocks(expansion, 0, 1, MIXED)


def lag_effects(units: SliceUnits, values: Floats) -> list[Expansion]:
    """Effects of the instrument at lags 0 to LAGS in mixed slices, by ordinary least squares.

    y = a_(session, slice) + sum_l b_l [arm l units before = instrument] + error. The influence is
    that of the sandwich clustered on blocks of slices (Liang and Zeger 1986). NaN if the lags
    cannot be separated.
    """
    mixed = np.flatnonzero(units.kind == MIXED)
    nothing = [Expansion(NAN, np.full(units.n_blocks, NAN)) for _ in range(LAGS + 1)]
    if not len(mixed):
        return nothing
    group = units.backend[mixed] << 32 | units.slice[mixed]
    cell = np.unique(group, return_inverse=True)[1]
    counts = np.bincount(cell)
    columns = [units.arm[mixed], *(units.previous[lag, mixed] for lag in range(LAGS))]
    x = np.stack([_centred((column == 1).astype(np.float64), cell, counts) for column in columns])
    y = _centred(values[mixed], cell, counts)
    gram = x @ x.T
    if np.linalg.matrix_rank(gram, hermitian=True) < len(gram):
        return nothing
    inverse = np.linalg.inv(gram)
    coefficients = inverse @ (x @ y)
    residual = y - coefficients @ x
    block = units.block[mixed]
    scores = np.stack([np.bincount(block, row * residual, units.n_blocks) for row in x])
    influence = inverse @ scores
    return [
        Expansion(float(b), np.asarray(row, dtype=np.float64))
        for b, row in zip(coefficients, influence, strict=True)
    ]


def _centred(values: Floats, cell: np.ndarray, counts: np.ndarray) -> Floats:
    means = np.bincount(cell, values) / counts
    return np.asarray(values - means[cell], dtype=np.float64)
