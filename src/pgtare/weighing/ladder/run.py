"""Runs a study: rehearsal, proofs, runs, in the order of its seed; what is done is kept."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psycopg
from rich.console import Console

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit.numbers import counted
from pgtare.postgres.own_session import first_line
from pgtare.weighing.ladder import (
    analysis,
    evidence,
    gates,
    planning,
    rounds,
    scripts,
    server_reading,
    settings_check,
)
from pgtare.weighing.ladder.directory import Directory
from pgtare.weighing.ladder.planning import StudyPlan, full_seconds, names
from pgtare.weighing.ladder.progress import Display, span
from pgtare.weighing.ladder.records import Run, Step
from pgtare.weighing.ladder.remaining_steps import remaining
from pgtare.weighing.ladder.result import LadderResult
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_servers import Bench

ASKING = "asking the servers about the study's settings"
#: This many runs in a row that could not be made at all end the study: something is broken.
_HOPELESS = 4
#: How often a proof is tried again that failed, if not by its profile alone.
_PROOFS_AGAIN = 5
#: How much longer than planned a run may take; it may have to fill tables first.
_PATIENCE_S = 3600.0


def conduct(planned: StudyPlan, console: Console) -> None:
    """Do what is still to be done. Everything done is kept, whatever ends it.

    Raises UsageError if the study cannot be run here, MeasurementError if a variant cannot
    start or too many runs in a row fail.
    """
    study, directory = planned.study, planned.directory
    if directory.closed:
        raise UsageError(f"the study in {directory.path} was ended by hand, for good")
    try:
        with Bench(study, directory.path) as bench:
            skipped = skipped_workloads(study, bench, planned.facts.servers)
            kept = directory.runs() if directory.begun else {}
            if not directory.begun or remaining(study, planned.steps, kept, skipped):
                bench.check_disk()
                if not directory.begun:
                    with console.status(f"pgtare: {ASKING}"):
                        settings_check.check(study, bench, skipped)
                with directory.locked():
                    _go(planned, bench, skipped, console)
    except BrokenPipeError:
        raise
    except (OSError, psycopg.Error) as ex:
        raise MeasurementError(f"the study was stopped by an error: {_error_text(ex)}") from ex


def _error_text(ex: OSError | psycopg.Error) -> str:
    if isinstance(ex, psycopg.Error):
        return first_line(ex)
    return ": ".join(str(part) for part in (ex.strerror, ex.filename) if part) or str(ex)


def _go(planned: StudyPlan, bench: Bench, skipped: dict[str, str], console: Console) -> None:
    study, directory = planned.study, planned.directory
    servers = {v.server: bench.binaries(v.server).version for v in study.variant}
    if directory.begun:
        planning.check_continued(directory.facts(), planned.facts, servers, directory.path)
    else:
        source = Path(planned.facts.study_directory)
        directory.begin(
            planned.facts.model_copy(update={"servers": servers}),
            lambda target: scripts.place(study, source, target),
        )
    runs = directory.runs()
    steps = remaining(study, planned.steps, runs, skipped)
    with Display(console, planned.seconds(steps)) as display:
        display.say(_announcement(planned, steps, runs))
        for name, why in skipped.items():
            display.say(f"{name} is left out: {why}")
        if not steps:
            return
        if not runs:
            _rehearse(study, bench, skipped, display)
        _conduct(planned, bench, runs, skipped, display)


def skipped_workloads(study: Study, bench: Bench, known: Mapping[str, str]) -> dict[str, str]:
    """Workloads that these servers cannot run, with the reason.

    known: the servers' versions, if the study was begun; they need not be here any more.
    """
    found = {workload.name: bench.serves(workload, known) for workload in study.workload}
    return {name: why for name, why in found.items() if why}


def result(planned: StudyPlan) -> LadderResult:
    """The result of what has been done so far."""
    facts = planned.directory.facts()
    with Bench(planned.study) as bench:
        skipped = skipped_workloads(planned.study, bench, facts.servers)
    return analysis.analyse(
        planned.study,
        facts,
        planned.steps,
        planned.directory.runs(),
        planned.directory.rates(),
        directory=planned.directory.path,
        closed=planned.directory.closed,
        skipped=skipped,
        warnings=planned.warnings,
    )


def _announcement(planned: StudyPlan, steps: Sequence[Step], runs: dict[str, Run]) -> str:
    seconds = planned.seconds(steps)
    if runs:
        return f"{counted(len(runs), 'run')} kept, {len(steps)} left: about {span(seconds)}"
    study = planned.study
    whole = f" (the whole study: {span(full_seconds(planned))})" if planned.facts.quick else ""
    return (
        f"{len(steps)} runs: {counted(len(names(study)), 'workload')}, {rounds.layout(study)}, "
        f"and a proof of each workload's waits; this takes about {span(seconds)}{whole}; seed "
        f"{planned.facts.seed}"
    )


def _rehearse(study: Study, bench: Bench, skipped: dict[str, str], display: Display) -> None:
    """Start every variant once, and every workload once, before hours are spent."""
    possible = [w for w in study.workload if w.name not in skipped]
    if not possible:
        raise UsageError("no workload of the study can be run on its servers")
    display.say("starting every variant once")
    starts = [(f"variant {one.name}", one, possible[0]) for one in study.variant]
    starts += [(f"workload {one.name}", study.variant[0], one) for one in possible[1:]]
    for what, variant, workload in starts:
        try:
            serving = bench.serve(variant.name, workload)
            with serving.connect() as conn:
                server_reading.read(serving, conn)  # the study's queries may give no number
        except MeasurementError as ex:
            raise MeasurementError(f"the {what} cannot start: {ex}") from ex


def _conduct(
    planned: StudyPlan,
    bench: Bench,
    runs: dict[str, Run],
    skipped: dict[str, str],
    display: Display,
) -> None:
    study, directory = planned.study, planned.directory
    rates = {name: rate.rate_tps for name, rate in directory.rates().items()}
    context = rounds.StepContext(study, bench, directory.path, rates, scratch=directory.scratch())
    unmade: list[str] = []
    tried_again = Counter[str]()
    while steps := remaining(study, planned.steps, runs, skipped):
        step = steps[0]
        workload = study.the_workload(step.workload)
        display.step(_name(step, study), planned.seconds(steps))
        name = workload.name
        if workload.load is not None and name not in rates:
            display.say(f"{name}: finding the saturation rate")
            try:
                with watched(_PATIENCE_S, bench.kill):
                    rate = rounds.find_rate(workload, context)
            except (MeasurementError, psycopg.Error, OSError) as ex:
                display.say(f"{name}: no rate was found: {ex}")
                unmade.append(step.id)
                _end_if_hopeless(directory, runs, unmade, f"no rate was found: {ex}")
                continue
            directory.keep_rate(rate)
            rates[name] = rate.rate_tps
        with watched(_PATIENCE_S + 2 * rounds.seconds(study, step), bench.kill):
            run, samples = rounds.play(step, context)
        # A proof that could not be made says nothing of the profile.
        again = why_again(run, study) if tried_again[step.id] < _PROOFS_AGAIN else []
        tried_again[step.id] += bool(again)
        if step.kind == "run" or (run.made and not again):
            directory.keep(run, samples)
            runs[step.id] = run
        for reason in dict.fromkeys([*run.failed, *again]):
            display.say(f"{_name(step, study)}: {reason}")
        if run.made:
            unmade.clear()
        else:
            unmade.append(step.id)
            _end_if_hopeless(directory, runs, unmade, run.failed[0])


@contextlib.contextmanager
def watched(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    """Call `end`, in another thread, if the block takes longer than this.

    A statement that waits for its answer cannot be given up by its client; it fails as soon as its
    server is gone.
    """
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def why_again(run: Run, study: Study) -> list[str]:
    """What but its profile made a proof fail, or may have: a hiccup, other work on the machine."""
    if run.step.kind != "proof" or not run.made or not run.failed:
        return []
    workload = study.the_workload(run.step.workload)
    of_profile = {
        *evidence.missed(workload, run.waits),
        *evidence.judge_idle(workload, run.machine["idle"]),
    }
    return [
        *(reason for reason in run.failed if reason not in of_profile),
        *gates.disturbed(run.machine["steal"], run.machine["other"], study.gates),
    ]


def _end_if_hopeless(
    directory: Directory, runs: Mapping[str, Run], unmade: Sequence[str], why: str
) -> None:
    """End the study after too many in a row. Those that measured nothing do not count as done."""
    if len(unmade) >= _HOPELESS:
        directory.forget(name for name in unmade if name in runs and not runs[name].latency_samples)
        raise MeasurementError(
            f"{len(unmade)} runs in a row could not be made, the last because "
            f"{why.rstrip('.')}; they are left for when the study goes on, and what was measured "
            f"is kept in {directory.path}"
        )


def _name(step: Step, study: Study) -> str:
    if step.kind == "proof":
        return f"{step.workload}, proof of its waits"
    return f"{step.workload}, round {step.round} of {study.protocol.rounds}, {step.variant}"
