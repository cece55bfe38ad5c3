"""Two variants on the blocks of a workload: their log-ratios, and what is estimated of them."""

from __future__ import annotations

import math

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.study import layouts
from pgtare.estimate.study import rounds as estimate
from pgtare.weighing.ladder.blocks import Block, Blocks
from pgtare.weighing.ladder.result import OverLayouts
from pgtare.weighing.ladder.study import Study


def estimated(
    study: Study,
    blocks: Blocks,
    arm: str,
    base: str,
    metric: str,
    seed: int,
    *,
    planned: int = 0,
    family: int = 1,
    peeked: bool = False,
) -> tuple[estimate.Paired, layouts.Layouts | None]:
    """A comparison by rounds; over linkings, if builds with linkings are compared."""
    analysis = study.analysis
    d = differences(blocks, arm, base, metric)
    if study.over_layouts(arm, base):
        kept = _with_metric(blocks, arm, base, metric)
        numbers = np.array([block[arm].step.layout for block in kept], dtype=np.int64)
        return layouts.paired(
            d,
            numbers,
            margin=analysis.margin,
            family=family,
            alpha=analysis.alpha,
            peeked=peeked,
            planned=study.protocol.layouts or 0,
        )
    found = estimate.paired(
        d,
        margin=analysis.margin,
        family=family,
        alpha=analysis.alpha,
        seed=seed,
        peeked=peeked,
        planned=planned,
    )
    return found, None


def described(over: layouts.Layouts | None) -> OverLayouts | None:
    """What a result says of the linkings, in percent; nothing if there are none."""
    if over is None:
        return None
    return OverLayouts(
        layouts=over.layouts,
        sd_layout_pct=_known(100 * over.sd_layout),
        sd_layout_lo_pct=_known(100 * over.sd_layout_lo),
        sd_layout_hi_pct=_known(100 * over.sd_layout_hi),
        sd_round_pct=_known(100 * over.sd_round),
        p=_known(over.p_layout),
    )


def differences(blocks: Blocks, arm: str, base: str, metric: str) -> Floats:
    """Log-ratios of arm to base by round, of rounds that have the metric in both."""
    return np.array(
        [
            math.log(block[arm].metrics[metric] / block[base].metrics[metric])
            for block in _with_metric(blocks, arm, base, metric)
        ]
    )


def _with_metric(blocks: Blocks, arm: str, base: str, metric: str) -> list[Block]:
    return [
        block
        for _, block in sorted(blocks.items())
        if all(block[name].metrics.get(metric, 0.0) > 0 for name in (arm, base))
    ]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
