"""Reads a study file and checks it: every error names its file, line and key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from pgtare.errors import UsageError
from pgtare.estimate.study.attainable import attainable_p, rounds_for_level
from pgtare.postgres.load.spec import cores as usable_cores
from pgtare.weighing.instruments.catalogue import near
from pgtare.weighing.instruments.toml_lines import line_of
from pgtare.weighing.ladder.field_types import CORES
from pgtare.weighing.ladder.study import Study


def read(path: Path) -> tuple[Study, str]:
    """A study and its text. Raises UsageError naming file, line and key for what is wrong."""
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
        raise UsageError(_syntax(str(ex), source, file)) from ex
    try:
        study = Study.model_validate(document, context={CORES: cores})
    except ValidationError as ex:
        # A misspelt key is both unknown and missing; the first says more.
        errors = sorted(ex.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
        raise UsageError(_message(dict(errors[0]), source, file)) from ex
    _check_names(study, source, file)
    _check_protocols(study, source, file, cores)
    return study


def check_rounds(study: Study, *, quick: bool) -> str | None:
    """Whether the rounds, or a duet's sets, can reach the declared level at all.

    Raises UsageError if they cannot; with `quick` the sentence is returned instead, to be said
    before anything is run.
    """
    family, alpha = study.family, study.analysis.alpha
    needed = rounds_for_level(alpha, family)
    planned = {
        study.played_by(workload).words: study.blocks_planned(workload)
        for workload in study.workload
    }
    few = {words: n for words, n in planned.items() if n < needed}
    if not few:
        return None
    asking = "1 comparison" if family == 1 else f"{family} comparisons"
    asked = f"{'asks' if family == 1 else 'ask'} for {alpha / max(family, 1):.2g}"
    reached = ", ".join(
        f"{n} {words.blocks} reach p = {attainable_p(n):.3g}" for words, n in few.items()
    )
    keys = " and ".join(f"{words.block}s" for words in few)
    sentence = f"{reached} at best, and {asking} at α = {alpha:g} {asked}"
    if quick:
        return f"{sentence}: these short rounds show sizes, they cannot settle anything"
    raise UsageError(f"{sentence}: set {keys} = {needed} or more, or declare fewer comparisons")


def _syntax(message: str, source: str, file: str) -> str:
    """What tomllib found wrong, with the place in front."""
    problem, _, where = message.partition(" (at ")
    found = re.match(r"line (\d+)", where)
    line = int(found[1]) if found else max(len(source.splitlines()), 1)
    return f"{file}, line {line}: {problem[:1].lower()}{problem[1:]}"


def _message(error: dict[str, Any], source: str, file: str) -> str:
    """One sentence for what pydantic found wrong."""
    location = tuple(part for part in error["loc"] if part not in ("str", "tuple", "[key]"))
    dotted = ".".join(str(part) for part in location if not isinstance(part, int))
    where = f"{file}, line {line_of(source, location)}: "
    if error["type"] == "extra_forbidden":
        key = str(location[-1])
        inside = f" in {dotted.rpartition('.')[0]}" if "." in dotted else ""
        return f"{where}unknown key {key!r}{inside}{near(key, _keys_at(location[:-1]))}"
    if error["type"] == "missing":
        return f"{where}{dotted} is missing"
    reason = str(error.get("ctx", {}).get("error", error["msg"])).removeprefix("Value error, ")
    return f"{where}{dotted}: {reason[:1].lower()}{reason[1:]}"


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


def _check_names(study: Study, source: str, file: str) -> None:
    def refuse(location: tuple[str | int, ...], reason: str) -> None:
        raise UsageError(f"{file}, line {line_of(source, location)}: {reason}")

    variants = [v.name for v in study.variant]
    workloads = [w.name for w in study.workload]
    for kind, names in (("variant", variants), ("workload", workloads)):
        for i, name in enumerate(names):
            if name in names[:i]:
                refuse((kind, i, "name"), f"there is already a {kind} {name!r}")
    for i, variant in enumerate(study.variant):
        if variant.server not in study.servers:
            refuse(
                ("variant", i, "server"),
                f"variant {variant.name} names the server {variant.server!r}, which "
                f"[servers] lacks{near(variant.server, study.servers)}",
            )
    if study.analysis.floor not in variants:
        refuse(
            ("analysis", "floor"),
            f"the floor names the variant {study.analysis.floor!r}, which is absent"
            f"{near(study.analysis.floor, variants)}",
        )
    for i, comparison in enumerate(study.comparison):
        for key in ("arm", "base"):
            name = getattr(comparison, key)
            if name not in variants:
                refuse(
                    ("comparison", i, key),
                    f"a comparison names the variant {name!r}, which is absent"
                    f"{near(name, variants)}",
                )
        if comparison.arm == comparison.base:
            refuse(("comparison", i, "arm"), f"{comparison.arm} is compared with itself")
        for name in comparison.workloads or ():
            if name not in workloads:
                refuse(
                    ("comparison", i, "workloads"),
                    f"a comparison names the workload {name!r}, which is absent"
                    f"{near(name, workloads)}",
                )
    for name in study.quick.workloads or ():
        if name not in workloads:
            refuse(("quick", "workloads"), f"quick names the workload {name!r}, which is absent")


def _check_protocols(study: Study, source: str, file: str, cores: int) -> None:
    """Raise UsageError for a protocol that cannot play its workload."""
    for i, workload in enumerate(study.workload):
        protocol = study.played_by(workload)
        if why := protocol.why_not(study, workload, cores):
            key = "name" if workload.protocol is None else "protocol"
            raise UsageError(
                f"{file}, line {line_of(source, ('workload', i, key))}: {workload.name} cannot be "
                f"played by {protocol.words.name}, as {why}"
            )
