"""Estimators of a fleet: one arm over many servers, and the guards of its trials."""

from pgtare.estimate.fleet.detectable_harm import BaseFacts, DetectableHarm, detectable_harm
from pgtare.estimate.fleet.guard import (
    HARMS,
    Breach,
    GuardedServer,
    GuardLook,
    Harm,
    HarmGuard,
    HarmLimits,
)
from pgtare.estimate.fleet.outliers import Outlier
from pgtare.estimate.fleet.random_effects import FleetEstimate, FleetVerdict, combine
from pgtare.estimate.fleet.server_effect import ServerEffect
from pgtare.estimate.fleet.subgroups import Subgroup, subgroups

__all__ = [
    "HARMS",
    "BaseFacts",
    "Breach",
    "DetectableHarm",
    "FleetEstimate",
    "FleetVerdict",
    "GuardLook",
    "GuardedServer",
    "Harm",
    "HarmGuard",
    "HarmLimits",
    "Outlier",
    "ServerEffect",
    "Subgroup",
    "combine",
    "detectable_harm",
    "subgroups",
]
