"""Estimators of a trial: arrays in, numbers out, nothing of PostgreSQL."""

from pgtare.estimate.calibrate import Calibration, Rate, calibrate, clopper_pearson
from pgtare.estimate.inference import Estimate
from pgtare.estimate.results import (
    ArmEstimate,
    Baseline,
    ByBackend,
    CarryOver,
    Contention,
    Effect,
    Live,
    LiveArm,
    TrialEstimate,
)
from pgtare.estimate.sequential import MIN_BLOCKS, SLICE_BLOCKS, width_reached
from pgtare.estimate.trial import analyse, live

__all__ = [
    "MIN_BLOCKS",
    "SLICE_BLOCKS",
    "ArmEstimate",
    "Baseline",
    "ByBackend",
    "Calibration",
    "CarryOver",
    "Contention",
    "Effect",
    "Estimate",
    "Live",
    "LiveArm",
    "Rate",
    "TrialEstimate",
    "analyse",
    "calibrate",
    "clopper_pearson",
    "live",
    "width_reached",
]
