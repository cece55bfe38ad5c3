"""What of a study is run, in which order and where it is kept: from its file or directory."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pgtare
from pgtare.errors import UsageError
from pgtare.kit import machine
from pgtare.weighing.ladder import missing_clocks, scripts
from pgtare.weighing.ladder import study_file as studies
from pgtare.weighing.ladder.directory import Directory
from pgtare.weighing.ladder.records import Step, StudyFacts
from pgtare.weighing.ladder.rounds import all_steps
from pgtare.weighing.ladder.rounds import seconds as seconds_of
from pgtare.weighing.ladder.study import Study

_MACHINE = {"cpu_model": "the processor", "cpus_usable": "the number of usable processors"}


@dataclass(frozen=True)
class StudyPlan:
    """A study as it is being run: what of it, in which order, and where it is kept."""

    study: Study
    facts: StudyFacts
    steps: tuple[Step, ...]
    directory: Directory
    warnings: tuple[str, ...] = ()

    def seconds(self, steps: Sequence[Step]) -> float:
        """How long these steps take, about."""
        return _seconds(self.study, steps)


def _seconds(study: Study, steps: Sequence[Step]) -> float:
    return sum(seconds_of(study, step) for step in steps)


def plan(
    path: Path,
    out: Path,
    *,
    quick: bool,
    workloads: Sequence[str],
    seed: int | None,
    command: Sequence[str],
) -> StudyPlan:
    """A study from its file, to be begun in `out`.

    Raises UsageError for what is wrong in the file, and if `out` holds a study.
    """
    study, source = studies.read(path)
    directory = Directory(out)
    if directory.begun:
        raise UsageError(
            f"{out} holds a study: go on with `pgtare ladder resume {out}`, or name a new "
            "directory by --out"
        )
    left_out = missing_clocks.left_out(study)
    chosen = _chosen(study, quick, workloads, left_out)
    warning = studies.check_rounds(chosen, quick=quick)
    number = secrets.randbelow(2**31) if seed is None else seed
    _check_scripts(chosen, path.parent)
    facts = StudyFacts(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pgtare_version=pgtare.__version__,
        seed=number,
        quick=quick,
        workloads=names(chosen),
        study_file=str(path),
        study_directory=str(path.parent.absolute()),
        source=source,
        command=tuple(command),
        machine=machine.describe(),
        planned_s=_seconds(chosen, all_steps(chosen, number)),
        left_out=left_out,
    )
    return _planned(chosen, facts, directory, warning)


def resumed(out: Path) -> StudyPlan:
    """The study kept in a directory. Raises UsageError if there is none."""
    directory = Directory(out)
    facts = directory.facts()
    # as many clients as it was begun with, even if only its report is wanted elsewhere
    study = studies.parse(facts.source, facts.study_file, facts.machine.get("cpus_usable"))
    chosen = _chosen(study, facts.quick, facts.workloads, facts.left_out)
    return _planned(chosen, facts, directory, studies.check_rounds(chosen, quick=facts.quick))


def check_continued(
    begun: StudyFacts, planned: StudyFacts, servers: Mapping[str, str], directory: Path
) -> None:
    """Compare what a study was begun with to what it would go on with.

    planned: the facts that this process goes by; servers: the versions found, by name. Raises
    UsageError that names what differs: runs of both would be counted as one study's.
    """
    if begun != planned:
        raise UsageError(f"{directory} holds a study that was begun just now: start again")
    here = machine.describe()
    compared = [
        ("pgtare", begun.pgtare_version, pgtare.__version__),
        *(
            (f"the server {name}", begun.servers.get(name), found)
            for name, found in servers.items()
        ),
        *((what, begun.machine.get(key), here[key]) for key, what in _MACHINE.items()),
    ]
    changes = [f"{what} was {was} and is {now}" for what, was, now in compared if was != now]
    if changes:
        raise UsageError(
            f"the study in {directory} cannot go on as it was begun: {'; '.join(changes)}; go on "
            f"where that is as it was, or end it with `pgtare ladder report {directory} --close`"
        )


def _chosen(
    study: Study, quick: bool, workloads: Sequence[str], left_out: Mapping[str, str]
) -> Study:
    if study.analysis.floor in left_out:
        raise UsageError(
            f"the study cannot be run here: {study.analysis.floor}, its floor, is missing, as "
            f"{left_out[study.analysis.floor]}"
        )
    if quick:
        if workloads and study.quick.workloads is not None:
            asked = tuple(dict.fromkeys((*study.quick.workloads, *workloads)))
            quick_ones = study.quick.model_copy(update={"workloads": asked})
            study = study.model_copy(update={"quick": quick_ones})
        study = study.made_quick()
    if left_out:
        study = study.without(left_out)
    return study.only(workloads) if workloads else study


def names(study: Study) -> tuple[str, ...]:
    """Its workloads."""
    return tuple(w.name for w in study.workload)


def _planned(
    study: Study, facts: StudyFacts, directory: Directory, warning: str | None
) -> StudyPlan:
    steps = all_steps(study, facts.seed)
    warnings = [f"{name} is left out: {why}." for name, why in facts.left_out.items()]
    return StudyPlan(
        study, facts, steps, directory, (*([f"{warning}."] if warning else []), *warnings)
    )


def _check_scripts(study: Study, source: Path) -> None:
    with TemporaryDirectory(prefix="pgtare-scripts-") as folder:
        scripts.place(study, source, Path(folder))


def full_seconds(planned: StudyPlan) -> float:
    """How long the study takes that a quick one is made of, about."""
    facts = planned.facts
    full = studies.parse(facts.source, facts.study_file).without(facts.left_out)
    return _seconds(full, all_steps(full, facts.seed))
