"""What watchers take themselves: differences of a reading between windows of a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgtare.estimate.arrays import Floats, Ints
from pgtare.estimate.inference import Estimate, Reference, mean_of_blocks


def difference(
    values: Floats, blocks: Ints, arms: Ints, arm: int, reference: Sequence[int]
) -> Estimate:
    """An arm less the reference, within blocks, with a 95 % t interval over them.

    values: (W,) of each window, NaN if it is not known; blocks, arms: (W,). The estimate is in the
    unit of the values, NaN if fewer than two blocks have both.
    """
    found = []
    for block in np.unique(blocks):
        mine = values[(blocks == block) & (arms == arm)]
        base = values[(blocks == block) & np.isin(arms, reference)]
        if len(mine) and len(base):
            found.append(mine.mean() - base.mean())
    known = np.array([value for value in found if np.isfinite(value)])
    return mean_of_blocks(known, Reference(len(known), len(known) - 1))
