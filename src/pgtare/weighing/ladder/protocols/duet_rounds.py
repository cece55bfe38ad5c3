"""The protocol of duet rounds in a study: every variant up at once, data directories exchanged.

A step is a round: each cluster plays the variant that its role says, and the load alternates
between them. The sets of rounds, over which placement cancels, are what is compared.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pgtare.errors import MeasurementError
from pgtare.estimate.study import duet as estimate
from pgtare.kit import machine
from pgtare.kit.window import Window
from pgtare.postgres.load import LoadSpec
from pgtare.postgres.load.duet import DuetRun
from pgtare.postgres.load.duet_plan import CLIENT, MAX_CLUSTERS, Length, compile_load
from pgtare.postgres.load.duet_records import Outcome
from pgtare.postgres.load.headroom import PROBE_S, PROBES, Saturation
from pgtare.weighing.ladder import evidence, gates, server_reading
from pgtare.weighing.ladder.blocks import Gathered, named_first, parts_of, reasons_against
from pgtare.weighing.ladder.declared_study import DeclaredStudy
from pgtare.weighing.ladder.duet_clusters import judge, load_seed, roles_of_set
from pgtare.weighing.ladder.protocol import (
    StepContext,
    StepResult,
    StudyProtocol,
    Words,
)
from pgtare.weighing.ladder.protocols.rounds import SETTLE_S, load_gates
from pgtare.weighing.ladder.records import ALL, Part, Rate, Run, Step
from pgtare.weighing.ladder.server_reading import ServerReading
from pgtare.weighing.ladder.study_sections import Metric, Workload
from pgtare.weighing.ladder.study_servers import MB_A_SCALE, Bench

#: Waits for what servers side by side share.
_SHARED = ("IO/", "LWLock/", "Lock/", "BufferPin/", "Buffer/")
#: A server's stop, start and making ready.
_RESTART_S = 0.3
#: Looking at a server before, in and after a round.
_LOOKS_S = 0.1
#: A server's making, and filling its tables for one scale.
_MAKE_S, _SCALE_S = 3.0, 0.15
#: An empty server, and the WAL of filling its tables.
_SERVER_MB = 300
# A stream of its own below a study's seed.
_WORKLOADS = 6
_STATISTICS: dict[Metric, estimate.Statistic] = {
    "latency_mean_us": "mean",
    "latency_p50_us": "p50",
    "latency_p95_us": "p95",
    "latency_p99_us": "p99",
}


class DuetRounds(StudyProtocol):
    """Sets of duet rounds, roles by randomised Latin squares."""

    name = "duet"
    words = Words(
        "duet",
        "set",
        "duet sets",
        "round",
        "server",
        explained="Duet: the servers of all variants run at the same time, and one load takes "
        "turns between them; a set is as many rounds as there are servers.",
    )
    not_shown = (
        "In a duet the servers take turns on the same processors: what a variant does to the "
        "caches falls on the others too, so that a difference may come out too small, and every "
        "transaction finds them colder than in a run alone; throughput is not measured."
    )
    section = ".duet"

    def why_not(self, study: DeclaredStudy, workload: Workload, cores: int) -> str:
        why = _spoiled(workload, len(study.variant), cores)
        accompanied = [variant.name for variant in study.variant if variant.companion]
        if not why and accompanied:
            why = f"the companion of {accompanied[0]} runs in whole runs of one server only"
        if why:
            return f"{why}: play it by rounds"
        if workload.metric == "tps":
            return 'it tests tps, which a duet does not measure: test "latency_p50_us"'
        return ""

    def blocks(self, study: DeclaredStudy) -> int:
        return study.protocol.duet.sets

    def check_load(self, workload: Workload, spec: LoadSpec) -> None:
        """Whether the driver understands its scripts."""
        compile_load(spec, {"scale": workload.scale, CLIENT: 0})

    def disk_mb(self, study: DeclaredStudy, workload: Workload) -> float:
        return len(study.members) * (MB_A_SCALE * workload.scale + _SERVER_MB)

    def plan(self, study: DeclaredStudy, seed: int) -> tuple[Step, ...]:
        """For each workload its sets, each of as many rounds as there are roles."""
        planned: list[Step] = []
        names = study.members
        for index, workload in self.own_workloads(study):
            own = int(np.random.default_rng((seed, _WORKLOADS, index)).integers(2**31))
            rounds = [
                roles
                for number in range(study.protocol.duet.sets)
                for roles in roles_of_set(own, number, len(names))
            ]
            planned += [
                Step(
                    id=f"{workload.name}-{number:04}-duet",
                    kind="run",
                    workload=workload.name,
                    variant=ALL,
                    round=number,
                    roles=tuple(names[role] for role in roles),
                    seed=load_seed(own, number),
                )
                for number, roles in enumerate(rounds, start=1)
            ]
        return tuple(planned)

    def seconds(self, study: DeclaredStudy, step: Step) -> float:
        """Restarts, warm-up and run; for the first round, also the making of the clusters."""
        workload, duet = study.the_workload(step.workload), study.protocol.duet
        n = len(study.members)
        making = n * (_MAKE_S + _SCALE_S * workload.scale) if step.round == 1 else 0.0
        return making + n * (_RESTART_S + _LOOKS_S) + SETTLE_S + duet.warm_up + duet.run

    def rehearse(self, study: DeclaredStudy, bench: Bench, workload: Workload) -> None:
        """Start all its servers."""
        bench.duet(workload, study.members)

    def rate_name(self, workload: Workload) -> str:
        """The proof, a whole run of the same load, has a rate of its own."""
        return f"{workload.name} by {self.name}"

    def server_rate(
        self, study: DeclaredStudy, workload: Workload, rates: Mapping[str, float]
    ) -> float | None:
        """The share of saturation is that of all together, so the servers divide it."""
        rate = super().server_rate(study, workload, rates)
        return rate / len(study.members) if rate else None

    def rate(self, workload: Workload, context: StepContext) -> Rate:
        """Its share of what all its servers together do at full speed.

        That is less than one server does alone: each has its turn in caches that the others filled.
        """
        study = context.study
        block = context.bench.duet(workload, study.members)
        block.assign(tuple(range(len(block.variants))))
        spec = study.load_spec(workload, context.directory, None)
        length = Length(PROBE_S, warmup_s=study.protocol.duet.warm_up)
        probes = []
        with TemporaryDirectory(dir=context.scratch) as scratch:
            for number in range(PROBES):
                run = block.drive(spec, length, Path(scratch, str(number)))
                if not run.whole:
                    raise MeasurementError(run.failure or "it was interrupted")
                answered = int((run.records.measured["outcome"] == Outcome.OK).sum())
                if not answered:
                    raise MeasurementError(f"the load did no transaction in a probe of {PROBE_S} s")
                probes.append(answered / PROBE_S)
        return self.rate_of(workload, Saturation(tuple(probes), PROBE_S))

    def gather(self, study: DeclaredStudy, workload: Workload, runs: Iterable[Run]) -> Gathered:
        """A block is a set of rounds, in which every variant played every cluster once.

        So placement cancels. A variant's figure is its geometric mean over the set, and so the
        log-ratio of two variants the mean of the rounds' log-ratios.
        """
        size = len(study.members)
        by_set: dict[int, dict[int, Run]] = defaultdict(dict)
        for run in runs:
            by_set[(run.step.round - 1) // size + 1][run.step.round] = run
        found = Gathered()
        for number, rounds in sorted(by_set.items()):
            if len(rounds) < size:
                continue
            blocks, reasons, at_fault = [], [], []
            for at, run in sorted(rounds.items()):
                block = parts_of(run)
                against = reasons_against(workload, block, list(run.failed), found)
                at_fault += named_first(against, run.step.roles)
                reasons += [f"round {at}: {reason}" for reason in against]
                blocks.append(block)
            if reasons:
                found.drop(number, reasons, at_fault)
            else:
                found.kept[number] = {name: _mean([b[name] for b in blocks]) for name in blocks[0]}
        return found

    def layout(self, study: DeclaredStudy) -> str:
        duet, n = study.protocol.duet, len(study.members)
        return f"{duet.sets} duet sets of {n} rounds of {duet.run} s, {n} servers up together"

    def how(self, protocol: Mapping[str, Any], n: int, floor: str) -> str:
        duet = protocol[self.name]
        return (
            f"duet, {n} servers up together ({floor} twice, the floor), one load alternating "
            f"between them; sets of {n} rounds of {duet['run']} s after {duet['warm_up']} s of "
            "warm-up, in which every variant plays every data directory once, by lot"
        )

    def measure(self, step: Step, context: StepContext) -> StepResult:
        """One round, from its roles to its gates."""
        study = context.study
        workload = study.the_workload(step.workload)
        names = study.members
        block = context.bench.duet(workload, names)
        roles = tuple(names.index(name) for name in step.roles)
        block.assign(roles)
        servings = context.bench.servings(block, step.roles, workload)
        rate = self.server_rate(study, workload, context.rates)
        spec = study.load_spec(workload, context.directory, rate)
        spec = dataclasses.replace(spec, seed=step.seed)
        length = Length(study.protocol.duet.run, warmup_s=study.protocol.duet.warm_up)
        runs: list[DuetRun] = []
        with ExitStack() as stack:
            scratch = stack.enter_context(TemporaryDirectory(dir=context.scratch))
            conns = [stack.enter_context(serving.connect()) for serving in servings]
            looks = [stack.enter_context(evidence.SessionsLook(serving)) for serving in servings]

            def read() -> list[ServerReading]:
                # A server that left the load without an answer may leave us without one too.
                if any(judge(run, roles)[0] is None for run in runs):
                    return []
                return [server_reading.read(*both) for both in zip(servings, conns, strict=True)]

            pids = [serving.cluster.postmaster_pid for serving in servings]
            with Window(pids, read, settle_s=SETTLE_S) as window:
                # Early, as looking at many servers takes a while.
                tick = _looking(looks, length.warmup_s)
                runs.append(block.drive(spec, length, Path(scratch, "round"), on_progress=tick))
        (run,) = runs
        statistics, dropped = judge(run, roles)
        shares = window.shares
        failed = [
            *([dropped] if dropped else []),
            *gates.judge(window.before, window.after, shares, study.gates),
            *evidence.judge_idle(workload, shares.idle),
        ]
        parts: dict[str, Part] = {}
        for i, (role, look) in enumerate(zip(step.roles, looks, strict=True)):
            if statistics is None:
                break
            answered = _count(run, i, Outcome.OK)
            first, last = window.first[i], window.last[i]
            seconds = length.warmup_s + length.duration_s
            waits = evidence.profile(first.events, last.events, seconds, spec.clients, answered)
            shown, against = evidence.judge_capture(look, waits)
            grown = last.counter - first.counter
            conflicts = _count(run, i, Outcome.CONFLICT)
            reasons = [*last.refused, *against, *load_gates(workload, answered, conflicts, grown)]
            failed += [f"{role}: {reason}" for reason in reasons]
            variant = names.index(role)
            metrics: dict[str, float] = {
                name: float(statistics.latency_us[statistic][variant])
                for name, statistic in _STATISTICS.items()
            }
            cpu_us = 1e6 * window.ticks[i] * machine.tick_s() / max(answered, 1)
            parts[role] = Part(
                metrics={**metrics, "cpu_us": cpu_us},
                transactions=answered,
                events=last.disturbed(first),
                waits=waits,
                evidence=tuple(shown),
                remarks=evidence.remarks(workload, waits),
            )
        made = Run(
            step=step,
            transactions=sum(p.transactions for p in parts.values()),
            failed=tuple(failed),
            machine={
                **dataclasses.asdict(shares),
                "rate_tps": spec.rate or 0.0,
                "cycles": statistics.cycles if statistics else 0,
            },
            latency_samples=len(run.records.measured),
            parts=parts,
        )
        return StepResult(made, run.records.columns())


def _spoiled(workload: Workload, variants: int, cores: int) -> str:
    """What would make a workload of so many variants another load in a duet; or "".

    Each server gets a share of the concurrency only, and all share page cache, disk and its queue.
    """
    if variants >= MAX_CLUSTERS:
        return f"its {variants} variants and the floor again need more than {MAX_CLUSTERS} servers"
    if workload.clients > cores:
        return (
            f"it has more clients ({workload.clients}) than the machine has processors ({cores}) "
            "and each server would get a share of the concurrency only"
        )
    if workload.is_writing:
        return "it writes and the servers would share the disk's queue"
    if workload.figure:
        return "its figures are counted in whole runs of one server"
    if workload.activity:
        return "its activity is checked in whole runs of one server"
    for expected in workload.profile:
        if expected.at_least is None:
            continue
        for event in expected.events:
            if event.startswith(_SHARED):
                shared = "the page cache and the disk" if event.startswith("IO/") else "the load"
                return f"it is about waits of {event} and the servers would share {shared}"
    return ""


def _looking(looks: Iterable[Callable[[], None]], due_s: float) -> Callable[[float, int], None]:
    """What makes each look once in a round, from the thread that reads the driver's progress."""
    left = list(looks)

    def tick(seconds: float, _transactions: int) -> None:
        while left and seconds >= due_s:
            left.pop(0)()

    return tick


def _count(run: DuetRun, cluster: int, outcome: Outcome) -> int:
    """Transactions of a cluster that ended so, the warm-up's included."""
    rows = run.records.rows
    return int(((rows["cluster"] == cluster) & (rows["outcome"] == outcome)).sum())


def _mean(runs: list[Run]) -> Run:
    """A variant's rounds of a set as one run, the last with the geometric means of all."""
    names = [n for n in runs[0].metrics if all(run.metrics.get(n, 0.0) > 0 for run in runs)]
    means = {
        name: float(np.exp(np.mean([np.log(run.metrics[name]) for run in runs]))) for name in names
    }
    total = sum(run.transactions for run in runs)
    return runs[-1].model_copy(update={"metrics": means, "transactions": total})
