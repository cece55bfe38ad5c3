"""Estimators of a fleet: one arm over many servers, and the guards of its trials."""

from pgtare.estimate.fleet.outliers import Outlier
from pgtare.estimate.fleet.random_effects import FleetEstimate, FleetVerdict, combine
from pgtare.estimate.fleet.server_effect import ServerEffect
from pgtare.estimate.fleet.subgroups import Subgroup, subgroups

__all__ = [
    "FleetEstimate",
    "FleetVerdict",
    "Outlier",
    "ServerEffect",
    "Subgroup",
    "combine",
    "subgroups",
]
