"""Analyses kept observations again: the same estimators, nothing of a server."""

from __future__ import annotations

from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.results import TrialEstimate
from pgtare.weighing.weigh.result import estimated, estimated_design
from pgtare.weighing.weigh.schema import WeighResult, number


def estimate_again(
    design: Design, observations: Observations, earlier: WeighResult, margin: float | None = None
) -> TrialEstimate:
    """What the estimators say of kept observations, with the proofs recorded with them.

    margin: of equivalence, as a share; None takes the earlier one.
    """
    proven = {
        arm.name: arm.proof.state != "missing" for arm in earlier.arms if arm.proof is not None
    }
    return analyse(
        observations,
        design,
        margin=earlier.design.margin_pct / 100 if margin is None else margin,
        proven=proven,
        peeked=earlier.design.peeked,
        ended_early="the server ended it" if earlier.design.stopped_by == "server" else "",
        decides=bool(earlier.limits),
    )


def reanalyse(
    design: Design, observations: Observations, earlier: WeighResult, margin: float | None = None
) -> WeighResult:
    """The result anew; proofs, server, machine and load are those recorded with it.

    margin: as in `estimate_again`.
    """
    estimate = estimate_again(design, observations, earlier, margin)
    proofs = [arm.proof for arm in earlier.arms]
    kept = earlier.design.model_copy(update=estimated_design(estimate, design))
    if kept.outside is not None:
        again = {name: number(getattr(estimate, name)) for name in ("waiting_us", "disturbed_pct")}
        kept.outside = kept.outside.model_copy(update=again)
    return earlier.model_copy(update={"design": kept, **estimated(estimate, design, proofs)})
