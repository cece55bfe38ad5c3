"""The protocol of duet rounds in a study: every variant up at once, data directories exchanged.

A step is a round: each cluster plays the variant that its role says, and the load alternates
between them. The sets of rounds, over which placement cancels, are what is compared.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psycopg

from pgtare import machine
from pgtare.errors import MeasurementError, PgtareError
from pgtare.estimate import duet as estimate
from pgtare.ladder import evidence, gates
from pgtare.ladder.bench import Serving
from pgtare.ladder.duet import judge
from pgtare.ladder.kinds import BY
from pgtare.ladder.protocol import Done, Setting, attempt
from pgtare.ladder.records import ALL, Part, Rate, Run, Step
from pgtare.ladder.roles import load_seed, roles_of_set
from pgtare.ladder.rounds import SETTLE_S, Rounds, load_gates, proof_step
from pgtare.ladder.sections import Metric, Workload
from pgtare.ladder.study import Study
from pgtare.load.duet import DuetRun
from pgtare.load.duet_plan import Length
from pgtare.load.duet_records import Outcome
from pgtare.load.headroom import PROBE_S, PROBES, Saturation
from pgtare.profile.model import EventRow

#: A server's stop, start and making ready.
_RESTART_S = 0.3
#: Looking at a server before, in and after a round.
_LOOKS_S = 0.1
#: A server's making, and filling its tables for one scale.
_MAKE_S, _SCALE_S = 3.0, 0.15
# A stream of its own below a study's seed.
_WORKLOADS = 6
_STATISTICS: dict[Metric, estimate.Statistic] = {
    "latency_mean_us": "mean",
    "latency_p50_us": "p50",
    "latency_p95_us": "p95",
    "latency_p99_us": "p99",
}


class Duet:
    """Sets of duet rounds, roles by randomised Latin squares."""

    def steps(self, study: Study, seed: int) -> tuple[Step, ...]:
        """For each workload its proof, then its sets of as many rounds as there are roles."""
        planned: list[Step] = []
        for index, workload in enumerate(study.workload):
            if study.kind(workload) != "duet":
                continue
            names = study.in_a_block(workload)
            own = int(np.random.default_rng((seed, _WORKLOADS, index)).integers(2**31))
            planned.append(proof_step(study, workload))
            rounds = [
                roles
                for number in range(study.protocol.duet.sets)
                for roles in roles_of_set(own, number, len(names))
            ]
            planned += [
                Step(
                    id=f"{workload.name}-{number:04}-duet", kind="run", workload=workload.name,
                    variant=ALL, round=number, roles=tuple(names[role] for role in roles),
                    seed=load_seed(own, number),
                )
                for number, roles in enumerate(rounds, start=1)
            ]  # fmt: skip
        return tuple(planned)

    def seconds(self, study: Study, step: Step) -> float:
        """Restarts, warm-up and run; for the first round, also the making of the clusters."""
        if step.kind == "proof":
            return Rounds().seconds(study, step)
        workload, duet = study.the_workload(step.workload), study.protocol.duet
        n = len(study.in_a_block(workload))
        making = n * (_MAKE_S + _SCALE_S * workload.scale) if step.round == 1 else 0.0
        return making + n * (_RESTART_S + _LOOKS_S) + SETTLE_S + duet.warm_up + duet.run

    def execute(self, step: Step, setting: Setting) -> Done:
        """One round, from its roles to its gates; the profile is proven by a whole run."""
        if step.kind == "proof":
            return Rounds().execute(step, setting)
        return attempt(step, setting, _played)


def rate_name(workload: Workload) -> str:
    """What the rate of an open-loop duet is kept as; whole runs of the same load have their own."""
    return f"{workload.stated}{BY}duet"


def find_rate(workload: Workload, setting: Setting) -> Rate:
    """The rate of an open-loop duet: its share of what all its servers together do at full speed.

    That is less than one server does alone: each has its turn in caches that the others filled.
    Raises MeasurementError where the load fails.
    """
    assert workload.load is not None
    block = setting.bench.duet(workload)
    block.assign(tuple(range(len(block.variants))))
    spec = setting.study.load_spec(workload, setting.directory, None)
    length = Length(PROBE_S, warmup_s=setting.study.protocol.duet.warm_up)
    probes = []
    with TemporaryDirectory(dir=setting.scratch) as scratch:
        for number in range(PROBES):
            run = block.drive(spec, length, Path(scratch, str(number)))
            if not run.whole:
                raise MeasurementError(run.failure or "it was interrupted")
            answered = int((run.records.measured["outcome"] == Outcome.OK).sum())
            if not answered:
                raise MeasurementError(f"the load did no transaction in a probe of {PROBE_S} s")
            probes.append(answered / PROBE_S)
    saturation = Saturation(tuple(probes), PROBE_S)
    return Rate(
        workload=rate_name(workload), saturation=saturation.describe(),
        rate_tps=saturation.rate(workload.load),
    )  # fmt: skip


def _played(step: Step, setting: Setting) -> Done:
    study = setting.study
    workload = study.the_workload(step.workload)
    names = study.in_a_block(workload)
    block = setting.bench.duet(workload)
    roles = tuple(names.index(name) for name in step.roles)
    block.assign(roles)
    servings = setting.bench.servings(block, step.roles, workload)
    rate = setting.rates.get(rate_name(workload))
    # The share of saturation is that of all together, so the servers divide it among them.
    spec = study.load_spec(workload, setting.directory, rate / len(names) if rate else None)
    spec = dataclasses.replace(spec, seed=step.seed)
    length = Length(study.protocol.duet.run, warmup_s=study.protocol.duet.warm_up)
    looks = _Looks(servings, length)
    with ExitStack() as stack:
        scratch = stack.enter_context(TemporaryDirectory(dir=setting.scratch))
        conns = [stack.enter_context(serving.connect()) for serving in servings]
        first = [_read(serving, conn) for serving, conn in zip(servings, conns, strict=True)]
        pids = [serving.cluster.postmaster_pid for serving in servings]
        ticks, own, before = (
            [machine.tree_ticks(pid) for pid in pids],
            gates.own_s(),
            machine.usage(),
        )
        run = block.drive(spec, length, Path(scratch, "round"), on_progress=looks.tick)
        after, spent = machine.usage(), gates.own_s() - own
        time.sleep(SETTLE_S)
        ticks = [machine.tree_ticks(pid) - t for pid, t in zip(pids, ticks, strict=True)]
        statistics, dropped = judge(run, roles)
        # A server that left the load without an answer may leave us without one too.
        answering = conns if statistics is not None else []
        last = [_read(*both) for both in zip(servings, answering, strict=False)]
        settings = [evidence.not_in_force(conn) for conn in answering]
    found = gates.shares(before, after, sum(ticks) + round(spent / machine.tick_s()))
    failed = [
        *([dropped] if dropped else []),
        *gates.judge(before, after, found, study.gates),
        *evidence.judge_idle(workload, found.idle),
    ]
    parts: dict[str, Part] = {}
    for i, (role, serving) in enumerate(zip(step.roles, servings, strict=True)):
        if statistics is None:
            break
        answered = _answered(run, i)
        waits = evidence.profile(
            first[i].events, last[i].events, length.warmup_s + length.duration_s,
            spec.clients, answered,
        )  # fmt: skip
        counted = sum(w.waits for w in waits) if first[i].events is not None else None
        shown, against = evidence.judge_capture(serving, looks.seen[i], counted)
        grown = last[i].counter - first[i].counter if workload.counter else None
        conflicts = _count(run, i, Outcome.CONFLICT)
        reasons = [*settings[i], *against, *load_gates(workload, answered, conflicts, grown)]
        failed += [f"{role}: {reason}" for reason in reasons]
        variant = names.index(role)
        metrics: dict[str, float] = {
            name: float(statistics.latency_us[statistic][variant])
            for name, statistic in _STATISTICS.items()
        }
        cpu_us = 1e6 * ticks[i] * machine.tick_s() / max(answered, 1)
        parts[role] = Part(
            metrics={**metrics, "cpu_us": cpu_us}, transactions=answered,
            events=tuple(k for k, v in first[i].calm.items() if v != last[i].calm[k]),
            waits=waits, evidence=tuple(shown),
            remarks=tuple(evidence.judge_run(workload, waits, found.idle)[1]),
        )  # fmt: skip
    made = Run(
        step=step, began="", seconds=0.0, transactions=sum(p.transactions for p in parts.values()),
        failed=tuple(failed),
        machine={
            "idle": found.idle, "steal": found.steal, "other": found.other,
            "rate_tps": spec.rate or 0.0, "cycles": statistics.cycles if statistics else 0,
        },
        latency_samples=len(run.records.measured), parts=parts,
    )  # fmt: skip
    return Done(made, run.records.columns())


@dataclasses.dataclass(frozen=True)
class _Reading:
    """A server's counters at one moment."""

    counter: float
    calm: dict[str, str]
    events: tuple[EventRow, ...] | None


def _read(serving: Serving, conn: psycopg.Connection[tuple[object, ...]]) -> _Reading:
    query = serving.workload.counter
    return _Reading(
        evidence.counter(conn, query) if query else 0.0,
        evidence.disturbances(conn),
        evidence.read_events(serving),
    )


class _Looks:
    """One look at each server's sessions while a round lasts; told of its progress."""

    def __init__(self, servings: Sequence[Serving], length: Length) -> None:
        self.seen = [evidence.Halfway() for _ in servings]
        self._servings = servings
        # Early, as looking at many servers takes a while.
        self._due_s = length.warmup_s
        self._done = False

    def tick(self, seconds: float, _transactions: int) -> None:
        """Called each second, from the thread that reads the driver's progress."""
        if self._done or seconds < self._due_s:
            return
        self._done = True
        for serving, seen in zip(self._servings, self.seen, strict=True):
            try:
                evidence.look(serving, seen)
            except (PgtareError, psycopg.Error, OSError) as ex:
                seen.trouble = str(ex).strip() or type(ex).__name__


def _answered(run: DuetRun, cluster: int) -> int:
    return _count(run, cluster, Outcome.OK)


def _count(run: DuetRun, cluster: int, outcome: Outcome) -> int:
    """Transactions of a cluster that ended so, the warm-up's included."""
    rows = run.records.rows
    return int(((rows["cluster"] == cluster) & (rows["outcome"] == outcome)).sum())
