"""How far a study is, and what it would do: counts and times, never an effect."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from rich.console import Console
from rich.table import Table

from pgtare.kit.document import Document, Model, schema_name
from pgtare.weighing.ladder import settings_check
from pgtare.weighing.ladder.planning import StudyPlan, full_seconds
from pgtare.weighing.ladder.progress import span
from pgtare.weighing.ladder.protocol import proof_id
from pgtare.weighing.ladder.remaining_steps import remaining
from pgtare.weighing.ladder.run import skipped_workloads
from pgtare.weighing.ladder.study_servers import Bench
from pgtare.weighing.ladder.wording import METRICS, count


class WorkloadStatus(Model):
    """One workload: runs done, planned, and failed at a gate."""

    workload: str = Field(description="its name")
    title: str = Field(description="its title")
    done: int = Field(description="runs done")
    planned: int = Field(description="runs in all")
    failed: int = Field(description="of the runs done: those that failed a gate")
    state: str = Field(description="in words")


class Status(Document):
    """A study."""

    schema_: Literal["pgtare.ladder.status/1"] = schema_name("pgtare.ladder.status/1")
    directory: str = Field(description="the study's directory")
    study_file: str = Field(description="name of the study file")
    seed: int = Field(description="the seed of every order")
    running: bool = Field(description="whether a process runs it now")
    closed: bool = Field(description="whether it was ended by hand")
    runs_done: int = Field(description="runs done")
    runs_left: int = Field(description="runs to do")
    spent_s: float = Field(description="what the runs done took")
    left_s: float = Field(description="what the others will take, at the same pace")
    workloads: list[WorkloadStatus] = Field(description="workload by workload")


class PlannedWorkload(Model):
    """One workload of a study that was not run."""

    workload: str = Field(description="its name")
    title: str = Field(description="its title")
    runs: int = Field(description="runs to do")
    planned_s: float = Field(description="about how long they take")
    compared: list[str] = Field(description="the comparisons, as `arm against base`")


class LadderPlan(Document):
    """What a study would do."""

    schema_: Literal["pgtare.ladder.plan/1"] = schema_name("pgtare.ladder.plan/1")
    title: str = Field(description="the study's title")
    seed: int = Field(description="the seed of every order")
    quick: bool = Field(description="whether it is a quick one")
    runs: int = Field(description="runs to do")
    planned_s: float = Field(description="about how long they take")
    workloads: list[PlannedWorkload] = Field(description="workload by workload")
    description: list[str] = Field(description="the plan in words, line by line")


def of(planned: StudyPlan) -> Status:
    """The status of a study from its directory."""
    directory, study = planned.directory, planned.study
    runs = directory.runs()
    with Bench(study) as bench:
        skipped = skipped_workloads(study, bench, planned.facts.servers)
    left = remaining(study, planned.steps, runs, skipped)
    spent = sum(run.duration_s for run in runs.values())
    # What is left goes at the pace of what is done.
    expected = planned.seconds([run.step for run in runs.values()])
    pace = spent / expected if expected else 1.0
    found = []
    for workload in study.workload:
        own = [run for run in runs.values() if run.step.workload == workload.name]
        open_here = sum(step.workload == workload.name for step in left)
        proof = runs.get(proof_id(workload))
        if workload.name in skipped:
            state = f"left out: {skipped[workload.name]}"
        elif proof is not None and not proof.usable:
            state = "did not show its profile"
        else:
            state = "begun" if own and open_here else "to do" if open_here else "done"
        found.append(
            WorkloadStatus(
                workload=workload.name,
                title=workload.title,
                done=len(own),
                planned=len(own) + open_here,
                failed=sum(not run.usable for run in own),
                state=state,
            )
        )
    return Status(
        directory=str(directory.path),
        study_file=planned.facts.study_file,
        seed=planned.facts.seed,
        running=directory.running(),
        closed=directory.closed,
        runs_done=len(runs),
        runs_left=len(left),
        spent_s=spent,
        left_s=pace * planned.seconds(left),
        workloads=found,
    )


def show(status: Status, console: Console) -> None:
    """Print it."""
    table = Table(box=None, pad_edge=False)
    for title in ("workload", "", "runs", "failed a gate", "state"):
        table.add_column(title, overflow="fold")
    for w in status.workloads:
        table.add_row(w.workload, w.title, f"{w.done} of {w.planned}", str(w.failed), w.state)
    console.print(table, highlight=False, markup=False)
    now = "running" if status.running else "closed" if status.closed else "not running"
    if not status.runs_left and not status.running:
        now = "done"
    goes_on = status.runs_left and not status.closed
    left = f", about {span(status.left_s)} left" if goes_on else ""
    console.print(
        f"{status.runs_done} of {status.runs_done + status.runs_left} runs done in "
        f"{span(status.spent_s)}{left}; seed {status.seed}; {now}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def dry_run(planned: StudyPlan) -> LadderPlan:
    """What a study would do. Starts its servers for a moment, to ask them about its settings.

    Raises UsageError for settings that they do not take, see `settings_check.check`.
    """
    study = planned.study
    with Bench(study) as bench:
        skipped = skipped_workloads(study, bench, planned.facts.servers)
        settings_check.check(study, bench, skipped)
    lines = [study.title]
    workloads = []
    for workload in study.workload:
        steps = [step for step in planned.steps if step.workload == workload.name]
        compared = [f"{c.arm} against {c.base}" for c in study.compared(workload)]
        lines.append(
            f"{f'{workload.name} {workload.title}'.strip()}: {count(len(steps), 'run')} by "
            f"{study.played_by(workload).words.name}, "
            f"{span(planned.seconds(steps))}; tested: {METRICS[workload.metric]}; "
            + ", ".join(compared)
        )
        workloads.append(
            PlannedWorkload(
                workload=workload.name,
                title=workload.title,
                runs=len(steps),
                planned_s=planned.seconds(steps),
                compared=compared,
            )
        )
    lines.append(
        f"{len(planned.steps)} runs, about {span(planned.seconds(planned.steps))}; Holm over "
        f"{count(study.family, 'comparison')} at α = {study.analysis.alpha:g}; "
        f"seed {planned.facts.seed}"
    )
    if planned.facts.quick:
        lines.append(f"The whole study, without --quick, takes about {span(full_seconds(planned))}")
    return LadderPlan(
        title=study.title,
        seed=planned.facts.seed,
        quick=planned.facts.quick,
        runs=len(planned.steps),
        planned_s=planned.seconds(planned.steps),
        workloads=workloads,
        description=lines,
    )
