"""Variants by factors: an entry of a study file makes one for every combination of levels.

`factors = { sampling = [0, 1], clock = ["tsc", "syscall"] }` of a variant T makes T-0-tsc,
T-0-syscall, T-1-tsc and T-1-syscall; "{sampling}" in its settings and title is the level.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from pgtare.weighing.ladder.declared_study import DeclaredStudy
from pgtare.weighing.ladder.field_types import Level, SettingValue
from pgtare.weighing.ladder.study_sections import Variant

AnyStudy = TypeVar("AnyStudy", bound=DeclaredStudy)


def expanded(study: AnyStudy) -> AnyStudy:
    """The study with a variant for each combination, and a comparison for each that it names."""
    variants = tuple(one for v in study.variant for one in combinations(v))
    names = [v.name for v in variants]
    comparisons = tuple(
        c.model_copy(update={"arm": arm})
        for c in study.comparison
        for arm in matching(c.arm, names)
        if arm != c.base
    )
    return study.model_copy(update={"variant": variants, "comparison": comparisons})


def combinations(variant: Variant) -> list[Variant]:
    """The variants that one entry makes; itself if it has no factors."""
    if not variant.factors:
        return [variant]
    return [
        _filled(variant, dict(zip(variant.factors, levels, strict=True)))
        for levels in itertools.product(*variant.factors.values())
    ]


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern of the shell means; a plain name means itself."""
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def kept(study: AnyStudy, names: Sequence[str]) -> AnyStudy:
    """The study on these variants, with the comparisons that they allow."""
    there = set(names)
    return study.model_copy(
        update={
            "variant": tuple(v for v in study.variant if v.name in there),
            "comparison": tuple(c for c in study.comparison if {c.arm, c.base} <= there),
        }
    )


def _filled(variant: Variant, levels: Mapping[str, Level]) -> Variant:
    return variant.model_copy(
        update={
            "name": "-".join([variant.name, *map(str, levels.values())]),
            "title": variant.title.format(**levels),
            "settings": _settings(variant.settings, levels),
            "runtime": _settings(variant.runtime, levels),
            "factors": {name: (level,) for name, level in levels.items()},
        }
    )


def _settings(
    settings: Mapping[str, SettingValue], levels: Mapping[str, Level]
) -> dict[str, SettingValue]:
    """A value that is nothing but a factor becomes its level."""
    known = {f"{{{name}}}": level for name, level in levels.items()}
    return {
        name: known.get(value, value) if isinstance(value, str) else value
        for name, value in settings.items()
    }
