"""The blocks of a workload: what is compared within, and counts as one in every test.

Of rounds it is a round: every variant's run; of units in one server a trial. Of a duet it is a set
of rounds, in which every variant played every cluster once, so that placement cancels; a variant's
figure is its geometric mean over the set, and so the log-ratio of two variants the mean of the
rounds' log-ratios.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from pgtare.ladder.records import Run
from pgtare.ladder.result import Dropped
from pgtare.ladder.sections import Workload
from pgtare.ladder.study import Study
from pgtare.ladder.wording import an

Block = dict[str, Run]  # by variant
Blocks = dict[int, Block]


#: So many blocks a mean and its error need.
FEWEST = 2


@dataclass(frozen=True)
class Found:
    """The blocks that count, those that do not, and what is to be told of the others.

    shared: in how many rounds all had an event; remarked: each variant's remarks, a list a round.
    """

    kept: Blocks = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    remarked: dict[str, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def dropped_by(self) -> dict[str, int]:
        """Dropped blocks by the variant that did not pass; one with several at fault is in each."""
        by: dict[str, int] = defaultdict(int)
        for dropped in self.dropped:
            for name in dropped.variants:
                by[name] += 1
        return dict(by)


def blocks_of(study: Study, workload: Workload, runs: Mapping[str, Run]) -> Found:
    """The blocks of a workload that are done."""
    own = [r for r in runs.values() if r.step.kind == "run" and r.step.workload == workload.name]
    gather = {"rounds": _rounds, "duet": _sets, "units": _trials}[study.kind(workload)]
    return gather(study, workload, own)


def too_many_dropped(study: Study, dropped: int, blocks: int) -> bool:
    """Whether so many of these blocks do not count that the rest must not either.

    One is borne, as a share of a few says nothing.
    """
    return dropped > max(1.0, study.gates.dropped_at_most * blocks)


def _rounds(study: Study, workload: Workload, runs: Iterable[Run]) -> Found:
    by_round: Blocks = defaultdict(dict)
    for run in runs:
        by_round[run.step.round][run.step.variant] = run
    found = Found()
    for number, block in sorted(by_round.items()):
        if len(block) < len(study.in_a_block(workload)):
            continue  # not done yet
        failed = [f"{name}: {reason}" for name, run in block.items() for reason in run.failed]
        if reasons := _reasons(workload, block, failed, found):
            found.dropped.append(_dropped(number, reasons, block))
        else:
            found.kept[number] = block
    return found


def _trials(study: Study, workload: Workload, runs: Iterable[Run]) -> Found:
    found = Found()
    for run in sorted(runs, key=lambda run: run.step.round):
        block = _parts(run)
        if reasons := _reasons(workload, block, list(run.failed), found):
            found.dropped.append(_dropped(run.step.round, reasons, study.in_a_block(workload)))
        else:
            found.kept[run.step.round] = block
    return found


def _sets(study: Study, workload: Workload, runs: Iterable[Run]) -> Found:
    size = len(study.in_a_block(workload))
    by_set: dict[int, dict[int, Run]] = defaultdict(dict)
    for run in runs:
        by_set[(run.step.round - 1) // size + 1][run.step.round] = run
    found = Found()
    for number, rounds in sorted(by_set.items()):
        if len(rounds) < size:
            continue
        blocks, reasons, at_fault = [], [], []
        for at, run in sorted(rounds.items()):
            block = _parts(run)
            told = _reasons(workload, block, list(run.failed), found)
            at_fault += _named(told, run.step.roles)
            reasons += [f"round {at}: {reason}" for reason in told]
            blocks.append(block)
        if reasons:
            variants = tuple(dict.fromkeys(at_fault))
            found.dropped.append(Dropped(round=number, reasons=tuple(reasons), variants=variants))
        else:
            found.kept[number] = {name: _mean([b[name] for b in blocks]) for name in blocks[0]}
    return found


def _dropped(number: int, reasons: list[str], names: Iterable[str]) -> Dropped:
    variants = tuple(dict.fromkeys(_named(reasons, names)))
    return Dropped(round=number, reasons=tuple(reasons), variants=variants)


def _named(reasons: Iterable[str], names: Iterable[str]) -> list[str]:
    """The variants that reasons begin with, as "off, trace: a checkpoint fell into it"."""
    known = set(names)
    heads = [reason.partition(": ")[0].split(", ") for reason in reasons]
    return [name for head in heads for name in head if known.issuperset(head)]


def _reasons(workload: Workload, block: Block, failed: list[str], found: Found) -> list[str]:
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
    lacking = [n for n, run in block.items() if workload.metric not in run.metrics]
    if lacking and not reasons:
        reasons.append(f"{', '.join(lacking)}: {workload.metric} was not measured")
    return reasons


def _parts(run: Run) -> Block:
    """A duet round, or a trial, as runs of its variants."""
    return {
        name: run.model_copy(
            update={
                "step": run.step.model_copy(update={"variant": name}), "metrics": part.metrics,
                "transactions": part.transactions, "events": part.events, "waits": part.waits,
                "evidence": part.evidence, "remarks": part.remarks, "parts": {},
            }
        )
        for name, part in run.parts.items()
    }  # fmt: skip


def _mean(runs: list[Run]) -> Run:
    """A variant's rounds of a set as one run, the last with the geometric means of all."""
    names = [n for n in runs[0].metrics if all(run.metrics.get(n, 0.0) > 0 for run in runs)]
    means = {
        name: float(np.exp(np.mean([np.log(run.metrics[name]) for run in runs]))) for name in names
    }
    total = sum(run.transactions for run in runs)
    return runs[-1].model_copy(update={"metrics": means, "transactions": total})
