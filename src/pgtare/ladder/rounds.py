"""The protocol of rounds: whole runs, every variant once a round in random order.

The floor's variant runs twice a round, and its two runs pass through the same estimator as every
comparison: what that finds is what the machine alone makes of no difference at all.
"""

from __future__ import annotations

import math
import resource
import time
from contextlib import ExitStack
from datetime import UTC, datetime

import numpy as np
import psycopg

from pgtare import machine
from pgtare.errors import PgtareError
from pgtare.ladder import evidence, gates
from pgtare.ladder.bench import PROOF, Serving
from pgtare.ladder.protocol import Done, Setting
from pgtare.ladder.records import Run, Step
from pgtare.ladder.study import Study, Workload
from pgtare.load import TransactionLog, find_pgbench, run
from pgtare.load.pgbench import RunResult

#: Stop, start, and making the data ready.
_RESTART_S = 2.0
#: Transactions to write down in a run, about; the log of all of them would be a load of its own.
_LOGGED = 50_000
#: The shortest and the longest run that proves a workload's profile, in s.
_PROOF_S = (3, 10)
#: What getrusage counts may be a little late.
_SETTLE_S = 0.2
_NO_LATENCIES = np.empty(0)


class Rounds:
    """Randomised blocks of whole runs."""

    def steps(self, study: Study, seed: int) -> tuple[Step, ...]:
        """For each workload its proof, then its rounds, each in an order of its own."""
        rng = np.random.default_rng(seed)
        planned: list[Step] = []
        for workload in study.workload:
            floor = study.analysis.floor + PROOF
            planned.append(
                Step(id=f"{workload.name}-proof", kind="proof", workload=workload.name,
                     variant=floor)
            )  # fmt: skip
            for number in range(1, study.protocol.rounds + 1):
                for position, index in enumerate(rng.permutation(len(study.in_a_round))):
                    planned.append(
                        Step(
                            id=f"{workload.name}-{number:03}-{position}", kind="run",
                            workload=workload.name, variant=study.in_a_round[index],
                            round=number, position=position,
                        )
                    )  # fmt: skip
        return tuple(planned)

    def seconds(self, study: Study, step: Step) -> float:
        """Restart, warm-up and run."""
        length = _proof_s(study) if step.kind == "proof" else study.protocol.run
        return _RESTART_S + study.protocol.warm_up + length

    def execute(self, step: Step, setting: Setting) -> Done:
        """One run, from the start of its server to its gates."""
        began, clock = datetime.now(UTC), time.monotonic()
        try:
            done = _measured(step, setting)
        except (PgtareError, psycopg.Error, OSError) as ex:
            done = Done(Run(step=step, began="", seconds=0.0, failed=(_reason(ex),)), _NO_LATENCIES)
        facts = {"began": began.isoformat(), "seconds": time.monotonic() - clock}
        return Done(done.run.model_copy(update=facts), done.latencies_us)


def _measured(step: Step, setting: Setting) -> Done:
    study = setting.study
    workload = study.the_workload(step.workload)
    spec = study.load_spec(workload, setting.directory, setting.rates.get(workload.name))
    serving = setting.bench.serve(step.variant, workload)
    pgbench = find_pgbench(serving.binaries)
    # Its speed says how many transactions a sample must be drawn from.
    warm = run(pgbench, serving.dsn, spec, study.protocol.warm_up)
    length = _proof_s(study) if step.kind == "proof" else study.protocol.run
    sample = workload.sample or min(1.0, _LOGGED / max(warm.tps * length, 1.0))
    seen = evidence.Halfway()

    def look() -> None:
        try:
            evidence.look(serving, seen)
        except PgtareError as ex:
            seen.trouble = str(ex)

    with ExitStack() as stack:
        log = stack.enter_context(TransactionLog(sample, setting.scratch))
        conn = stack.enter_context(serving.connect())
        count = evidence.counter(conn, workload.counter) if workload.counter else 0.0
        calm = evidence.disturbances(conn)
        first = evidence.read_events(serving)
        pid = serving.cluster.postmaster_pid
        server, own, before = machine.tree_ticks(pid), _own_s(), machine.usage()
        got = run(pgbench, serving.dsn, spec, length, log=log, halfway=look)
        after, spent = machine.usage(), _own_s() - own
        time.sleep(_SETTLE_S)
        server = machine.tree_ticks(pid) - server
        last = evidence.read_events(serving)
        now = evidence.disturbances(conn)
        counted = evidence.counter(conn, workload.counter) - count if workload.counter else None
        settings = evidence.not_in_force(conn)
        latencies = log.latencies_us()
    waits = evidence.profile(first, last, length, spec.clients, got.transactions)
    found = gates.shares(before, after, server + round(spent / machine.tick_s()))
    shown, against = evidence.judge_capture(
        serving, seen, sum(w.waits for w in waits) if first is not None else None
    )
    # A profile is a matter of shares, which another load does not move as it moves a speed.
    failed = [
        *settings,
        *against,
        *(gates.judge(before, after, found, study.gates) if step.kind == "run" else ()),
        *_load_gates(serving, got, counted),
    ]
    stated = workload if waits or step.kind == "proof" else _idle_only(workload)
    failed += evidence.judge_profile(stated, waits, found.idle)
    made = Run(
        step=step,
        began="",
        seconds=0.0,
        metrics=_metrics(got, latencies, server),
        transactions=got.transactions,
        failed=tuple(failed),
        events=tuple(what for what in calm if calm[what] != now[what]),
        waits=waits,
        machine={
            "idle": found.idle, "steal": found.steal, "other": found.other,
            "rate_tps": spec.rate or 0.0,
        },
        evidence=tuple(shown),
        latency_samples=len(latencies),
    )  # fmt: skip
    return Done(made, latencies)


def _idle_only(workload: Workload) -> Workload:
    """What can be asked of a run in which nothing counts waits."""
    return workload.model_copy(update={"profile": ()})


def _load_gates(serving: Serving, got: RunResult, counted: float | None) -> list[str]:
    told = []
    if got.failed:
        told.append(f"{got.failed:,} transactions of the load failed")
    if not got.transactions:
        told.append("the load did no transaction")
    wanted = serving.workload.counted_per_transaction
    if counted is not None and counted < wanted * got.transactions:
        told.append(
            f"the workload's counter grew by {counted:,.0f} in {got.transactions:,} transactions, "
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
        p50, p95, p99 = np.quantile(latencies, (0.5, 0.95, 0.99))
        metrics |= {"latency_p50_us": p50, "latency_p95_us": p95, "latency_p99_us": p99}
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _proof_s(study: Study) -> int:
    shortest, longest = _PROOF_S
    return min(max(study.protocol.run, shortest), longest)


def _own_s() -> float:
    """CPU time in s of ourselves and of the programs we have run to their end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _reason(ex: BaseException) -> str:
    return f"the run failed: {str(ex).strip() or type(ex).__name__}"
