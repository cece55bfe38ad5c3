"""Estimators of a trial by transactions or slices inside one server."""

from pgtare.estimate.inference import Estimate
from pgtare.estimate.sequential import MIN_BLOCKS, SLICE_BLOCKS, width_reached
from pgtare.estimate.trial.pseudo_trials import Calibration, Rate, calibrate, clopper_pearson
from pgtare.estimate.trial.results import (
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
from pgtare.estimate.trial.unit_trial import analyse, live

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
