"""What of a study is run, in which order and where it is kept: from its file or directory."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pgtare
from pgtare import machine
from pgtare.errors import UsageError
from pgtare.ladder import clocks, scripts
from pgtare.ladder import study_file as studies
from pgtare.ladder.directory import Directory
from pgtare.ladder.duet_rounds import Duet
from pgtare.ladder.kinds import Kind
from pgtare.ladder.protocol import StudyProtocol
from pgtare.ladder.records import Facts, Step
from pgtare.ladder.rounds import Rounds
from pgtare.ladder.study import Study
from pgtare.ladder.unit_trials import Units
from pgtare.load.duet_plan import CLIENT, compile_load

PROTOCOLS: dict[Kind, StudyProtocol] = {"rounds": Rounds(), "duet": Duet(), "units": Units()}


@dataclass(frozen=True)
class Planned:
    """A study as it is being run: what of it, in which order, and where it is kept."""

    study: Study
    facts: Facts
    steps: tuple[Step, ...]
    directory: Directory
    warnings: tuple[str, ...] = ()

    def seconds(self, steps: Sequence[Step]) -> float:
        """How long these steps take, about."""
        return sum(protocol_of(self.study, step).seconds(self.study, step) for step in steps)


def protocol_of(study: Study, step: Step) -> StudyProtocol:
    """The protocol that a step is done by."""
    return PROTOCOLS[study.kind(study.the_workload(step.workload))]


def all_steps(study: Study, seed: int) -> tuple[Step, ...]:
    """Every step of a study, workload by workload; the same for the same seed."""
    order = {workload.name: i for i, workload in enumerate(study.workload)}
    planned = [step for protocol in PROTOCOLS.values() for step in protocol.steps(study, seed)]
    planned.sort(key=lambda step: order[step.workload])
    # A workload that is played by several protocols is proven once, before all of them.
    once: dict[str, Step] = {}
    for step in planned:
        once.setdefault(step.id, step)
    return tuple(once.values())


def plan(
    path: Path,
    out: Path,
    *,
    quick: bool,
    workloads: Sequence[str],
    seed: int | None,
    command: Sequence[str],
) -> Planned:
    """A study from its file: begun anew in `out`, or gone on with where it was begun there.

    Raises UsageError for what is wrong in the file, and where `out` holds another study.
    """
    study, source = studies.read(path)
    directory = Directory(out)
    facts = directory.facts() if directory.begun else None
    left_out = clocks.left_out(study) if facts is None else facts.left_out
    chosen = _chosen(study, quick, workloads, left_out)
    told = studies.check_rounds(chosen, quick=quick)
    if facts is not None:
        asked = (source, quick, names(chosen), facts.seed if seed is None else seed)
        kept = (facts.source, facts.quick, facts.workloads, facts.seed)
        if asked != kept or not scripts.unchanged(chosen, path.parent, out):
            raise UsageError(
                f"{out} holds another study, or this one begun otherwise: name a new directory, or "
                f"go on with `pgtare ladder resume {out}`"
            )
        return _planned(chosen, facts, directory, told)
    number = secrets.randbelow(2**31) if seed is None else seed
    steps = all_steps(chosen, number)
    _check_scripts(chosen, path.parent)
    facts = Facts(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pgtare_version=pgtare.__version__, seed=number, quick=quick,
        workloads=names(chosen), study_file=str(path),
        study_directory=str(path.parent.absolute()), source=source, command=tuple(command),
        machine=machine.describe(),
        planned_s=sum(protocol_of(chosen, step).seconds(chosen, step) for step in steps),
        left_out=left_out,
    )  # fmt: skip
    return _planned(chosen, facts, directory, told)


def resumed(out: Path) -> Planned:
    """The study kept in a directory. Raises UsageError where there is none."""
    directory = Directory(out)
    facts = directory.facts()
    # as many clients as it was begun with, also where only its report is asked for elsewhere
    study = studies.parse(facts.source, facts.study_file, facts.machine.get("cpus_usable"))
    chosen = _chosen(study, facts.quick, facts.workloads, facts.left_out)
    return _planned(chosen, facts, directory, studies.check_rounds(chosen, quick=facts.quick))


def _chosen(
    study: Study, quick: bool, workloads: Sequence[str], left_out: Mapping[str, str]
) -> Study:
    if study.analysis.floor in left_out:
        raise UsageError(
            f"the study cannot be run here: {study.analysis.floor}, its floor, cannot be had, as "
            f"{left_out[study.analysis.floor]}"
        )
    if quick:
        if workloads and study.quick.workloads is not None:
            asked = tuple(dict.fromkeys((*study.quick.workloads, *workloads)))
            quick_ones = study.quick.model_copy(update={"workloads": asked})
            study = study.model_copy(update={"quick": quick_ones})
        study = study.made_quick()
    study = study.resolved()
    if left_out:
        study = study.without(left_out)
    return study.only(workloads) if workloads else study


def names(study: Study) -> tuple[str, ...]:
    """Its workloads as the file calls them, each once."""
    return tuple(dict.fromkeys(w.stated for w in study.workload))


def _planned(study: Study, facts: Facts, directory: Directory, told: str | None) -> Planned:
    steps = all_steps(study, facts.seed)
    warnings = [f"{name} is left out: {why}." for name, why in facts.left_out.items()]
    return Planned(study, facts, steps, directory, (*([f"{told}."] if told else []), *warnings))


def _check_scripts(study: Study, source: Path) -> None:
    with TemporaryDirectory(prefix="pgtare-scripts-") as folder:
        scripts.place(study, source, Path(folder))
        for workload in study.workload:
            spec = study.load_spec(workload, Path(folder), None)
            if study.kind(workload) == "duet":
                compile_load(spec, {"scale": workload.scale, CLIENT: 0})


def full_seconds(planned: Planned) -> float:
    """How long the study takes that a quick one is made of, about."""
    facts = planned.facts
    full = studies.parse(facts.source, facts.study_file).resolved().without(facts.left_out)
    steps = all_steps(full, facts.seed)
    return sum(protocol_of(full, step).seconds(full, step) for step in steps)
