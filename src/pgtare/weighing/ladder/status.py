"""How far a study is, and what it would do: counts and times, never an effect."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from pgtare.kit.numbers import counted
from pgtare.weighing.ladder import settings_check
from pgtare.weighing.ladder.planning import StudyPlan, full_seconds
from pgtare.weighing.ladder.progress import span
from pgtare.weighing.ladder.remaining_steps import remaining
from pgtare.weighing.ladder.rounds import proof_id
from pgtare.weighing.ladder.run import skipped_workloads
from pgtare.weighing.ladder.study_servers import Bench
from pgtare.weighing.ladder.wording import METRICS


def show(planned: StudyPlan, console: Console) -> None:
    """Print how far a study is, by its directory."""
    directory, study = planned.directory, planned.study
    runs = directory.runs()
    with Bench(study) as bench:
        skipped = skipped_workloads(study, bench, planned.facts.servers)
    left = remaining(study, planned.steps, runs, skipped)
    table = Table(box=None, pad_edge=False)
    for title in ("workload", "", "runs", "failed a gate", "state"):
        table.add_column(title, overflow="fold")
    for workload in study.workload:
        own = [run for run in runs.values() if run.step.workload == workload.name]
        open_here = sum(step.workload == workload.name for step in left)
        proof = runs.get(proof_id(workload))
        if workload.name in skipped:
            state = f"left out: {skipped[workload.name]}"
        elif proof is not None and not proof.usable:
            state = "its proof did not pass"
        else:
            state = "begun" if own and open_here else "to do" if open_here else "done"
        failed = sum(not run.usable for run in own)
        done = f"{len(own)} of {len(own) + open_here}"
        table.add_row(workload.name, workload.title, done, str(failed), state)
    console.print(table, highlight=False, markup=False)
    spent_s = sum(run.duration_s for run in runs.values())
    # What is left goes at the pace of what is done.
    expected_s = planned.seconds([run.step for run in runs.values()])
    left_s = planned.seconds(left) * (spent_s / expected_s if expected_s else 1.0)
    running = directory.running()
    now = "running" if running else "closed" if directory.closed else "not running"
    if not left and not running:
        now = "done"
    goes_on = f", about {span(left_s)} left" if left and not directory.closed else ""
    console.print(
        f"{len(runs)} of {len(runs) + len(left)} runs done in {span(spent_s)}{goes_on}; "
        f"seed {planned.facts.seed}; {now}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def dry_run(planned: StudyPlan) -> list[str]:
    """What a study would do. Starts its servers for a moment, to ask them about its settings.

    Raises UsageError for settings that they do not take, see `settings_check.check`.
    """
    study = planned.study
    with Bench(study) as bench:
        skipped = skipped_workloads(study, bench, planned.facts.servers)
        settings_check.check(study, bench, skipped)
    lines = [study.title]
    for workload in study.workload:
        steps = [step for step in planned.steps if step.workload == workload.name]
        compared = [f"{c.arm} against {c.base}" for c in study.compared(workload)]
        lines.append(
            f"{f'{workload.name} {workload.title}'.strip()}: {counted(len(steps), 'run')}, "
            f"{span(planned.seconds(steps))}; tested: {METRICS[workload.metric].name}; "
            + ", ".join(compared)
        )
    lines.append(
        f"{len(planned.steps)} runs, about {span(planned.seconds(planned.steps))}; Holm over "
        f"{counted(study.family, 'comparison')} at α = {study.analysis.alpha:g}; "
        f"seed {planned.facts.seed}"
    )
    if planned.facts.quick:
        lines.append(f"The whole study, without --quick, takes about {span(full_seconds(planned))}")
    return lines
