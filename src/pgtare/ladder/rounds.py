"""The protocol of rounds: whole runs, every variant once a round in random order.

The floor's variant runs twice a round, and its two runs pass through the same estimator as every
comparison: how wide that comes out is what the machine alone makes of no difference at all. It is
no test of the machine: which run is which is drawn by lot, so that it covers 0 whatever happens.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psycopg

from pgtare import machine
from pgtare.errors import PgtareError
from pgtare.estimate.ties import mid_quantiles
from pgtare.ladder import activity, beside, evidence, figures, gates, linkings
from pgtare.ladder.bench import PROOF
from pgtare.ladder.protocol import Done, Setting, attempt, proof_id
from pgtare.ladder.records import Run, Step
from pgtare.ladder.sections import Workload
from pgtare.ladder.study import Study
from pgtare.load import TransactionLog, find_pgbench, run
from pgtare.load.pgbench import RunResult

#: Stop, start, and making the data ready.
_RESTART_S = 1.0
#: Transactions to write down in a run, about; the log of all of them would be a load of its own.
_LOGGED = 50_000
#: The shortest and the longest run that proves a workload's profile, in s.
_PROOF_S = (3, 10)
#: What getrusage counts may be a little late.
SETTLE_S = 0.2


class Rounds:
    """Randomised blocks of whole runs."""

    def steps(self, study: Study, seed: int) -> tuple[Step, ...]:
        """For each workload its proof, then its rounds, each in an order of its own."""
        rng = np.random.default_rng(seed)
        planned: list[Step] = []
        for index, workload in enumerate(study.workload):
            if study.kind(workload) != "rounds":
                continue
            planned.append(proof_step(study, workload))
            names = study.in_a_block(workload)
            layouts = linkings.order(seed, index, study.protocol.rounds, study.protocol.layouts)
            for number in range(1, study.protocol.rounds + 1):
                for position, drawn in enumerate(rng.permutation(len(names))):
                    planned.append(
                        Step(
                            id=f"{workload.name}-{number:03}-{position}", kind="run",
                            workload=workload.name, variant=names[drawn],
                            round=number, position=position, layout=layouts[number - 1],
                        )
                    )  # fmt: skip
        return tuple(planned)

    def seconds(self, study: Study, step: Step) -> float:
        """Restart, warm-up and run."""
        length = _proof_s(study) if step.kind == "proof" else study.protocol.run
        return _RESTART_S + study.protocol.warm_up + length

    def execute(self, step: Step, setting: Setting) -> Done:
        """One run, from the start of its server to its gates."""
        return attempt(step, setting, _measured)


def proof_step(study: Study, workload: Workload) -> Step:
    """The run that shows a workload's profile, before anything else of it."""
    return Step(
        id=proof_id(workload), kind="proof", workload=workload.name,
        variant=study.analysis.floor + PROOF,
    )  # fmt: skip


def _measured(step: Step, setting: Setting) -> Done:
    study = setting.study
    workload = study.the_workload(step.workload)
    spec = study.load_spec(workload, setting.directory, setting.rates.get(workload.stated))
    serving = setting.bench.serve(step.variant, workload, step.layout)
    pgbench = find_pgbench(serving.binaries)
    # Its speed says how many transactions a sample must be drawn from.
    warm = run(pgbench, serving.dsn, spec, study.protocol.warm_up)
    length = _proof_s(study) if step.kind == "proof" else study.protocol.run
    sample = workload.sample or min(1.0, _LOGGED / max(warm.tps * length, 1.0))
    seen = evidence.Halfway()

    def look() -> None:
        try:
            evidence.look(serving, seen)
        except (PgtareError, psycopg.Error, OSError) as ex:
            seen.trouble = str(ex).strip() or type(ex).__name__

    with ExitStack() as stack:
        log = stack.enter_context(TransactionLog(sample, setting.scratch))
        folder = Path(stack.enter_context(TemporaryDirectory(dir=setting.scratch)))
        pids = stack.enter_context(
            beside.running(serving.variant.beside, serving.cluster.dsn(), folder)
        )
        conn = stack.enter_context(serving.connect())
        count = evidence.counter(conn, workload.counter) if workload.counter else 0.0
        calm = evidence.disturbances(conn)
        log_path = serving.cluster.log_path
        begun = figures.read(conn, log_path, workload)
        first = evidence.read_events(serving)
        idle = activity.read(conn, workload.activity)
        pid = serving.cluster.postmaster_pid
        aside = sum(map(machine.tree_ticks, pids))
        server, own, before = machine.tree_ticks(pid), gates.own_s(), machine.usage()
        got = run(pgbench, serving.dsn, spec, length, log=log, halfway=look)
        after, spent = machine.usage(), gates.own_s() - own
        time.sleep(SETTLE_S)
        server = machine.tree_ticks(pid) - server
        aside = sum(map(machine.tree_ticks, pids)) - aside
        active = activity.read(conn, workload.activity)
        last = evidence.read_events(serving)
        ended = figures.read(conn, log_path, workload)
        now = evidence.disturbances(conn)
        counted = evidence.counter(conn, workload.counter) - count if workload.counter else None
        settings = evidence.not_in_force(conn)
        latencies = log.latencies_us()
    waits = evidence.profile(first, last, length, spec.clients, got.transactions)
    found = gates.shares(before, after, server + aside + round(spent / machine.tick_s()))
    shown, against = evidence.judge_capture(
        serving, seen, sum(w.waits for w in waits) if first is not None else None
    )
    worked, idled = activity.judge(
        workload.activity, idle, active, {step.variant: got.transactions},
        {step.variant: serving.variant.in_force},
    )  # fmt: skip
    # A profile is a matter of shares, which another load does not move as it moves a speed.
    failed = [
        *settings,
        *against,
        *idled,
        *(gates.judge(before, after, found, study.gates) if step.kind == "run" else ()),
        *load_gates(serving.workload, got.transactions, got.failed, counted),
    ]
    remarks: list[str] = []
    if step.kind == "proof":
        failed += evidence.judge_profile(workload, waits, found.idle)
    else:
        spoiled, remarks = evidence.judge_run(workload, waits, found.idle)
        failed += spoiled
    made = Run(
        step=step,
        began="",
        seconds=0.0,
        metrics=_metrics(got, latencies, server),
        figures=figures.between(begun, ended, log_path, workload, length),
        transactions=got.transactions,
        failed=tuple(failed),
        events=tuple(what for what in calm if calm[what] != now[what]),
        remarks=tuple(remarks),
        waits=waits,
        machine={
            "idle": found.idle, "steal": found.steal, "other": found.other,
            "rate_tps": spec.rate or 0.0,
        },
        evidence=(*shown, *worked),
        latency_samples=len(latencies),
    )  # fmt: skip
    return Done(made, {"latency_us": latencies.astype(np.float32)} if len(latencies) else {})


def load_gates(
    workload: Workload, transactions: int, failures: int, counted: float | None
) -> list[str]:
    """What speaks against the load itself. counted: what its own counter grew by."""
    told = []
    if failures:
        told.append(f"{failures:,} transactions of the load failed")
    if not transactions:
        told.append("the load did no transaction")
    wanted = workload.counted_per_transaction
    if counted is not None and counted < wanted * transactions:
        told.append(
            f"the workload's counter grew by {counted:,.0f} in {transactions:,} transactions, "
            f"not by {wanted:g} each"
        )
    return told


def _metrics(got: RunResult, latencies: np.ndarray, server_ticks: int) -> dict[str, float]:
    metrics = {
        "tps": got.tps,
        "cpu_us": 1e6 * server_ticks * machine.tick_s() / max(got.transactions, 1),
        "latency_mean_us": 1000 * got.latency_ms,
    }
    if len(latencies):
        # pgbench writes whole microseconds
        p50, p95, p99 = mid_quantiles(latencies, (0.5, 0.95, 0.99))
        metrics |= {"latency_p50_us": p50, "latency_p95_us": p95, "latency_p99_us": p99}
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _proof_s(study: Study) -> int:
    shortest, longest = _PROOF_S
    return min(max(study.protocol.run, shortest), longest)
