"""Which steps of a study are still to be done: none that could change nothing any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pgtare.weighing.ladder.blocks import FEWEST, gathered, too_many_dropped
from pgtare.weighing.ladder.records import Run, Step
from pgtare.weighing.ladder.rounds import proof_id
from pgtare.weighing.ladder.study import Study


def remaining(
    study: Study, steps: Sequence[Step], runs: Mapping[str, Run], skipped: Mapping[str, str]
) -> list[Step]:
    """The steps still to be done.

    None of a workload whose proof did not pass, or whose dropped rounds are too many for a number
    already.
    """
    over = {*skipped}
    for workload in study.workload:
        proof, planned = runs.get(proof_id(workload)), study.protocol.rounds
        dropped = len(gathered(study, workload, runs).dropped)
        if (
            (proof is not None and not proof.usable)
            or too_many_dropped(study, dropped, planned)
            or planned - dropped < FEWEST
        ):
            over.add(workload.name)
    return [step for step in steps if step.id not in runs and step.workload not in over]
