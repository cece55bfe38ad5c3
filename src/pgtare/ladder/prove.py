"""Shows the waits of a study's workloads, without its rounds: does each show what it states?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table

from pgtare.ladder import evidence, scripts, wording
from pgtare.ladder.bench import Bench
from pgtare.ladder.planning import all_steps, protocol_of
from pgtare.ladder.protocol import Setting
from pgtare.ladder.records import Wait
from pgtare.ladder.run import find_rate, skipped_workloads
from pgtare.ladder.study import Study
from pgtare.report import numbers


class Proof(BaseModel):
    """What one workload showed. missed: what it did not, empty where all was as stated."""

    workload: str
    title: str
    clients: int
    tps: float | None
    idle: float | None
    profile: list[str]
    missed: list[str]
    waits: list[Wait]


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
                    Proof(workload=workload.name, title=workload.title, clients=workload.clients,
                          tps=None, idle=None, profile=[], missed=[skipped[workload.name]],
                          waits=[])
                )  # fmt: skip
                continue
            say(f"{workload.name} {workload.title}")
            rates = {}
            if workload.load is not None:
                rates[workload.name] = find_rate(study, bench, workload, folder).rate_tps
            step, setting = steps[workload.name], Setting(study, bench, folder, rates)
            run = protocol_of(study, step).execute(step, setting).run
            found.append(
                Proof(
                    workload=workload.name, title=workload.title, clients=workload.clients,
                    tps=run.metrics.get("tps"), idle=run.machine.get("idle"),
                    profile=[
                        wording.profile_line(e, *evidence.measured(e, run.waits))
                        for e in workload.profile
                    ],
                    missed=list(run.failed), waits=list(run.waits[:6]),
                )
            )  # fmt: skip
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
