"""The protocol of units in one server: trials in which every transaction draws its variant.

For variants that differ in run-time settings only. With slices of time as units all sessions follow
one variant for some milliseconds. A trial has a server of its own, started for it, and counts as
one block: what its arms cost against each other is estimated from its transactions as
`pgtare weigh` does, and trials are compared as rounds are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import psycopg

from pgtare.errors import UsageError
from pgtare.estimate.trial import analyse
from pgtare.estimate.trial.design import Arm, Design, Role, Slices, block_layout, slices_of
from pgtare.estimate.trial.observations import Observations, UnitFlag, finished
from pgtare.estimate.trial.results import TrialEstimate
from pgtare.kit.window import Window
from pgtare.load import PgbenchLoad, find_pgbench
from pgtare.server import own_session
from pgtare.server.settings import Value, checked
from pgtare.weighing.ladder import activity, evidence, gates, server_reading
from pgtare.weighing.ladder.bench import SWITCHED, Bench, Serving
from pgtare.weighing.ladder.blocks import Gathered, dropped_block, parts_of, reasons_against
from pgtare.weighing.ladder.capture_proof import Levels
from pgtare.weighing.ladder.declared_study import DeclaredStudy
from pgtare.weighing.ladder.protocol import (
    StepContext,
    StepResult,
    StudyProtocol,
    Words,
    attempt,
)
from pgtare.weighing.ladder.protocols.rounds import SETTLE_S, load_gates
from pgtare.weighing.ladder.records import ALL, Part, Run, Step
from pgtare.weighing.ladder.study_sections import AGAIN, SERVICE, Metric, Workload
from pgtare.weighing.trials import Population, Trials
from pgtare.weighing.weigh import recording

#: Stop, start, making the data ready, sessions' last blocks, and the estimate.
_AROUND_S = 1.5
#: The share of transactions that may have been spoiled by a setting of the load's own.
_SPOILED = 0.01
# A stream of its own below a study's seed.
_TRIALS = 7


class UnitTrials(StudyProtocol):
    """Trials inside one server, a transaction or a slice of time the unit."""

    name = "units"
    words = Words(
        "units in one server",
        "trial",
        "trials",
        "trial",
        "arm",
        explained="Units in one server: all variants share a server, and each transaction or time "
        "slice draws one of them; a trial is one such run.",
    )
    not_shown = (
        "Units in one server share its locks, caches and background processes: what a variant does "
        "to other sessions falls on the base too and is not in the difference. Service time runs "
        "from a request's arrival to its answer, so that what is done while the client is waited "
        "for shows in CPU time only."
    )
    section = ".units"
    switches_in_sessions = True

    def why_not(self, study: DeclaredStudy, workload: Workload, cores: int) -> str:
        if len(study.switched) > 1:
            return ""
        return f"no other variant differs from {study.analysis.floor} in run-time settings only"

    def members(self, study: DeclaredStudy) -> tuple[str, ...]:
        """Those that one server can hold."""
        return (*study.switched, study.analysis.floor + AGAIN)

    def blocks(self, study: DeclaredStudy) -> int:
        return study.protocol.units.trials

    def tested(self, study: DeclaredStudy, workload: Workload) -> tuple[Metric, tuple[Metric, ...]]:
        """Service times, which only a server can measure."""
        return SERVICE[0], ("cpu_us", *SERVICE[1:])

    def plan(self, study: DeclaredStudy, seed: int) -> tuple[Step, ...]:
        """The trials of each workload, each with a seed of its own."""
        planned: list[Step] = []
        for index, workload in self.own_workloads(study):
            seeds = np.random.default_rng((seed, _TRIALS, index))
            planned += [
                Step(
                    id=f"{workload.name}-{number:03}-trial",
                    kind="run",
                    workload=workload.name,
                    variant=ALL,
                    round=number,
                    seed=int(seeds.integers(2**31)),
                )
                for number in range(1, study.protocol.units.trials + 1)
            ]
        return tuple(planned)

    def seconds(self, study: DeclaredStudy, step: Step) -> float:
        """Restart, warm-up, trial and its estimate."""
        return _AROUND_S + study.protocol.units.warm_up + study.protocol.units.run

    def rehearse(self, study: DeclaredStudy, bench: Bench, workload: Workload) -> None:
        """Let the server take the arms' settings once.

        Raises UsageError if a session cannot set one, MeasurementError if the server does not
        start.
        """
        serving = bench.serve(study.analysis.floor + SWITCHED, workload)
        with own_session.connect(serving.cluster.dsn()) as conn:
            module = Trials(conn)
            module.require_module()
            try:
                module.start(design_of(study, workload, 0), _population(serving, "nobody"), 1.0)
            except UsageError as ex:
                raise UsageError(
                    f"{workload.stated} cannot be played by units in one server: {ex}"
                ) from ex
            module.stop()

    def play(self, step: Step, context: StepContext) -> StepResult:
        """One trial, from the start of its server to its gates."""
        return attempt(step, context, _measured)

    def gather(self, study: DeclaredStudy, workload: Workload, runs: Iterable[Run]) -> Gathered:
        """A block is a trial."""
        found = Gathered()
        for run in sorted(runs, key=lambda run: run.step.round):
            number, block = run.step.round, parts_of(run)
            if reasons := reasons_against(workload, block, list(run.failed), found):
                found.dropped.append(dropped_block(number, reasons, self.members(study)))
            else:
                found.kept[number] = block
        return found

    def layout(self, study: DeclaredStudy) -> str:
        units, n = study.protocol.units, len(self.members(study))
        return (
            f"{units.trials} trials of {units.run} s, {n} arms in one server, a {units.unit} each"
        )

    def how(self, protocol: Mapping[str, Any], n: int, floor: str) -> str:
        units = protocol[self.name]
        return (
            f"{units['trials']} trials of {units['run']} s after {units['warm_up']} s of warm-up, "
            f"each in a server of its own, in which every {units['unit']} draws its variant in "
            f"permuted blocks ({floor} twice, the floor)"
        )


def design_of(study: DeclaredStudy, workload: Workload, seed: int) -> Design:
    """The floor's variant as base, its second self as control, and the others."""
    names = UnitTrials().members(study)
    arms = []
    for i, name in enumerate(names):
        role: Role = "base" if not i else "control" if name.endswith(AGAIN) else "instrument"
        arms.append(Arm(name, role, _texts(study.the_variant(name).runtime)))
    spans = Slices(tuple(range(len(arms))))
    slices = slices_of(study.protocol.units.unit, len(arms), spans.min_us, spans.max_us)
    return Design(tuple(arms), block_layout(len(arms)), seed, slices)


def _texts(settings: Mapping[str, Value]) -> dict[str, str]:
    """Values as SET takes them; True and False are on and off."""
    return {
        name: ("on" if value else "off") if isinstance(value, bool) else str(value)
        for name, value in checked(settings).items()
    }


def _population(serving: Serving, application: str) -> Population:
    database = psycopg.conninfo.conninfo_to_dict(serving.dsn)["dbname"]
    # a few more than the load's, for those that come in the place of others
    sessions = serving.workload.clients + 4
    return Population(str(database), application=application, sessions=sessions)


def _measured(step: Step, context: StepContext) -> StepResult:
    study, units = context.study, context.study.protocol.units
    workload = study.the_workload(step.workload)
    design = design_of(study, workload, step.seed)
    spec = study.load_spec(workload, context.directory, context.rates.get(workload.stated))
    serving = context.bench.serve(study.analysis.floor + SWITCHED, workload)
    cluster = serving.cluster
    with ExitStack() as stack:
        load = stack.enter_context(PgbenchLoad(find_pgbench(serving.binaries), serving.dsn, spec))
        conn = stack.enter_context(serving.connect())
        owner = stack.enter_context(own_session.connect(cluster.dsn()))
        captures = {arm.name: study.the_variant(arm.name).capture for arm in design.arms}
        levels = stack.enter_context(Levels.open(captures, serving))
        began = time.monotonic()
        load.wait_ready()
        time.sleep(max(0.0, began + units.warm_up - time.monotonic()))
        load.check()
        assert load.pid is not None
        pids = (cluster.postmaster_pid, load.pid)
        with Window(pids, read=lambda: server_reading.read(serving, conn)) as window:
            got = recording.record(
                Trials(owner),
                design,
                _population(serving, load.application_name),
                units.run,
                cpu=True,
                load=load,
                look=lambda seconds, data: False,
                tick=lambda seconds, rows: levels.look(),
            )
        if got.stopped_by == "interrupt":
            raise KeyboardInterrupt
        failures = sum(report.failed for report in load.progress)
        load.stop()
        time.sleep(SETTLE_S)
        first, settled = window.first, server_reading.read(serving, conn)
        shown, against = levels.judge()
    data = got.observations
    transactions = len(finished(data))
    estimate = analyse(data, design, seed=step.seed)
    worked, idled = judge_activity(
        study, workload, design, data, first.activity, window.last.activity
    )
    failed = [
        *([f"the trial ended early: {got.trouble}"] if got.trouble else ()),
        *settled.refused,
        *against,
        *idled,
        *_spoiled(data, design, got),
        *gates.judge(window, study.gates),
        *load_gates(serving.workload, transactions, failures, settled.counter - first.counter),
        *evidence.judge_idle(workload, window.shares.idle),
    ]
    events = settled.disturbed(first)
    parts = {
        arm.name: Part(
            metrics=metrics,
            transactions=estimate.arms[i].n,
            events=events,
            evidence=(*shown.get(arm.name, ()), *worked),
        )
        for i, arm in enumerate(design.arms)
        if (metrics := _metrics(estimate, i))
    }
    if len(parts) < len(design.arms):
        failed.append("it has too few transactions to compare its arms")
    made = Run(
        step=step,
        started="",
        duration_s=0.0,
        transactions=transactions,
        failed=tuple(failed),
        machine={
            **gates.machine_shares(window),
            "rate_tps": spec.rate or 0.0,
            "blocks": estimate.blocks,
        },
        latency_samples=transactions,
        parts=parts,
    )
    return StepResult(made, {name: data[name] for name in data.dtype.names or ()})


def judge_activity(
    study: DeclaredStudy,
    workload: Workload,
    design: Design,
    data: Observations,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> tuple[list[str], list[str]]:
    """What all arms together made grow, held against the transactions of those that should."""
    ended = _by_arm(finished(data), design)
    begun = _by_arm(data, design)
    return activity.judge(
        workload.activity,
        before,
        after,
        ended,
        {arm.name: study.the_variant(arm.name).in_force for arm in design.arms},
        {name: n - ended[name] for name, n in begun.items()},
    )


def _by_arm(data: Observations, design: Design) -> dict[str, int]:
    counts = np.bincount(data["arm"], minlength=len(design.arms))
    return {arm.name: int(counts[i]) for i, arm in enumerate(design.arms)}


def _spoiled(data: Observations, design: Design, got: recording.TrialRecording) -> list[str]:
    """What speaks against the arms' having had their settings."""
    reasons = []
    status = got.status
    for arm in status.failed_arms if status else ():
        reasons.append(f"{design.arms[arm].name}: a session refused its settings")
    if status and status.sessions_lacking_settings:
        reasons.append(f"{status.sessions_lacking_settings} sessions lack a setting of the trial")
    if status and status.lost:
        reasons.append(f"{status.lost:,} transactions were lost, as they were read too slowly")
    changed = float(np.mean((data["flags"] & UnitFlag.APP_CHANGED) != 0)) if len(data) else 0.0
    if changed > _SPOILED:
        reasons.append(
            f"the load set settings of the variants itself in {100 * changed:.1f} % of "
            "its transactions"
        )
    return reasons


def _metrics(estimate: TrialEstimate, index: int) -> dict[str, float]:
    """An arm's figures, in µs: the base's, and what the arm costs when left on, on top."""
    base, arm = estimate.baseline, estimate.arms[index]
    body, cpu = base.body_mean_us, base.cpu_us
    if arm.effect is not None:
        body += arm.effect.body_us.estimate
        if cpu is not None:
            cpu = cpu + arm.effect.cpu_us.estimate if arm.effect.cpu_us is not None else None
    found = {
        "service_us": body,
        "service_p50_us": arm.p50_us,
        "service_p99_us": arm.p99_us,
        "cpu_us": math.nan if cpu is None else cpu,
    }
    return {name: float(v) for name, v in found.items() if math.isfinite(v) and v > 0}
