"""One comparison of a study on one workload: its difference and interval, from the blocks kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.study import rounds as estimate
from pgtare.estimate.study.power import rounds_to_settle
from pgtare.weighing.ladder.blocks import Blocks
from pgtare.weighing.ladder.result import Compared, Effect, OtherMetric
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import UNITS, Metric, Workload


def compare(
    study: Study,
    workload: Workload,
    blocks: Blocks,
    arm: str,
    base: str,
    peeked: bool,
    seed: int,
) -> Compared:
    """The comparison of an arm with its base; its verdict waits for the family's correction."""
    analysis, planned = study.analysis, study.protocol.rounds
    pairs = {m: _pairs(blocks, arm, base, m) for m in (workload.metric, *workload.also)}

    def estimated(metric: Metric) -> estimate.Paired:
        return estimate.paired(
            _log_ratios(pairs[metric]),
            margin=analysis.margin,
            alpha=analysis.alpha,
            seed=seed,
            peeked=peeked,
            planned=planned,
        )

    def described(metric: Metric, found: estimate.Paired) -> dict[str, Any]:
        return {
            "metric": metric,
            "unit": UNITS[metric],
            "effect": _effect(found),
            "absolute": _absolute(found, pairs[metric]),
            "p": known(found.p),
        }

    found = estimated(workload.metric)
    within = dataclasses.replace(found, lo=found.within[0], hi=found.within[1])
    others = [metric for metric in workload.also if len(pairs[metric]) >= 2]
    return Compared(
        workload=workload.name,
        arm=arm,
        base=base,
        **described(workload.metric, found),
        rounds=found.n,
        se_pct=known(100 * found.se),
        p_adjusted=None,
        p_equivalence=known(found.p_equivalence),
        within=None if peeked else _effect(within),
        # no more rounds come to a study that is closed
        rounds_to_settle=None
        if peeked
        else rounds_to_settle(
            found.mean,
            found.se * math.sqrt(found.n),
            analysis.margin,
            study.family,
            analysis.alpha,
            done=found.n,
        ),
        verdict="inconclusive",
        round_pct=tuple(pct(float(x)) for x in _log_ratios(pairs[workload.metric])),
        other_metrics=tuple(OtherMetric(**described(m, estimated(m))) for m in others),
    )


def not_counted(study: Study, workload: Workload, arm: str, base: str) -> Compared:
    """A comparison whose figures do not count."""
    return Compared(
        workload=workload.name,
        arm=arm,
        base=base,
        metric=workload.metric,
        unit=UNITS[workload.metric],
        rounds=0,
        effect=Effect(pct=None, lo_pct=None, hi_pct=None),
        se_pct=None,
        absolute=None,
        p=None,
        p_adjusted=None,
        p_equivalence=None,
        rounds_to_settle=None,
        verdict="not_verified",
    )


def _pairs(blocks: Blocks, arm: str, base: str, metric: str) -> list[tuple[float, float]]:
    """The metric of arm and base by block, of blocks that have it in both."""
    pairs = (
        (block[arm].metrics.get(metric, 0.0), block[base].metrics.get(metric, 0.0))
        for _, block in sorted(blocks.items())
    )
    return [pair for pair in pairs if min(pair) > 0]


def _log_ratios(pairs: Sequence[tuple[float, float]]) -> Floats:
    return np.array([math.log(of_arm / of_base) for of_arm, of_base in pairs])


def _absolute(found: estimate.Paired, pairs: Sequence[tuple[float, float]]) -> float:
    """The difference in the metric's unit, at the base's geometric mean."""
    centre = float(np.exp(np.mean(np.log([of_base for _, of_base in pairs]))))
    return centre * math.expm1(found.mean)


def _effect(found: estimate.Paired) -> Effect:
    return Effect(
        pct=known(pct(found.mean)), lo_pct=known(pct(found.lo)), hi_pct=known(pct(found.hi))
    )


def pct(log_ratio: float) -> float:
    """A log-ratio in percent; if it is endless, so is the percentage."""
    if log_ratio == -math.inf:
        return log_ratio  # no end at all, which is not an end at −100 %
    return 100 * math.expm1(log_ratio) if log_ratio < 700 else math.inf


def known(value: float) -> float | None:
    """A figure of the result: None if there is none or it has no end."""
    return value if math.isfinite(value) else None
