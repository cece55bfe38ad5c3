"""Flame graphs of a study's variants: recorded after its runs, shown in its page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

from pgtare.errors import PgtareError
from pgtare.flame import keep, permission, show, targets
from pgtare.flame.page import fragment
from pgtare.flame.page import script as drawing
from pgtare.flame.record import Plan, record
from pgtare.flame.samples import Mode
from pgtare.ladder import run
from pgtare.ladder.bench import Bench
from pgtare.ladder.study import Study, Workload
from pgtare.load import PgbenchLoad, find_pgbench
from pgtare.report.addition import Addition

FOLDER = "flames"
_MODES: tuple[Mode, ...] = ("off", "on")
_SECONDS = 5.0
_WARM_UP_S = 1.0
_RATE = 499


def wanted(planned: run.Planned) -> bool:
    """Whether the study asks for flame graphs that are not there yet."""
    return any(not _is_whole(place) for place in _places(planned))


def _names(study: Study) -> list[str]:
    """The workloads to record, of those that are played."""
    played = {workload.stated for workload in study.workload if study.compared(workload)}
    return [name for name in study.flames if name in played]


def _workload(study: Study, name: str) -> Workload:
    """The workload by its name in the file, by the first of its protocols that compares any."""
    return next(w for w in study.workload if w.stated == name and study.compared(w))


def record_all(planned: run.Planned, say: Callable[[str], None]) -> None:
    """Record each variant of the first comparison on each workload that the study names.

    What perf may not do here is said, and left out. The runs are over: none is disturbed.
    """
    study = planned.study
    try:
        permission.find_perf()
        permission.check("off", [])
    except PgtareError as ex:
        say(f"no flame graphs: {ex}")
        return
    with Bench(study, planned.directory.path) as bench:
        for name in _names(study):
            workload = _workload(study, name)
            for variant in _pair(study, workload):
                say(f"recording flame graphs of {variant} on {name}")
                try:
                    _record(planned, bench, workload, variant)
                except (PgtareError, psycopg.Error, OSError) as ex:
                    say(f"no flame graphs of {variant}: {ex}")


def additions(planned: run.Planned) -> list[Addition]:
    """A section for each workload that was recorded: both variants, and the change."""
    made = []
    for name in _names(planned.study):
        graphs = []
        notes: list[str] = []
        for mode in _MODES:
            pair = _pair(planned.study, _workload(planned.study, name))
            places = [_place(planned, name, variant, mode) for variant in pair]
            if not all(_is_whole(place) for place in places):
                continue
            found = []
            for variant, place in zip(pair, places, strict=True):
                recording = keep.load(place)
                profile = show.main_profile(mode, recording.samples, idle=mode == "on")
                found.append(profile)
                title = f"{show.TITLES[mode]}: {variant}"
                graphs.append(show.alone(profile, f"{name}-{variant}-{mode}", title))
                notes += [f"{variant}: {note}" for note in recording.notes]
            change = show.difference(*found, id=f"{name}-change-{mode}", names=(pair[0], pair[1]))
            graphs.append(change)
        if not graphs:
            continue
        made.append(Addition(f"Flame graphs of {name}", fragment(graphs, notes), drawing()))
    return made


def _pair(study: Study, workload: Workload) -> Sequence[str]:
    """Base and arm of the first comparison of a workload."""
    compared = study.compared(workload)[0]
    return compared.base, compared.arm


def _place(planned: run.Planned, workload: str, variant: str, mode: Mode) -> Path:
    return planned.directory.path / FOLDER / workload / f"{variant}-{mode}"


def _places(planned: run.Planned) -> list[Path]:
    study = planned.study
    return [
        _place(planned, name, variant, mode)
        for name in _names(study)
        for variant in _pair(study, _workload(study, name))
        for mode in _MODES
    ]


def _is_whole(place: Path) -> bool:
    """Whether a recording is there; one that was broken off lacks what is written last."""
    return (place / keep.DOCUMENT).exists()


def _record(planned: run.Planned, bench: Bench, workload: Workload, variant: str) -> None:
    study, directory = planned.study, planned.directory
    rates = {name: rate.rate_tps for name, rate in directory.rates().items()}
    spec = study.load_spec(workload, directory.path, rates.get(workload.stated))
    serving = bench.serve(variant, workload)
    with PgbenchLoad(find_pgbench(serving.binaries), serving.dsn, spec) as load:
        load.wait_ready()
        time.sleep(_WARM_UP_S)
        target = targets.of_postmaster(serving.cluster.postmaster_pid)
        for mode in _MODES:
            place = _place(planned, workload.stated, variant, mode)
            if not _is_whole(place):
                shutil.rmtree(place, ignore_errors=True)
                keep.save(place, record(Plan(mode, target, _SECONDS, _RATE)))
