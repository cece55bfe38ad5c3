"""Shows the waits of a study's workloads, without its rounds: does each show what it states?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich import box
from rich.console import Console
from rich.table import Table

from pgtare.kit import numbers
from pgtare.weighing.ladder import evidence, scripts, wording
from pgtare.weighing.ladder.planning import all_steps
from pgtare.weighing.ladder.protocol import StepContext
from pgtare.weighing.ladder.protocol_registry import WHOLE_RUNS
from pgtare.weighing.ladder.run import skipped_workloads
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Workload
from pgtare.weighing.ladder.study_servers import Bench


@dataclass(frozen=True)
class Proof:
    """What one workload showed, in words, and what it did not show of what the study states.

    tps: transactions a second; None: it did not run. idle: share of the processors, from 0 to 1.
    """

    workload: Workload
    tps: float | None
    idle: float | None
    profile: list[str]
    missed: list[str]


def prove(study: Study, where: Path, say: Callable[[str], None]) -> list[Proof]:
    """Run every workload's proof once. where: the folder of the study file.

    Raises UsageError and MeasurementError as a study does.
    """
    with TemporaryDirectory(prefix="pgtare-scripts-") as folder:
        scripts.place(study, where, Path(folder))
        return _proofs(study, Path(folder), say)


def _proofs(study: Study, folder: Path, say: Callable[[str], None]) -> list[Proof]:
    steps = {s.workload: s for s in all_steps(study, 0) if s.kind == "proof"}
    found = []
    with Bench(study, folder) as bench:
        bench.check_disk()
        skipped = skipped_workloads(study, bench)
        for workload in study.workload:
            if workload.name in skipped:
                found.append(Proof(workload, None, None, [], [skipped[workload.name]]))
                continue
            say(f"{workload.name} {workload.title}")
            rates = {}
            if workload.load is not None:
                context = StepContext(study, bench, folder, {})
                rates[workload.name] = WHOLE_RUNS.rate(workload, context).rate_tps
            step, context = steps[workload.name], StepContext(study, bench, folder, rates)
            run = WHOLE_RUNS.play(step, context).run
            found.append(
                Proof(
                    workload,
                    tps=run.metrics.get("tps"),
                    idle=run.machine.get("idle"),
                    profile=[
                        wording.profile_line(e, *evidence.measured(e, run.waits))
                        for e in workload.profile
                    ],
                    missed=list(run.failed),
                )
            )
    return found


def show(proofs: list[Proof], console: Console) -> None:
    """Print them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("workload", "clients", "tx/s", "CPU idle", "waits", ""):
        right = title in ("clients", "tx/s", "CPU idle")
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for proof in proofs:
        table.add_row(
            f"{proof.workload.name} {proof.workload.title}",
            str(proof.workload.clients),
            numbers.NONE if proof.tps is None else f"{proof.tps:,.0f}",
            numbers.NONE if proof.idle is None else numbers.percent(100 * proof.idle),
            "\n".join([*proof.profile, *(f"NOT SHOWN: {line}" for line in proof.missed)]),
            "NO" if proof.missed else "shown",
        )
    console.print(table, highlight=False, markup=False)
