"""Figures of servers made up for tests of pages and texts; nothing is estimated."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pgtare.estimate.inference import Estimate
from pgtare.weighing.fleet.server_estimate import ArmFigures, ServerFigures, log_ratio

BASE_US = 100.0
SE = 0.004


def made_figures(name: str, effects: Mapping[str, float], se: float = SE) -> ServerFigures:
    """A server on which each arm costs this share of a base of 100 µs."""
    return ServerFigures(
        name=name,
        created="2026-11-02T10:00:00+00:00",
        pgtare_version="1.0.0",
        version="18.1",
        transactions=10_000,
        transactions_per_s=1_234.5,
        whole_rate=True,
        duration_s=60.0,
        base_us=BASE_US,
        margin_pct=0.5,
        arms=tuple(_arm(arm, effect, se) for arm, effect in effects.items()),
        alarms=(),
    )


def _arm(name: str, effect: float, se: float) -> ArmFigures:
    us, pct = _estimate(BASE_US * effect, BASE_US * se), _estimate(100 * effect, 100 * se)
    ratio, ratio_se = log_ratio(pct)
    assert math.isfinite(ratio)
    return ArmFigures(
        name=name,
        role="instrument",
        settings=(("x", "on"),),
        n=2_500,
        verdict="cost",
        because="",
        us=us,
        pct=pct,
        log_ratio=ratio,
        log_ratio_se=ratio_se,
        clusters=60.0,
        unusable="",
    )


def _estimate(value: float, se: float) -> Estimate:
    return Estimate(value, se, value - 2 * se, value + 2 * se)
