"""The scripts of a study: kept with its runs, and filled in if they are templates."""

from __future__ import annotations

import os
from pathlib import Path

import jinja2

from pgtare.errors import PgtareError, UsageError
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import TEMPLATE, Workload, placed


def place(study: Study, source: Path, target: Path) -> None:
    """Put every script into `target`, as the workloads play it.

    source: the study file's folder. A study goes on with the scripts that it was begun with.
    Raises UsageError for a script that is elsewhere, is not there, or cannot be filled in.
    """
    for workload in study.workload:
        for name in filter(None, (workload.script, workload.setup)):
            place = target / placed(name, workload)
            if not place.resolve().is_relative_to(target.resolve()):
                raise UsageError(f"the script {name} must be next to the study file")
            text = _filled(_read(source / name), name, workload)
            try:
                os.makedirs(place.parent, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            except OSError as ex:
                raise PgtareError(f"cannot copy {name}: {ex.strerror}") from ex


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as ex:
        raise UsageError(f"cannot read pgbench script {path}: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"the script {path} is not UTF-8 text") from ex


def _filled(text: str, name: str, workload: Workload) -> str:
    """A template with the workload's values in it; any other text as it is."""
    if not name.endswith(TEMPLATE):
        return text
    maker = jinja2.Environment(  # noqa: S701 (SQL, where nothing is HTML)
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    try:
        return maker.from_string(text).render(workload.values)
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError) as ex:
        where = f", line {ex.lineno}" if isinstance(ex, jinja2.TemplateSyntaxError) else ""
        raise UsageError(
            f"the script {name}{where} cannot be filled in for {workload.name}: "
            f"{getattr(ex, 'message', ex)}"
        ) from ex
