"""What watchers take themselves, and hold up: differences between windows of a block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.estimate.arrays import Floats, Ints
from pgtare.estimate.inference import MISSING, Estimate, Expansion, Reference
from pgtare.estimate.trial.bursts import WINDOW_QUANTILE, transaction_us
from pgtare.estimate.trial.design import LEAST_WINDOWS

#: A window stands out if it has so many standard deviations of the reference's windows more, and
#: more than any of those by half.
_STANDS_OUT, _BY_HALF = 5.0, 1.5
#: Such windows are what a watcher took if they make up so much of it.
_MOST_OF_IT = 0.8


def difference(
    values: Floats,
    blocks: Ints,
    arms: Ints,
    arm: int,
    reference: Sequence[int],
    alpha: float = 0.05,
) -> Estimate:
    """An arm less the reference, within blocks, with a t interval over them.

    values: (W,) of each window, NaN if it is not known; blocks, arms: (W,). The estimate is in the
    unit of the values, NaN if fewer blocks than LEAST_WINDOWS have both. alpha: of the interval.
    """
    pairs = _of_blocks(values, blocks, arms, arm, reference)
    found = np.array([mine.mean() - base.mean() for mine, base in pairs if len(mine)])
    n = len(found)
    if n < LEAST_WINDOWS:
        return MISSING
    mean = float(found.mean())
    effect = Expansion(mean, (found - mean) / n)
    return Reference(n, n - 1).of(effect.influence).interval(mean, effect.se, alpha)


def windows_that_stand_out(
    values: Floats, blocks: Ints, arms: Ints, arm: int, reference: Sequence[int]
) -> int | None:
    """In how many of its windows an arm took nearly all that it took, if in fewer than half.

    None if it took something in most of them, or nothing that stands out, or nothing in all.
    What acts so seldom may have acted more or less often by chance: no interval over a few windows
    holds.
    """
    extra, noise = [], []
    for own, base in _of_blocks(values, blocks, arms, arm, reference):
        extra += list(own - base.mean())
        noise += list(base - base.mean())
    mine = np.array(extra)
    if not noise:
        return None
    spread = math.sqrt(2 * float(np.mean(np.square(noise))))
    clear = mine > max(_STANDS_OUT * spread, 2 * _BY_HALF * max(noise), 1e-9)
    if not 0 < clear.sum() < len(mine) / 2:
        return None
    total = float(mine.sum())
    if total <= 0 or mine[clear].sum() < _MOST_OF_IT * total:
        return None
    return int(clear.sum())


def acts_seldom(values: Floats, arms: Ints, arm: int) -> bool:
    """Whether a process took nearly all of its time in fewer than half of its windows.

    values: (W,) of each window. It is not there in the others, so that only its own are compared.
    """
    mine = values[(arms == arm) & np.isfinite(values)]
    if not len(mine):
        return False
    usual = float(np.median(mine))
    clear = mine > 2 * _BY_HALF * usual
    most = (mine[clear] - usual).sum() >= _MOST_OF_IT * mine.sum()
    return bool(0 < clear.sum() < len(mine) / 2 and most)


def held_up(
    rows: npt.NDArray[Any],
    windows: Sequence[tuple[int, int, float]],
    reference: Sequence[int],
) -> Floats:
    """Share of each window in which a transaction was seen to be held up.

    rows: of dtype RUN; windows: block, arm and seconds of each. A run was held up by what it took
    more than nearly all runs of the base and its control in its loop, a transaction. What begins
    between bursts is met by transactions that are left out, so that it is the least.
    """
    n = np.maximum(rows["transactions"], 1).astype(np.float64)
    each = transaction_us(rows)
    more = np.zeros(len(rows))
    for loop in np.unique(rows["loop"]):
        of_loop = rows["loop"] == loop
        of_base = of_loop & np.isin(rows["arm"], reference)
        c = np.quantile(each[of_base], WINDOW_QUANTILE) if of_base.any() else np.inf
        more[of_loop] = n[of_loop] * np.maximum(each[of_loop] - c, 0.0)
    found = [
        more[(rows["epoch"] == block) & (rows["arm"] == arm)].sum() / (1e6 * seconds)
        for block, arm, seconds in windows
    ]
    return np.array(found, dtype=np.float64)


def _of_blocks(
    values: Floats, blocks: Ints, arms: Ints, arm: int, reference: Sequence[int]
) -> Iterator[tuple[Floats, Floats]]:
    """The known values of the arm and of the reference, of each block that has the latter."""
    known = np.isfinite(values)
    for block in np.unique(blocks):
        here = known & (blocks == block)
        base = values[here & np.isin(arms, reference)]
        if len(base):
            yield values[here & (arms == arm)], base
