"""Arms whose effect outlasts the next transaction, which the headline has no term for."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.estimate.inference import Estimate, Reference
from pgtare.estimate.results import TrialEstimate

#: A second lag under this share of the body changes nothing that anyone decides by.
WORTH_SAYING = 0.10


@dataclass(frozen=True)
class Lasting:
    """An arm and its effect on the transaction after the next, microseconds."""

    name: str
    second_lag_us: Estimate  # with an interval adjusted over the arms


def lasting(trial: TrialEstimate) -> tuple[Lasting, ...]:
    """The arms whose second lag is told from zero and more than a tenth of the body.

    At 5 % over all arms together (Bonferroni). The control and arms without proof are left out.
    """
    arms = [
        (arm.name, arm.effect)
        for arm in trial.arms
        if arm.effect is not None and arm.role != "control" and arm.verdict != "not_verified"
    ]
    reference = Reference(trial.blocks, trial.clusters - 1, trial.peeked)
    found = []
    for name, effect in arms:
        lag = effect.second_lag_us
        wide = reference.interval(lag.estimate, lag.se, 0.05 / len(arms))
        told = wide.lo > 0 or wide.hi < 0
        if told and abs(lag.estimate) > WORTH_SAYING * abs(effect.body_us.estimate):
            found.append(Lasting(name, wide))
    return tuple(found)
