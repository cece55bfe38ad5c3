"""Flame graphs of a study's variants: which are wanted, and the servers that are recorded.

Who records and draws them is given: a study knows nothing of perf.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from rich.console import Console

from pgtare.errors import PgtareError
from pgtare.kit.page_section import Addition
from pgtare.kit.progress import Display
from pgtare.postgres.load import PgbenchLoad, find_pgbench
from pgtare.weighing.ladder.planning import StudyPlan
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Workload
from pgtare.weighing.ladder.study_servers import Bench
from pgtare.weighing.ladder.wording import count

FOLDER = "flames"
_WARM_UP_S = 1.0
#: Starting a server and its load, about.
_SERVE_S = 5.0


class Flames(Protocol):
    """Records flame graphs of a server, and draws those of two variants."""

    @property
    def seconds(self) -> float:
        """How long one recording takes."""

    @property
    def modes(self) -> Sequence[str]:
        """The kinds of recordings."""

    def check(self) -> None:
        """Raise PgtareError if nothing can be recorded here."""

    def record(self, mode: str, postmaster: int, place: Path, tell: Callable[[str], None]) -> None:
        """Record a server's processes into a new directory."""

    def section(
        self, title: str, name: str, variants: Sequence[str], place: Callable[[str, str], Path]
    ) -> Addition:
        """A section of a page. place: of a recording, by variant and mode."""


@dataclass(frozen=True)
class _Part:
    """Recordings of one variant under one workload, below the study's directory."""

    study: Path
    workload: str
    variant: str
    left: tuple[str, ...]  # modes that are not recorded yet

    def place(self, mode: str) -> Path:
        """Where the recording of a mode is kept."""
        return _place(self.study, self.workload, self.variant, mode)


def _place(study: Path, workload: str, variant: str, mode: str) -> Path:
    return study / FOLDER / workload / f"{variant}-{mode}"


def wanted(planned: StudyPlan, flames: Flames) -> bool:
    """Whether the study requests flame graphs that are not there yet."""
    return bool(_missing(planned, flames))


def _missing(planned: StudyPlan, flames: Flames) -> list[_Part]:
    """What is still to be recorded, a part for each server and load."""
    study, path = planned.study, planned.directory.path
    found = []
    for name in _names(study):
        for variant in _pair(study, study.the_workload(name)):
            left = [m for m in flames.modes if not _place(path, name, variant, m).exists()]
            if left:
                found.append(_Part(path, name, variant, tuple(left)))
    return found


def _names(study: Study) -> list[str]:
    """The workloads to record, of those that are played."""
    played = {workload.name for workload in study.workload if study.compared(workload)}
    return [name for name in study.flames if name in played]


def record_all(planned: StudyPlan, flames: Flames, console: Console) -> None:
    """Record each variant of the first comparison on each workload that the study names.

    What may not be recorded here is said, and left out. The runs are over: none is disturbed.
    Raises KeyboardInterrupt after Ctrl-C; the study can be resumed, and records the rest.
    """

    def say(text: str) -> None:
        console.print(f"pgtare: {text}", highlight=False, markup=False)

    try:
        flames.check()
    except PgtareError as ex:
        say(f"no flame graphs: {ex}")
        return
    missing = _missing(planned, flames)
    expected_s = sum(_SERVE_S + len(part.left) * flames.seconds for part in missing)
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
                _record(planned, flames, bench, part, tell)
            except (PgtareError, psycopg.Error, OSError) as ex:
                say(f"no flame graphs of {part.variant} on {part.workload}: {ex}")


def additions(planned: StudyPlan, flames: Flames) -> list[Addition]:
    """A section for each workload that was recorded: both variants, and the change."""
    made = []
    study, path = planned.study, planned.directory.path
    for name in _names(study):

        def place(variant: str, mode: str, name: str = name) -> Path:
            return _place(path, name, variant, mode)

        pair = _pair(study, study.the_workload(name))
        if any(place(variant, mode).exists() for variant in pair for mode in flames.modes):
            made.append(flames.section(f"Flame graphs of {name}", name, pair, place))
    return made


def _pair(study: Study, workload: Workload) -> tuple[str, str]:
    """Base and arm of the first comparison of a workload."""
    compared = study.compared(workload)[0]
    return compared.base, compared.arm


def _record(
    planned: StudyPlan, flames: Flames, bench: Bench, part: _Part, tell: Callable[[str], None]
) -> None:
    study, directory = planned.study, planned.directory
    workload = study.the_workload(part.workload)
    rates = {name: rate.rate_tps for name, rate in directory.rates().items()}
    spec = study.load_spec(workload, directory.path, rates.get(workload.name))
    serving = bench.serve(part.variant, workload)
    with PgbenchLoad(find_pgbench(serving.binaries), serving.dsn, spec) as load:
        load.wait_ready()
        time.sleep(_WARM_UP_S)
        postmaster = serving.cluster.postmaster_pid

        def said(text: str) -> None:
            tell(f"{part.variant} on {part.workload}, {text}")

        for mode in part.left:
            flames.record(mode, postmaster, part.place(mode), said)
            load.check()
