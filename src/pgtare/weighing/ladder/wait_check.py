"""Shows the waits of a study's workloads, without its rounds: does each show what it states?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table

from pgtare.kit import numbers
from pgtare.kit.document import Document, Model, schema_name
from pgtare.weighing.ladder import evidence, scripts, wording
from pgtare.weighing.ladder.planning import all_steps
from pgtare.weighing.ladder.protocol import StepContext
from pgtare.weighing.ladder.protocol_registry import WHOLE_RUNS
from pgtare.weighing.ladder.records import Wait
from pgtare.weighing.ladder.run import skipped_workloads
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_servers import Bench


class Proof(Model):
    """What one workload showed."""

    workload: str = Field(description="its name")
    title: str = Field(description="its title")
    clients: int = Field(description="its clients")
    tps: float | None = Field(description="transactions a second; `null`: it did not run")
    idle: float | None = Field(description="share of the processors that was idle, from 0 to 1")
    profile: list[str] = Field(description="what it shows, in words")
    missed: list[str] = Field(description="what it did not show; empty if all was as stated")
    waits: list[Wait] = Field(description="its waits")


class Proofs(Document):
    """What the workloads of a study showed."""

    schema_: Literal["pgtare.ladder.proofs/1"] = schema_name("pgtare.ladder.proofs/1")
    workloads: list[Proof] = Field(description="workload by workload")


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
                found.append(
                    Proof(
                        workload=workload.name,
                        title=workload.title,
                        clients=workload.clients,
                        tps=None,
                        idle=None,
                        profile=[],
                        missed=[skipped[workload.name]],
                        waits=[],
                    )
                )
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
                    workload=workload.name,
                    title=workload.title,
                    clients=workload.clients,
                    tps=run.metrics.get("tps"),
                    idle=run.machine.get("idle"),
                    profile=[
                        wording.profile_line(e, *evidence.measured(e, run.waits))
                        for e in workload.profile
                    ],
                    missed=list(run.failed),
                    waits=list(run.waits[:6]),
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
            f"{proof.workload} {proof.title}",
            str(proof.clients),
            numbers.NONE if proof.tps is None else f"{proof.tps:,.0f}",
            numbers.NONE if proof.idle is None else numbers.percent(100 * proof.idle),
            "\n".join([*proof.profile, *(f"NOT SHOWN: {line}" for line in proof.missed)]),
            "NO" if proof.missed else "shown",
        )
    console.print(table, highlight=False, markup=False)
