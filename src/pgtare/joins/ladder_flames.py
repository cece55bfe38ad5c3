"""Flame graphs of a study's variants: recorded after its runs, shown in its page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from rich.console import Console

from pgtare.errors import PgtareError
from pgtare.kit.page_section import Addition
from pgtare.kit.progress import Display
from pgtare.load import PgbenchLoad, find_pgbench
from pgtare.seeing.flame import perf, processes, show
from pgtare.seeing.flame import profile as profiles
from pgtare.seeing.flame import recording as keep
from pgtare.seeing.flame.record import record
from pgtare.seeing.flame.recording import Mode
from pgtare.weighing.ladder.bench import Bench
from pgtare.weighing.ladder.planning import StudyPlan
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Workload
from pgtare.weighing.ladder.wording import count

FOLDER = "flames"
_MODES: tuple[Mode, ...] = ("off", "on")
_SECONDS = 5.0
_WARM_UP_S = 1.0
_RATE = 499
#: Starting a server and its load, about.
_SERVE_S = 5.0


def wanted(planned: StudyPlan) -> bool:
    """Whether the study requests flame graphs that are not there yet."""
    return bool(_missing(planned))


def _missing(planned: StudyPlan) -> list[_Part]:
    """What is still to be recorded, a part for each server and load."""
    return [
        part
        for name in _names(planned.study)
        for variant in _pair(planned.study, planned.study.the_workload(name))
        if (part := _Part(planned.directory.path, name, variant)).left
    ]


def _names(study: Study) -> list[str]:
    """The workloads to record, of those that are played."""
    played = {workload.name for workload in study.workload if study.compared(workload)}
    return [name for name in study.flames if name in played]


@dataclass(frozen=True)
class _Part:
    """Recordings of one variant under one workload, below the study's directory."""

    study: Path
    workload: str
    variant: str

    def place(self, mode: Mode) -> Path:
        """Where the recording of a mode is kept."""
        return self.study / FOLDER / self.workload / f"{self.variant}-{mode}"

    @property
    def left(self) -> list[Mode]:
        """What is not recorded yet."""
        return [mode for mode in _MODES if not self.place(mode).exists()]


def record_all(planned: StudyPlan, console: Console) -> None:
    """Record each variant of the first comparison on each workload that the study names.

    What perf may not do here is said, and left out. The runs are over: none is disturbed. Raises
    KeyboardInterrupt after Ctrl-C; the study can be resumed, and records the rest.
    """

    def say(text: str) -> None:
        console.print(f"pgtare: {text}", highlight=False, markup=False)

    try:
        perf.find_perf()
        perf.check_allowed("off", [])
    except PgtareError as ex:
        say(f"no flame graphs: {ex}")
        return
    missing = _missing(planned)
    expected_s = sum(_SERVE_S + len(part.left) * _SECONDS for part in missing)
    begin = time.monotonic()
    title = f"recording {count(sum(len(part.left) for part in missing), 'flame graph')}"
    with (
        Display(console, title, expected_s) as display,
        Bench(planned.study, planned.directory.path) as bench,
    ):

        def tell(text: str) -> None:
            display.tick(min(time.monotonic() - begin, expected_s), text)

        for part in missing:
            tell(f"{part.variant} on {part.workload}")
            try:
                _record(planned, bench, part, tell)
            except (PgtareError, psycopg.Error, OSError) as ex:
                say(f"no flame graphs of {part.variant} on {part.workload}: {ex}")


def additions(planned: StudyPlan) -> list[Addition]:
    """A section for each workload that was recorded: both variants, and the change."""
    made = []
    for name in _names(planned.study):
        pair = _pair(planned.study, planned.study.the_workload(name))
        parts = [_Part(planned.directory.path, name, variant) for variant in pair]
        if not any(part.place(mode).exists() for part in parts for mode in _MODES):
            continue
        graphs: list[show.Graph] = []
        notes: list[str] = []
        for mode in _MODES:
            drawn, drawn_notes = _drawn(parts, mode)
            graphs += drawn
            notes += drawn_notes
        html = show.fragment(graphs, list(dict.fromkeys(notes)))
        made.append(Addition(f"Flame graphs of {name}", html, show.script()))
    return made


def _drawn(parts: Sequence[_Part], mode: Mode) -> tuple[list[show.Graph], list[str]]:
    """The graphs of one mode, the change last, and notes on them."""
    found, graphs, notes = [], [], []
    for part in parts:
        title = f"{show.TITLES[mode]}: {part.variant}"
        if not part.place(mode).exists():
            notes.append(f"{title}: not recorded.")
            continue
        recording = keep.load(part.place(mode))
        profile = profiles.profile(recording.shown())
        found.append(profile)
        id = f"{part.workload}-{part.variant}-{mode}"
        graphs.append(show.alone(profile, id, title, recording.duration_s))
        notes += [f"{part.variant}: {note}" for note in recording.notes]
    if len(found) == len(parts):
        before, after = parts
        graphs.append(
            show.difference(
                *found,
                id=f"{before.workload}-change-{mode}",
                names=(before.variant, after.variant),
                what=show.TITLES[mode],
            )
        )
    return graphs, notes


def _pair(study: Study, workload: Workload) -> tuple[str, str]:
    """Base and arm of the first comparison of a workload."""
    compared = study.compared(workload)[0]
    return compared.base, compared.arm


def _record(planned: StudyPlan, bench: Bench, part: _Part, tell: Callable[[str], None]) -> None:
    study, directory = planned.study, planned.directory
    workload = study.the_workload(part.workload)
    rates = {name: rate.rate_tps for name, rate in directory.rates().items()}
    spec = study.load_spec(workload, directory.path, rates.get(workload.name))
    serving = bench.serve(part.variant, workload)
    with PgbenchLoad(find_pgbench(serving.binaries), serving.dsn, spec) as load:
        load.wait_ready()
        time.sleep(_WARM_UP_S)
        target = processes.of_postmaster(serving.cluster.postmaster_pid)
        for mode in part.left:
            text = f"{part.variant} on {part.workload}, {show.TITLES[mode].lower()}"
            recording = record(
                mode, target, _SECONDS, _RATE, lambda *progress, text=text: tell(text)
            )
            if recording.stopped_by == "interrupt":
                raise KeyboardInterrupt
            load.check()
            part.place(mode).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            keep.save(part.place(mode), recording)
