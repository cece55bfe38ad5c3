"""Which steps of a study are still to be done: none that could change nothing any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pgtare.estimate.study.attainable import rounds_for_level
from pgtare.weighing.ladder.blocks import FEWEST, too_many_dropped
from pgtare.weighing.ladder.compare import estimated
from pgtare.weighing.ladder.protocol import proof_id
from pgtare.weighing.ladder.records import Run, Step
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Workload


def remaining(
    study: Study, steps: Sequence[Step], runs: Mapping[str, Run], skipped: Mapping[str, str]
) -> list[Step]:
    """The steps still to be done.

    None of a workload that showed another profile than its own, or whose dropped rounds are too
    many for a number already, or whose intervals are as narrow as requested.
    """
    over = {workload.name for workload in study.workload if workload.name in skipped}
    for workload in study.workload:
        if (run := runs.get(proof_id(workload))) and not run.usable:
            over.add(workload.name)
    for workload in study.workload:
        if workload.name not in over:
            dropped = len(study.gathered(workload, runs).dropped)
            planned = study.blocks_planned(workload)
            lost = too_many_dropped(study, dropped, planned) or planned - dropped < FEWEST
            if lost or narrow(study, workload, runs):
                over.add(workload.name)
    return [step for step in steps if step.id not in runs and step.workload not in over]


def narrow(study: Study, workload: Workload, runs: Mapping[str, Run]) -> bool:
    """Whether every interval of a workload is as narrow as the protocol requires.

    A rule on width looks at no effect, so that no effect is favoured; but it stops if rounds
    happen to vary little, and the intervals then cover somewhat less often than they say, the more
    so the fewer rounds there are. Only whole rounds count, so that it cannot end one in its middle.
    """
    wanted = study.protocol.half_width
    if wanted is None:
        return False
    blocks = study.gathered(workload, runs).kept
    fewest = rounds_for_level(study.analysis.alpha, study.family)
    if len(blocks) < max(fewest, FEWEST):
        return False
    for comparison in study.compared(workload):
        found = estimated(study, blocks, comparison.arm, comparison.base, workload.metric, 1)
        if not (found.hi - found.lo) / 2 <= wanted:
            return False
    return True
