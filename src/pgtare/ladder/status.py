"""How far a study is, and what it would do: counts and times, never an effect."""

from __future__ import annotations

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from pgtare.ladder.bench import Bench
from pgtare.ladder.kinds import WORDS
from pgtare.ladder.planning import Planned, full_seconds
from pgtare.ladder.progress import span
from pgtare.ladder.protocol import proof_id
from pgtare.ladder.remaining import remaining
from pgtare.ladder.run import skipped_workloads
from pgtare.ladder.wording import METRICS, count


class WorkloadStatus(BaseModel):
    """One workload: runs done, planned, and failed at a gate."""

    workload: str
    title: str
    done: int
    planned: int
    failed: int
    state: str


class Status(BaseModel):
    """A study."""

    directory: str
    study_file: str
    seed: int
    running: bool
    closed: bool
    runs_done: int
    runs_left: int
    seconds_spent: float
    seconds_left: float
    workloads: list[WorkloadStatus]


def of(planned: Planned) -> Status:
    """The status of a study from its directory."""
    directory, study = planned.directory, planned.study
    runs = directory.runs()
    with Bench(study) as bench:
        skipped = skipped_workloads(study, bench, planned.facts.servers)
    left = remaining(study, planned.steps, runs, skipped)
    spent = sum(run.seconds for run in runs.values())
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
                workload=workload.name, title=workload.title, done=len(own),
                planned=len(own) + open_here, failed=sum(not run.usable for run in own),
                state=state,
            )
        )  # fmt: skip
    return Status(
        directory=str(directory.path), study_file=planned.facts.study_file,
        seed=planned.facts.seed, running=directory.running(), closed=directory.closed,
        runs_done=len(runs), runs_left=len(left), seconds_spent=spent,
        seconds_left=pace * planned.seconds(left), workloads=found,
    )  # fmt: skip


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
    left = f", about {span(status.seconds_left)} left" if goes_on else ""
    console.print(
        f"{status.runs_done} of {status.runs_done + status.runs_left} runs done in "
        f"{span(status.seconds_spent)}{left}; seed {status.seed}; {now}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def dry_run(planned: Planned) -> list[str]:
    """What a study would do, line by line."""
    study = planned.study
    lines = [study.title]
    for workload in study.workload:
        steps = [step for step in planned.steps if step.workload == workload.name]
        lines.append(
            f"{f'{workload.stated} {workload.title}'.strip()}: {count(len(steps), 'run')} by "
            f"{WORDS[study.kind(workload)].name}, "
            f"{span(planned.seconds(steps))}; tested: {METRICS[workload.metric]}; "
            + ", ".join(f"{c.arm} against {c.base}" for c in study.compared(workload))
        )
    lines.append(
        f"{len(planned.steps)} runs, about {span(planned.seconds(planned.steps))}; Holm over "
        f"{count(study.family, 'comparison')} at α = {study.analysis.alpha:g}; "
        f"seed {planned.facts.seed}"
    )
    if planned.facts.quick:
        lines.append(f"The whole study, without --quick, takes about {span(full_seconds(planned))}")
    return lines
