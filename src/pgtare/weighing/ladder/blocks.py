"""The rounds of a workload: what is compared within, and counts as one in every test."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pgtare.weighing.ladder.records import Dropped, Run
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Workload

Block = dict[str, Run]  # by variant
Blocks = dict[int, Block]


#: So many blocks a mean and its error need.
FEWEST = 2
#: Transactions that are due by chance are this many SDs off, at most.
_SCATTER = 4.0


@dataclass(frozen=True)
class Gathered:
    """The blocks that count, those that do not, and what to report of the others.

    shared: in how many rounds all had an event; remarked: each variant's remarks, a list a round;
    behind: of rounds that count, what each variant left undone of an open load.
    """

    kept: Blocks = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    remarked: dict[str, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))
    behind: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def drop(self, number: int, reasons: Iterable[str], at_fault: Iterable[str]) -> None:
        """A block does not count. at_fault: its variants that did not pass, if any did not."""
        variants = tuple(dict.fromkeys(at_fault))
        self.dropped.append(Dropped(round=number, reasons=tuple(reasons), variants=variants))


def gathered(study: Study, workload: Workload, runs: Mapping[str, Run]) -> Gathered:
    """The rounds of a workload that are done. runs: by id of their steps."""
    by_round: Blocks = defaultdict(dict)
    for run in runs.values():
        if run.step.kind == "run" and run.step.workload == workload.name:
            by_round[run.step.round][run.step.variant] = run
    found = Gathered()
    for number, block in sorted(by_round.items()):
        if len(block) < len(study.members):
            continue  # not done yet
        failed = [f"{name}: {reason}" for name, run in block.items() for reason in run.failed]
        if reasons := _reasons_against(workload, block, failed, found):
            found.drop(number, reasons, _named_first(reasons, block))
        else:
            found.kept[number] = block
            for name, run in block.items():
                if undone := _behind(study, workload, run):
                    found.behind[name].append(undone)
    return found


def too_many_dropped(study: Study, dropped: int, blocks: int) -> bool:
    """Whether too many of these blocks do not count, so that the rest must not either.

    One is tolerated, as a share of a few says nothing.
    """
    return dropped > max(1.0, study.gates.dropped_at_most * blocks)


def _named_first(reasons: Iterable[str], names: Iterable[str]) -> list[str]:
    """The variants that reasons begin with, as "off, trace: a checkpoint fell into it"."""
    known = set(names)
    heads = [reason.partition(": ")[0].split(", ") for reason in reasons]
    return [name for head in heads for name in head if known.issuperset(head)]


def _reasons_against(
    workload: Workload, block: Block, failed: list[str], found: Gathered
) -> list[str]:
    """Why a round does not count; events that all its runs had, and remarks, go to `found`."""
    reasons, shared = list(failed), found.shared
    for name, run in block.items():
        if run.remarks:
            found.remarked[name].append(run.remarks)
    for what in sorted({event for run in block.values() for event in run.events}):
        having = [name for name, run in block.items() if what in run.events]
        if len(having) < len(block):
            reasons.append(f"{', '.join(having)}: {an(what)} fell into it, not into the others")
        else:
            shared[what] += 1
    # ticks of a processor are coarse: a short run of little work may show none
    lacking = [n for n, run in block.items() if not run.metrics.get(workload.metric, 0.0) > 0]
    if lacking and not reasons:
        reasons.append(f"{', '.join(lacking)}: {workload.metric} was not measured")
    return reasons


def _behind(study: Study, workload: Workload, run: Run) -> str:
    """What a run left undone of an open load; pgbench drops what is overdue at its end."""
    due = run.machine.get("rate_tps", 0.0) * study.protocol.run
    if due - run.transactions <= _SCATTER * math.sqrt(due) + workload.clients:
        return ""
    return f"{run.transactions:,} of {due:,.0f} transactions that were due"


def an(noun: str) -> str:
    """a checkpoint, an autovacuum."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
