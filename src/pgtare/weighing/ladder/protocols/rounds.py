"""The protocol of rounds: whole runs, every variant once a round in random order.

The floor's variant runs twice a round, and its two runs pass through the same estimator as every
comparison: how wide that comes out is what the machine alone makes of no difference at all. It is
no test of the machine: which run is which is drawn by lot, so that it covers 0 whatever happens.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pgtare.estimate.ties import mid_quantiles
from pgtare.kit import machine
from pgtare.kit.numbers import counted
from pgtare.kit.window import Window
from pgtare.postgres.load import LoadSpec, TransactionLog, find_pgbench, run
from pgtare.postgres.load.pgbench import RunResult
from pgtare.weighing.ladder import activity, companion, evidence, gates, server_reading
from pgtare.weighing.ladder.blocks import Blocks, Gathered, named_first, reasons_against
from pgtare.weighing.ladder.declared_study import DeclaredStudy
from pgtare.weighing.ladder.protocol import (
    StepContext,
    StepResult,
    StudyProtocol,
    Words,
    proof_id,
)
from pgtare.weighing.ladder.records import Run, Step
from pgtare.weighing.ladder.study_sections import Workload
from pgtare.weighing.ladder.study_servers import PROOF

#: Stop, start, and making the data ready.
_RESTART_S = 1.0
#: Transactions to write down in a run, about; the log of all of them would be a load of its own.
_LOGGED = 50_000
#: The shortest and the longest run that proves a workload's profile, in s.
_PROOF_S = (3, 10)
#: A workload's own counter must grow by so much a transaction.
_COUNTED = 0.9
#: Transactions that are due by chance are this many SDs off, at most.
_SCATTER = 4.0
#: What getrusage counts may be a little late.
SETTLE_S = 0.2


class Rounds(StudyProtocol):
    """Randomised blocks of whole runs."""

    name = "rounds"
    words = Words("rounds", "round", "rounds", "round", "run", usual=True)
    not_shown = (
        "Whole runs are compared: what else differs between runs than the variant (where memory "
        "lies, what the machine's other guests do) is in the intervals as noise."
    )

    def blocks(self, study: DeclaredStudy) -> int:
        return study.protocol.rounds

    def plan(self, study: DeclaredStudy, seed: int) -> tuple[Step, ...]:
        """The rounds of each workload, each in an order of its own."""
        rng = np.random.default_rng(seed)
        names, rounds = study.members, study.protocol.rounds
        return tuple(
            Step(
                id=f"{workload.name}-{number:03}-{position}",
                kind="run",
                workload=workload.name,
                variant=names[drawn],
                round=number,
                position=position,
            )
            for _, workload in self.own_workloads(study)
            for number in range(1, rounds + 1)
            for position, drawn in enumerate(rng.permutation(len(names)))
        )

    def seconds(self, study: DeclaredStudy, step: Step) -> float:
        """Restart, warm-up and run."""
        length = _proof_s(study) if step.kind == "proof" else study.protocol.run
        return _RESTART_S + study.protocol.warm_up + length

    def measure(self, step: Step, context: StepContext) -> StepResult:
        """One run, from the start of its server to its gates."""
        return _measured(step, context)

    def gather(self, study: DeclaredStudy, workload: Workload, runs: Iterable[Run]) -> Gathered:
        """A block is a round: every variant's run."""
        by_round: Blocks = defaultdict(dict)
        for one in runs:
            by_round[one.step.round][one.step.variant] = one
        found = Gathered()
        for number, block in sorted(by_round.items()):
            if len(block) < len(study.members):
                continue  # not done yet
            failed = [f"{name}: {reason}" for name, one in block.items() for reason in one.failed]
            if reasons := reasons_against(workload, block, failed, found):
                found.drop(number, reasons, named_first(reasons, block))
            else:
                found.kept[number] = block
                for name, one in block.items():
                    if undone := _behind(study, workload, one):
                        found.behind[name].append(undone)
        return found

    def layout(self, study: DeclaredStudy) -> str:
        protocol, n = study.protocol, len(study.members)
        return f"{counted(protocol.rounds, 'round')} of {counted(n, 'run')} of {protocol.run} s"

    def how(self, protocol: Mapping[str, Any], n: int, floor: str) -> str:
        return (
            f"rounds of {n} runs of {protocol['run']} s after {protocol['warm_up']} s of warm-up, "
            f"every variant once in random order and {floor} twice (the floor)"
        )


def proof_step(study: DeclaredStudy, workload: Workload) -> Step:
    """The run that shows a workload's profile, before anything else of it."""
    return Step(
        id=proof_id(workload),
        kind="proof",
        workload=workload.name,
        variant=study.analysis.floor + PROOF,
    )


def _measured(step: Step, context: StepContext) -> StepResult:
    study = context.study
    workload = study.the_workload(step.workload)
    spec = study.load_spec(workload, context.directory, context.rates.get(workload.name))
    serving = context.bench.serve(step.variant, workload)
    log_path = serving.cluster.log_path
    pgbench = find_pgbench(serving.cluster.binaries)
    # Its speed says how many transactions a sample must be drawn from.
    warm = run(pgbench, serving.dsn, spec, study.protocol.warm_up)
    length = _proof_s(study) if step.kind == "proof" else study.protocol.run
    sample = min(1.0, _LOGGED / max(warm.tps * length, 1.0))
    with ExitStack() as stack:
        log = stack.enter_context(TransactionLog(sample, context.scratch))
        folder = Path(stack.enter_context(TemporaryDirectory(dir=context.scratch)))
        pids = stack.enter_context(
            companion.running(serving.variant.companion, serving.cluster.dsn(), folder)
        )
        conn = stack.enter_context(serving.connect())
        look = stack.enter_context(evidence.SessionsLook(serving))
        window = Window(
            (serving.cluster.postmaster_pid, *pids),
            read=lambda: server_reading.read(serving, conn),
            settle_s=SETTLE_S,
        )
        with window:
            got = run(pgbench, serving.dsn, spec, length, log=log, halfway=look)
        latencies = log.latencies_us()
    first, last, shares = window.first, window.last, window.shares
    waits = evidence.profile(first.events, last.events, length, spec.clients, got.transactions)
    shown, against = evidence.judge_capture(look, waits)
    settings = serving.variant.in_force
    worked, idled = activity.judge(
        workload.activity, first.activity, last.activity, got.transactions, settings
    )
    disturbed = gates.judge(window.before, window.after, shares, study.gates)
    is_proof = step.kind == "proof"
    # A profile is a matter of shares, which another load does not move as it moves a speed.
    failed = [
        *last.refused,
        *against,
        *idled,
        *(() if is_proof else disturbed),
        *load_gates(workload, got.transactions, got.failed, last.counter - first.counter),
        *(evidence.missed(workload, waits) if is_proof else ()),
        *evidence.judge_idle(workload, shares.idle),
    ]
    made = Run(
        step=step,
        metrics=_metrics(got, latencies, window.ticks[0], spec),
        figures=last.figures_since(first, log_path, workload, length),
        transactions=got.transactions,
        failed=tuple(failed),
        events=last.disturbed(first),
        remarks=() if is_proof else evidence.remarks(workload, waits),
        waits=waits,
        machine={**dataclasses.asdict(shares), "rate_tps": spec.rate or 0.0},
        evidence=(*shown, *worked),
        latency_samples=len(latencies),
    )
    samples = {"latency_us": latencies.astype(np.float32)} if len(latencies) else {}
    return StepResult(made, samples)


def load_gates(workload: Workload, transactions: int, failures: int, counted: float) -> list[str]:
    """What speaks against the load itself. counted: what its own counter, if any, grew by."""
    reasons = []
    if failures:
        reasons.append(f"{failures:,} transactions of the load failed")
    if not transactions:
        reasons.append("the load did no transaction")
    if workload.counter and counted < _COUNTED * transactions:
        reasons.append(
            f"the workload's counter grew by {counted:,.0f} in {transactions:,} transactions, "
            f"not by {_COUNTED:g} each"
        )
    return reasons


def _behind(study: DeclaredStudy, workload: Workload, run: Run) -> str:
    """What a run left undone of an open load; pgbench drops what is overdue at its end."""
    due = run.machine.get("rate_tps", 0.0) * study.protocol.run
    if due - run.transactions <= _SCATTER * math.sqrt(due) + workload.clients:
        return ""
    return f"{run.transactions:,} of {due:,.0f} transactions that were due"


def _metrics(
    got: RunResult, latencies: np.ndarray, server_ticks: int, spec: LoadSpec
) -> dict[str, float]:
    metrics = {
        "tps": got.tps,
        "cpu_us": 1e6 * server_ticks * machine.tick_s() / max(got.transactions, 1),
        "latency_mean_us": _mean_us(got, latencies, spec),
    }
    if len(latencies):
        # pgbench writes whole microseconds
        p50, p95, p99 = mid_quantiles(latencies, (0.5, 0.95, 0.99))
        metrics |= {"latency_p50_us": p50, "latency_p95_us": p95, "latency_p99_us": p99}
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _mean_us(got: RunResult, latencies: np.ndarray, spec: LoadSpec) -> float:
    """The mean latency, finer than the whole microseconds that pgbench prints."""
    if spec.rate is None:
        return 1e6 * spec.clients / got.tps if got.tps else math.nan
    printed = 1000 * got.latency_ms
    if not len(latencies):
        return printed
    # The log may be a sample, whose mean can only get better by what is known of the whole.
    return float(np.clip(latencies.mean(), printed - 0.5, printed + 0.5))


def _proof_s(study: DeclaredStudy) -> int:
    shortest, longest = _PROOF_S
    return min(max(study.protocol.run, shortest), longest)
