"""A published table of rounds and what was concluded from it, as its file states them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pgtare.errors import UsageError
from pgtare.weighing.instruments.catalogue import near
from pgtare.weighing.instruments.toml_lines import line_of


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedEffect(_Model):
    """One delta: arm against base in a regime, in percent, with its two-sided p and rounds.

    better: whether more or less of what was measured is better: of throughput "higher", of a
    latency "lower".
    """

    id: str
    regime: str
    arm: str
    base: str
    pct: float
    better: Literal["higher", "lower"] = "higher"
    rounds: Annotated[int, Field(ge=2)]
    p: Annotated[float, Field(gt=0, le=1)] | None = None
    error_bar_pct: tuple[float, float] | None = None

    @property
    def cost_pct(self) -> float:
        """How much the arm is worse; a gain is below zero."""
        return -self.pct if self.better == "higher" else self.pct


class _Claim(_Model):
    text: str
    effects: tuple[str, ...] = ()


class _OfEffects(_Claim):
    effects: Annotated[tuple[str, ...], Field(min_length=1)]


class UpperBound(_OfEffects):
    """ "At most x %"."""

    kind: Literal["upper_bound"]
    bound_pct: float


class OneSign(_OfEffects):
    """ "All deltas have one sign"."""

    kind: Literal["one_sign"]
    p: float


class NoEffect(_OfEffects):
    """ "No measurable effect"."""

    kind: Literal["no_effect"]


class AllRounds(_Claim):
    """ "k of n rounds on one side", perhaps after a look at fewer."""

    kind: Literal["rounds"]
    positive: int
    rounds: int
    p: float | None = None
    looked_at: int | None = None


class Builds(_OfEffects):
    """A difference between two builds, whose layout differs as well."""

    kind: Literal["builds"]
    layout_sd_pct: float


class Floor(_Claim):
    """A floor from a few runs of one variant, and the CVs seen in the study itself."""

    kind: Literal["floor"]
    cv_pct: float
    runs: int
    seen_cv_pct: tuple[float, float]


Claim = Annotated[
    UpperBound | OneSign | NoEffect | AllRounds | Builds | Floor, Field(discriminator="kind")
]


class Published(_Model):
    """A published table and what was concluded from it."""

    title: str
    source: str
    comparisons: Annotated[int, Field(ge=1)]
    alpha: float = 0.05
    margin_pct: float = 0.5
    effect: tuple[PublishedEffect, ...]
    claim: tuple[Claim, ...] = ()

    def named(self, names: tuple[str, ...]) -> list[PublishedEffect]:
        """Effects by their ids."""
        return [effect for name in names for effect in self.effect if effect.id == name]


_KEYS = sorted(
    {
        name
        for model in (
            Published,
            PublishedEffect,
            UpperBound,
            OneSign,
            NoEffect,
            AllRounds,
            Builds,
            Floor,
        )
        for name in model.model_fields
    }
)


def _message(error: dict[str, Any]) -> str:
    """What pydantic found wrong, in a reader's words; of a claim its location names the kind."""
    where = ".".join(str(part) for part in error["loc"] if not isinstance(part, int))
    if error["type"] == "extra_forbidden":
        key = str(error["loc"][-1])
        return f"unknown key {key!r}{near(key, _KEYS)}"
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "union_tag_invalid":
        kinds, kind = error["ctx"]["expected_tags"].replace("'", ""), str(error["ctx"]["tag"])
        return f"there is no claim of kind {kind!r}: it is one of {kinds}"
    if error["type"] == "union_tag_not_found":
        return "the claim lacks its kind"
    return f"{where}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def read(path: Path) -> Published:
    """A published table from its file. Raises UsageError naming the line of what is wrong."""
    try:
        source = path.read_text(encoding="utf-8")
        document = tomllib.loads(source)
    except OSError as ex:
        raise UsageError(f"cannot read {path}: {ex.strerror}") from ex
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as ex:
        raise UsageError(f"{path}: {ex}") from ex
    try:
        found = Published.model_validate(document)
    except ValidationError as ex:
        error = ex.errors(include_url=False)[0]
        line = line_of(source, error["loc"])
        raise UsageError(f"{path}, line {line}: {_message(dict(error))}") from ex
    known = {effect.id for effect in found.effect}
    for i, claim in enumerate(found.claim):
        for name in claim.effects:
            if name not in known:
                line = line_of(source, ("claim", i, "effects"))
                raise UsageError(
                    f"{path}, line {line}: a claim names the effect {name!r}, which is absent"
                )
    return found
