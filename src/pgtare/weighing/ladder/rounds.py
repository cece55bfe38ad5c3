"""Rounds of whole runs: every variant once a round in random order, and how one run is made.

The floor's variant runs twice a round, and its two runs pass through the same estimator as every
comparison: how wide that comes out is what the machine alone makes of no difference at all. It is
no test of the machine: which run is which is drawn by lot, so that it covers 0 whatever happens.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psycopg

from pgtare.errors import PgtareError
from pgtare.estimate.ties import mid_quantiles
from pgtare.kit import machine
from pgtare.kit.numbers import counted
from pgtare.kit.window import Window
from pgtare.postgres.load import LoadSpec, TransactionLog, find_pgbench, find_saturation, run
from pgtare.postgres.load.pgbench import RunResult
from pgtare.weighing.ladder import activity, companion, evidence, gates, server_reading
from pgtare.weighing.ladder.records import Rate, Run, Step
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Workload
from pgtare.weighing.ladder.study_servers import PROOF, Bench

#: Stop, start, and making the data ready.
_RESTART_S = 1.0
#: Transactions to write down in a run, about; the log of all of them would be a load of its own.
_LOGGED = 50_000
#: The shortest and the longest run that proves a workload's profile, in s.
_PROOF_S = (3, 10)
#: A workload's own counter must grow by so much a transaction.
_COUNTED = 0.9
#: What getrusage counts may be a little late.
_SETTLE_S = 0.2


#: How small a difference runs can show, and what they cannot: one paragraph for the page.
NOT_SHOWN = (
    "Whole runs are compared: what else differs between runs than the variant (where memory lies, "
    "what the machine's other guests do) is in the intervals as noise."
)


@dataclass(frozen=True)
class StepContext:
    """What every step of a study needs: its servers, its scripts' folder, the workloads' rates.

    rates: in transactions a second. scratch: a folder for files that are gone when a run ends; the
    usual place, if None.
    """

    study: Study
    bench: Bench
    directory: Path
    rates: dict[str, float]
    scratch: Path | None = None


class StepResult(NamedTuple):
    """A run, and what was sampled in it, by column; no column, or columns of one length."""

    run: Run
    samples: Mapping[str, npt.NDArray[Any]]


def proof_id(workload: Workload) -> str:
    """The id of the step that proves a workload."""
    return f"{workload.name}-proof"


def all_steps(study: Study, seed: int) -> tuple[Step, ...]:
    """Every step of a study, workload by workload, its proof first; the same for the same seed.

    Each round has an order of its own.
    """
    rng = np.random.default_rng(seed)
    steps = []
    for workload in study.workload:
        # shows the workload's profile, before anything else of it
        floor = study.analysis.floor + PROOF
        steps.append(
            Step(id=proof_id(workload), kind="proof", workload=workload.name, variant=floor)
        )
        steps += [
            Step(
                id=f"{workload.name}-{number:03}-{position}",
                kind="run",
                workload=workload.name,
                variant=study.members[drawn],
                round=number,
                position=position,
            )
            for number in range(1, study.protocol.rounds + 1)
            for position, drawn in enumerate(rng.permutation(len(study.members)))
        ]
    return tuple(steps)


def seconds(study: Study, step: Step) -> float:
    """How long a step takes, in s, about: restart, warm-up and run."""
    length = _proof_s(study) if step.kind == "proof" else study.protocol.run
    return _RESTART_S + study.protocol.warm_up + length


def layout(study: Study) -> str:
    """What is about to be done, in a few words."""
    protocol, n = study.protocol, len(study.members)
    return f"{counted(protocol.rounds, 'round')} of {counted(n, 'run')} of {protocol.run} s"


def how(protocol: Mapping[str, Any], n: int, floor: str) -> str:
    """How runs were laid out, a sentence without its end.

    protocol: the section of the study file; n: runs of a round, the floor counted twice.
    """
    return (
        f"rounds of {n} runs of {protocol['run']} s after {protocol['warm_up']} s of warm-up, "
        f"every variant once in random order and {floor} twice (the floor)"
    )


def find_rate(workload: Workload, context: StepContext) -> Rate:
    """Find the rate of an open-loop workload: its share of what the floor does at full speed.

    Raises MeasurementError if the load fails.
    """
    assert workload.load is not None
    study = context.study
    serving = context.bench.serve(study.analysis.floor, workload)
    spec = study.load_spec(workload, context.directory, None)
    found = find_saturation(find_pgbench(serving.cluster.binaries), serving.dsn, spec)
    return Rate(
        workload=workload.name,
        saturation=found.describe(),
        rate_tps=found.rate(workload.load),
    )


def play(step: Step, context: StepContext) -> StepResult:
    """Do one step. A run that fails is returned with the reason, not raised."""
    began, clock = datetime.now(UTC), time.monotonic()
    try:
        done = _measured(step, context)
    except (PgtareError, psycopg.Error, OSError) as ex:
        reason = f"the run failed: {str(ex).strip() or type(ex).__name__}"
        done = StepResult(Run(step=step, failed=(reason,)), {})
    facts = {"started": began.isoformat(), "duration_s": time.monotonic() - clock}
    return StepResult(done.run.model_copy(update=facts), done.samples)


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
            settle_s=_SETTLE_S,
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
        *_load_gates(workload, got.transactions, got.failed, last.counter - first.counter),
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


def _load_gates(workload: Workload, transactions: int, failures: int, counted: float) -> list[str]:
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


def _proof_s(study: Study) -> int:
    shortest, longest = _PROOF_S
    return min(max(study.protocol.run, shortest), longest)
