"""Estimators of a trial by runs or slices inside one server."""

from pgtare.estimate.inference import Estimate
from pgtare.estimate.sequential import MIN_BLOCKS, SLICE_BLOCKS, width_reached
from pgtare.estimate.trial.analysis import analyse, live
from pgtare.estimate.trial.answer import Answer, Basis, Reason, ReasonKind
from pgtare.estimate.trial.pseudo_trials import Calibration, Rate, calibrate, clopper_pearson
from pgtare.estimate.trial.results import (
    ArmEstimate,
    Baseline,
    Contention,
    Effect,
    Live,
    LiveArm,
    Switching,
    TrialEstimate,
)

__all__ = [
    "MIN_BLOCKS",
    "SLICE_BLOCKS",
    "Answer",
    "ArmEstimate",
    "Baseline",
    "Basis",
    "Calibration",
    "Contention",
    "Effect",
    "Estimate",
    "Live",
    "LiveArm",
    "Rate",
    "Reason",
    "ReasonKind",
    "Switching",
    "TrialEstimate",
    "analyse",
    "calibrate",
    "clopper_pearson",
    "live",
    "width_reached",
]
