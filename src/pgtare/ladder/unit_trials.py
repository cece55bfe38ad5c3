"""The protocol of units in one server: trials in which every transaction draws its variant.

For variants that differ in run-time settings only. With slices of time as units all sessions follow
one variant for some milliseconds. A trial has a server of its own, started for it, and counts as
one block: what its arms cost against each other is estimated from its transactions as
`pgtare weigh` does, and trials are compared as rounds are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
import psycopg

from pgtare import machine
from pgtare.design import Arm, Design, Role, Slices, block_layout, slices_of
from pgtare.errors import UsageError
from pgtare.estimate import analyse
from pgtare.estimate.results import TrialEstimate
from pgtare.ladder import activity, evidence, gates
from pgtare.ladder.bench import SWITCHED, Bench, Serving
from pgtare.ladder.levels import Levels
from pgtare.ladder.protocol import Done, Setting, attempt
from pgtare.ladder.records import ALL, Part, Run, Step
from pgtare.ladder.rounds import SETTLE_S, Rounds, load_gates, proof_step
from pgtare.ladder.sections import AGAIN, Workload
from pgtare.ladder.study import Study
from pgtare.load import PgbenchLoad, find_pgbench
from pgtare.observations import Observations, UnitFlag, finished
from pgtare.server import recording, trials
from pgtare.server.settings import Value, checked
from pgtare.server.trials import Population, Trials

#: Stop, start, making the data ready, sessions' last blocks, and the estimate.
_AROUND_S = 1.5
#: The share of transactions that may have been spoiled by a setting of the load's own.
_SPOILED = 0.01
# A stream of its own below a study's seed.
_TRIALS = 7


class Units:
    """Trials inside one server, a transaction or a slice of time the unit."""

    def steps(self, study: Study, seed: int) -> tuple[Step, ...]:
        """For each workload its proof, then its trials, each with a seed of its own."""
        planned: list[Step] = []
        for index, workload in enumerate(study.workload):
            if study.kind(workload) != "units":
                continue
            planned.append(proof_step(study, workload))
            seeds = np.random.default_rng((seed, _TRIALS, index))
            planned += [
                Step(
                    id=f"{workload.name}-{number:03}-trial", kind="run", workload=workload.name,
                    variant=ALL, round=number, seed=int(seeds.integers(2**31)),
                )
                for number in range(1, study.protocol.units.trials + 1)
            ]  # fmt: skip
        return tuple(planned)

    def seconds(self, study: Study, step: Step) -> float:
        """Restart, warm-up, trial and its estimate."""
        if step.kind == "proof":
            return Rounds().seconds(study, step)
        return _AROUND_S + study.protocol.units.warm_up + study.protocol.units.run

    def execute(self, step: Step, setting: Setting) -> Done:
        """One trial, from the start of its server to its gates."""
        if step.kind == "proof":
            return Rounds().execute(step, setting)
        return attempt(step, setting, _measured)


def design_of(study: Study, workload: Workload, seed: int) -> Design:
    """The floor's variant as base, its second self as control, and the others."""
    names = study.in_a_block(workload)
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


def rehearse(study: Study, bench: Bench, workload: Workload) -> None:
    """Let the server take the arms' settings once, before hours are spent.

    Raises UsageError where a session cannot set one, MeasurementError where the server does not
    start.
    """
    serving = bench.serve(study.analysis.floor + SWITCHED, workload)
    with trials.connect(serving.cluster.dsn()) as conn:
        module = Trials(conn)
        module.require_module()
        try:
            module.start(design_of(study, workload, 0), _population(serving, "nobody"), 1.0)
        except UsageError as ex:
            raise UsageError(
                f"{workload.stated} cannot be played by units in one server: {ex}"
            ) from ex
        module.stop()


def _population(serving: Serving, application: str) -> Population:
    database = psycopg.conninfo.conninfo_to_dict(serving.dsn)["dbname"]
    # a few more than the load's, for those that come in the place of others
    sessions = serving.workload.clients + 4
    return Population(str(database), application=application, sessions=sessions)


def _measured(step: Step, setting: Setting) -> Done:
    study, units = setting.study, setting.study.protocol.units
    workload = study.the_workload(step.workload)
    design = design_of(study, workload, step.seed)
    spec = study.load_spec(workload, setting.directory, setting.rates.get(workload.stated))
    serving = setting.bench.serve(study.analysis.floor + SWITCHED, workload)
    cluster = serving.cluster
    with ExitStack() as stack:
        load = stack.enter_context(PgbenchLoad(find_pgbench(serving.binaries), serving.dsn, spec))
        conn = stack.enter_context(serving.connect())
        owner = stack.enter_context(trials.connect(cluster.dsn()))
        captures = {arm.name: study.the_variant(arm.name).capture for arm in design.arms}
        levels = stack.enter_context(Levels.open(captures, serving))
        began = time.monotonic()
        load.wait_ready()
        time.sleep(max(0.0, began + units.warm_up - time.monotonic()))
        load.check()
        count = evidence.counter(conn, workload.counter) if workload.counter else 0.0
        calm = evidence.disturbances(conn)
        idle = activity.read(conn, workload.activity)
        pid = cluster.postmaster_pid
        assert load.pid is not None
        pids = (pid, load.pid)
        ticks, own, before = sum(map(machine.tree_ticks, pids)), gates.own_s(), machine.usage()
        got = recording.record(
            Trials(owner), design, _population(serving, load.application_name),
            units.run, cpu=True, load=load, look=lambda seconds, data: False,
            tick=lambda seconds, rows: levels.look(),
        )  # fmt: skip
        if got.stopped_by == "interrupt":
            raise KeyboardInterrupt
        after, spent = machine.usage(), gates.own_s() - own
        ticks = sum(map(machine.tree_ticks, pids)) - ticks
        failures = sum(report.failed for report in load.progress)
        active = activity.read(conn, workload.activity)
        load.stop()
        time.sleep(SETTLE_S)
        now = evidence.disturbances(conn)
        counted = evidence.counter(conn, workload.counter) - count if workload.counter else None
        settings = evidence.not_in_force(conn)
        shown, against = levels.judge()
    found = gates.shares(before, after, ticks + round(spent / machine.tick_s()))
    data = got.observations
    transactions = len(finished(data))
    estimate = analyse(data, design, seed=step.seed)
    worked, idled = _activity(study, workload, design, data, idle, active)
    failed = [
        *([f"the trial ended early: {got.trouble}"] if got.trouble else ()),
        *settings,
        *against,
        *idled,
        *_spoiled(data, design, got),
        *gates.judge(before, after, found, study.gates),
        *load_gates(serving.workload, transactions, failures, counted),
        *evidence.judge_idle(workload, found.idle),
    ]
    events = tuple(what for what in calm if calm[what] != now[what])
    parts = {
        arm.name: Part(
            metrics=metrics, transactions=estimate.arms[i].n, events=events,
            evidence=(*shown.get(arm.name, ()), *worked),
        )
        for i, arm in enumerate(design.arms)
        if (metrics := _metrics(estimate, i))
    }  # fmt: skip
    if len(parts) < len(design.arms):
        failed.append("it has too few transactions to compare its arms")
    made = Run(
        step=step, began="", seconds=0.0, transactions=transactions, failed=tuple(failed),
        machine={
            "idle": found.idle, "steal": found.steal, "other": found.other,
            "rate_tps": spec.rate or 0.0, "blocks": estimate.blocks,
        },
        latency_samples=transactions, parts=parts,
    )  # fmt: skip
    return Done(made, {name: data[name] for name in data.dtype.names or ()})


def _activity(
    study: Study, workload: Workload, design: Design, data: Observations,
    before: Mapping[str, float], after: Mapping[str, float],
) -> tuple[list[str], list[str]]:  # fmt: skip
    """What all arms together made grow, held against the transactions of those that should."""
    counts = np.bincount(data["arm"], minlength=len(design.arms))
    return activity.judge(
        workload.activity, before, after,
        {arm.name: int(counts[i]) for i, arm in enumerate(design.arms)},
        {arm.name: study.the_variant(arm.name).in_force for arm in design.arms},
    )  # fmt: skip


def _spoiled(data: Observations, design: Design, got: recording.Recording) -> list[str]:
    """What speaks against the arms' having had their settings."""
    told = []
    status = got.status
    for arm in status.failed_arms if status else ():
        told.append(f"{design.arms[arm].name}: a session refused its settings")
    if status and status.sessions_lacking_settings:
        told.append(f"{status.sessions_lacking_settings} sessions lack a setting of the trial")
    if status and status.lost:
        told.append(f"{status.lost:,} transactions were lost, as they were read too slowly")
    changed = float(np.mean((data["flags"] & UnitFlag.APP_CHANGED) != 0)) if len(data) else 0.0
    if changed > _SPOILED:
        told.append(f"the load set settings of the variants itself in {100 * changed:.1f} % of "
                    "its transactions")  # fmt: skip
    return told


def _metrics(estimate: TrialEstimate, index: int) -> dict[str, float]:
    """An arm's figures, in µs: the base's, and what the arm costs when left on, on top."""
    base, arm = estimate.baseline, estimate.arms[index]
    body, cpu = base.body_mean_us, base.cpu_us
    if arm.effect is not None:
        body += arm.effect.body_us.estimate
        if cpu is not None:
            cpu = cpu + arm.effect.cpu_us.estimate if arm.effect.cpu_us is not None else None
    found = {
        "service_us": body, "service_p50_us": arm.p50_us, "service_p99_us": arm.p99_us,
        "cpu_us": math.nan if cpu is None else cpu,
    }  # fmt: skip
    return {name: float(v) for name, v in found.items() if math.isfinite(v) and v > 0}
