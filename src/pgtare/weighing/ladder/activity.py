"""Proof that a variant did what it is there for: counters that must grow with its transactions."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pgtare.weighing.ladder.field_types import Name, SettingValue

#: A load's transactions and a server's counters are not read at the same instant.
_TOLERANCE = 0.02
_AT_THE_EDGES = 4
#: Statements of our own sessions, which a variant's settings meet as well.
_OURS = 100


class Activity(BaseModel):
    """A counter, the variants that make it grow, and by how much a transaction.

    when: settings and the values of them with which it grows; with others it must not.
    per_transaction: so much, or, with at_least, that or more.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    query: str
    when: dict[str, SettingValue | tuple[SettingValue, ...]]
    per_transaction: float = Field(gt=0)
    at_least: bool = False

    @model_validator(mode="after")
    def _says_when(self) -> Activity:
        if not self.when:
            raise ValueError("when is empty: name a setting and its values")
        return self

    def grows_with(self, settings: Mapping[str, SettingValue]) -> bool:
        """Whether it must grow in a server with these settings."""
        return all(
            settings.get(name) in (values if isinstance(values, tuple) else (values,))
            for name, values in self.when.items()
        )


def judge(
    wanted: tuple[Activity, ...],
    before: Mapping[str, float],
    after: Mapping[str, float],
    transactions: int,
    settings: Mapping[str, SettingValue],
) -> tuple[list[str], list[str]]:
    """What shows that a run's variant did its work, and what speaks against it."""
    shown, against = [], []
    for one in wanted:
        active = transactions if one.grows_with(settings) else 0
        grown = after[one.name] - before[one.name]
        edge = max(_TOLERANCE * active, _AT_THE_EDGES)
        least = max(active - edge, 0.0) * one.per_transaction
        most = (active + edge) * one.per_transaction + _OURS
        growth, each = f"{one.name} grew by {grown:,.0f}", f"{one.per_transaction:g} each"
        in_all = f"{growth} in {active:,} transactions"
        if not active:
            if grown > 0:
                against.append(f"{growth}, though nothing in it should have made it grow")
        elif grown < least or grown <= 0:
            against.append(f"{in_all}, not by {each}")
        elif grown > most and not one.at_least:
            against.append(f"{in_all}, more than {each}")
        else:
            shown.append(in_all)
    return shown, against
