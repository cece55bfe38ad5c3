"""Reads a study file and checks it: every error names its file and key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError

from pgtare.errors import UsageError
from pgtare.estimate.study.attainable import attainable_p, rounds_for_level
from pgtare.postgres.load.spec import cores as usable_cores
from pgtare.weighing.instruments.catalogue import first_fault, near
from pgtare.weighing.ladder.field_types import CORES
from pgtare.weighing.ladder.study import Study


def read(path: Path) -> tuple[Study, str]:
    """A study and its text. Raises UsageError naming file and key for what is wrong."""
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as ex:
        raise UsageError(f"cannot read the study {path}: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"the study {path} is not UTF-8 text") from ex
    return parse(source, str(path)), source


def parse(source: str, file: str, cores: int | None = None) -> Study:
    """A study from its text; `file` is for messages, `cores` are those it was begun on."""
    cores = cores or usable_cores()
    try:
        document = tomllib.loads(source)
    except tomllib.TOMLDecodeError as ex:
        raise UsageError(f"{file}: {ex}") from ex
    try:
        study = Study.model_validate(document, context={CORES: cores})
    except ValidationError as ex:
        raise UsageError(f"{file}: {first_fault(ex, _keys_at)}") from ex
    _check_names(study, file)
    return study


def check_rounds(study: Study, *, quick: bool) -> str | None:
    """Whether the rounds can reach the declared level at all.

    Raises UsageError if they cannot; with `quick` the sentence is returned instead, to be said
    before anything is run.
    """
    family, alpha, n = study.family, study.analysis.alpha, study.protocol.rounds
    needed = rounds_for_level(alpha, family)
    if n >= needed:
        return None
    asking = "1 comparison" if family == 1 else f"{family} comparisons"
    asked = f"{'asks' if family == 1 else 'ask'} for {alpha / max(family, 1):.2g}"
    sentence = (
        f"{n} rounds reach p = {attainable_p(n):.3g} at best, and {asking} at α = {alpha:g} {asked}"
    )
    if quick:
        return f"{sentence}: these short rounds show sizes, they cannot settle anything"
    raise UsageError(f"{sentence}: set rounds = {needed} or more, or declare fewer comparisons")


def _keys_at(section: tuple[str | int, ...]) -> list[str]:
    """The keys that a section of a study file takes."""
    models: list[type[BaseModel]] = [Study]
    for part in section:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        models = [model for field in fields for model in _models(field.annotation)] or models
    return sorted({name for model in models for name in model.model_fields})


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """The models of which a field may hold one or several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _check_names(study: Study, file: str) -> None:
    def refuse(reason: str) -> None:
        raise UsageError(f"{file}: {reason}")

    def require(what: str, kind: str, name: str) -> None:
        if name not in known[kind]:
            near_ones = near(name, known[kind])
            refuse(f"{what} names the {kind} {name!r}, which is absent{near_ones}")

    known = {
        "variant": [v.name for v in study.variant],
        "workload": [w.name for w in study.workload],
    }
    for kind, names in known.items():
        for i, name in enumerate(names):
            if name in names[:i]:
                refuse(f"there is already a {kind} {name!r}")
    for variant in study.variant:
        if variant.server not in study.servers:
            refuse(
                f"variant {variant.name} names the server {variant.server!r}, which [servers] "
                f"lacks{near(variant.server, study.servers)}"
            )
    require("the floor", "variant", study.analysis.floor)
    for comparison in study.comparison:
        for name in (comparison.arm, comparison.base):
            require("a comparison", "variant", name)
        if comparison.arm == comparison.base:
            refuse(f"{comparison.arm} is compared with itself")
        for name in comparison.workloads or ():
            require("a comparison", "workload", name)
    for name in study.quick.workloads or ():
        if name not in known["workload"]:
            refuse(f"quick names the workload {name!r}, which is absent")
