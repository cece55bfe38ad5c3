"""From the runs of a study to its result: blocks, comparisons, floor, verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import pgtare
from pgtare.estimate.inference import holm
from pgtare.kit import numbers
from pgtare.weighing.ladder import caveats, evidence, wording
from pgtare.weighing.ladder.blocks import FEWEST, Blocks, an, gathered, too_many_dropped
from pgtare.weighing.ladder.compare import compare, known, not_counted
from pgtare.weighing.ladder.field_types import percent
from pgtare.weighing.ladder.records import Rate, Run, Step, StudyFacts
from pgtare.weighing.ladder.remaining_steps import remaining
from pgtare.weighing.ladder.result import Compared, LadderResult, OnWorkload, Rung
from pgtare.weighing.ladder.rounds import proof_id
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import AGAIN, HIGHER_IS_BETTER, UNITS, Workload
from pgtare.weighing.verdict_names import Verdict


def analyse(
    study: Study,
    facts: StudyFacts,
    steps: Sequence[Step],
    runs: Mapping[str, Run],
    rates: Mapping[str, Rate],
    *,
    directory: Path,
    closed: bool,
    skipped: Mapping[str, str],
    warnings: Sequence[str] = (),
) -> LadderResult:
    """The result of a study.

    skipped: workloads that these servers cannot run, with the reason. closed: ended by hand, so
    that the figures must allow for somebody having chosen the moment.
    """
    open_steps = remaining(study, steps, runs, skipped)
    state = "closed" if closed else "unfinished" if open_steps else "finished"
    per_workload = [
        _workload(study, w, runs, rates, skipped, state, facts.seed) for w in study.workload
    ]
    family = [c for w in per_workload for c in w.compared]
    if state != "unfinished":
        _adjust(study, family)
    return LadderResult(
        title=study.title,
        about=study.about.strip(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pgtare_version=pgtare.__version__,
        state=state,  # type: ignore[arg-type]
        quick=facts.quick,
        seed=facts.seed,
        command=facts.command,
        directory=str(directory),
        machine=facts.machine,
        servers=facts.servers,
        protocol=study.protocol.model_dump(),
        alpha=study.analysis.alpha,
        margin_pct=100 * study.analysis.margin,
        floor=study.analysis.floor,
        family=study.family,
        planned_s=facts.planned_s,
        spent_s=sum(run.duration_s for run in runs.values()),
        runs_done=len(runs),
        runs_planned=len(runs) + len(open_steps),
        warnings=tuple(warnings),
        variants=tuple(v.model_dump() for v in study.variant),
        workloads=tuple(per_workload),
    )


def _workload(
    study: Study,
    workload: Workload,
    runs: Mapping[str, Run],
    rates: Mapping[str, Rate],
    skipped: Mapping[str, str],
    state: str,
    seed: int,
) -> OnWorkload:
    found = gathered(study, workload, runs)
    blocks, dropped = found.kept, found.dropped
    proof = runs.get(proof_id(workload))
    waits = proof.waits if proof else ()
    why_not = _why_not(study, workload, proof, len(blocks), len(dropped), skipped)
    if not why_not and state != "unfinished" and len(blocks) < FEWEST:
        why_not = "fewer than two whole rounds were kept"
    shown = {} if state == "unfinished" or why_not else dict(sorted(blocks.items()))
    compared: list[Compared] = []
    floor = None
    if shown:
        peeked = state == "closed"
        floor_name = study.analysis.floor
        floor = compare(study, workload, blocks, floor_name + AGAIN, floor_name, peeked, seed)
        compared = [
            compare(study, workload, blocks, c.arm, c.base, peeked, seed)
            for c in study.compared(workload)
        ]
    elif why_not:
        compared = [not_counted(study, workload, c.arm, c.base) for c in study.compared(workload)]
    last = {name: run for block in shown.values() for name, run in block.items()}
    return OnWorkload(
        name=workload.name,
        title=workload.title,
        spent_s=sum(
            run.duration_s
            for run in runs.values()
            if run.step.workload == workload.name and run.step.kind == "run"
        ),
        metric=workload.metric,
        unit=UNITS[workload.metric],
        clients=workload.clients,
        rate_tps=rates[workload.name].rate_tps if workload.name in rates else None,
        proven=bool(proof and proof.usable),
        profile=tuple(
            wording.profile_line(expected, *evidence.measured(expected, waits))
            for expected in (workload.profile if proof else ())
        ),
        waits=waits,
        idle=proof.machine.get("idle") if proof else None,
        rounds_planned=study.protocol.rounds,
        rounds_kept=len(blocks),
        dropped=tuple(dropped),
        caveats=(
            *(
                f"in {numbers.counted(n, 'round')} every run had {an(what)}"
                for what, n in found.shared.items()
            ),
            *caveats.dropped_by(dropped),
            *caveats.remarks(found.remarked),
            *caveats.behind(found.behind),
        ),
        why_not=why_not,
        figure_units={figure.name: figure.unit for figure in workload.figure},
        rungs=tuple(_rung(name, blocks, workload) for name in study.members) if shown else (),
        floor=floor,
        compared=tuple(compared),
        by_round=tuple(
            {name: run.metrics[workload.metric] for name, run in block.items()}
            for block in shown.values()
        ),
        waits_by_variant={name: run.waits for name, run in last.items() if run.waits},
    )


def _why_not(
    study: Study,
    workload: Workload,
    proof: Run | None,
    kept: int,
    dropped: int,
    skipped: Mapping[str, str],
) -> str:
    """Why a workload's figures must not be counted; empty if they may."""
    if workload.name in skipped:
        return skipped[workload.name]
    if proof is not None and not proof.usable:
        return "its proof did not pass: " + "; ".join(proof.failed)
    if proof is None and kept:
        return "its waits were never looked at"
    if too_many_dropped(study, dropped, kept + dropped):
        return (
            f"{dropped} of {kept + dropped} rounds did not pass the gates, more than "
            f"{percent(study.gates.dropped_at_most)}"
        )
    return ""


def _rung(name: str, blocks: Blocks, workload: Workload) -> Rung:
    runs = [block[name] for block in blocks.values()]
    metrics: dict[str, float] = {
        metric: math.exp(float(np.mean([math.log(run.metrics[metric]) for run in runs])))
        for metric in UNITS
        if all(run.metrics.get(metric, 0.0) > 0 for run in runs)
    }
    values = np.array([run.metrics[workload.metric] for run in runs])
    return Rung(
        variant=name,
        metrics=metrics,
        figures={
            figure.name: float(np.mean([run.figures[figure.name] for run in runs]))
            for figure in workload.figure
            if all(figure.name in run.figures for run in runs)
        },
        cv_pct=100 * float(values.std(ddof=1) / values.mean()) if len(values) > 1 else None,
        evidence="; ".join(runs[-1].evidence),
    )


def _adjust(study: Study, family: list[Compared]) -> None:
    """Holm over the declared family, and the verdicts.

    One that gave no p, or was not played (`--workload`), counts all the same.
    """
    p_values = [math.nan if c.p is None else c.p for c in family]
    p_values += [math.nan] * (study.family - len(family))
    for compared, p_adjusted in zip(family, holm(p_values)[: len(family)], strict=True):
        compared.p_adjusted = known(p_adjusted)
        if compared.verdict != "not_verified":
            compared.verdict = _verdict(study, compared)


def _verdict(study: Study, compared: Compared) -> Verdict:
    alpha = study.analysis.alpha
    if compared.p_equivalence is not None and compared.p_equivalence <= alpha:
        return "equivalent"
    if compared.p_adjusted is not None and compared.p_adjusted <= alpha and compared.effect.pct:
        better = (compared.effect.pct > 0) == (compared.metric in HIGHER_IS_BETTER)
        return "gain" if better else "cost"
    return "inconclusive"
