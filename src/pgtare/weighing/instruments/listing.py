"""What `pgtare instruments` lists, schema `pgtare.instruments/1`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name
from pgtare.weighing.instruments.model import Entry
from pgtare.weighing.instruments.requirements import Missing


class Instrument(Model):
    """One instrument of the catalogue."""

    name: str = Field(description="its name, as `pgtare weigh` takes it")
    variants: dict[str, str] = Field(
        description="what each variant is, by name; the first is what the name alone means"
    )
    description: str = Field(description="what it is")
    safe_in_production: bool = Field(description="whether `--dsn` weighs it without `--allow`")
    reason: str = Field(description="why it is not; else empty")
    remarks: list[str] = Field(description="what else to know")
    missing: list[str] | None = Field(
        description="what the server of `--dsn` lacks for it; `null` without `--dsn`"
    )


class Instruments(Document):
    """The catalogue."""

    schema_: Literal["pgtare.instruments/1"] = schema_name("pgtare.instruments/1")
    instruments: list[Instrument] = Field(description="in the order of the catalogue")


def listing(
    entries: Iterable[Entry], lacks: Callable[[Entry], list[Missing]] | None
) -> Instruments:
    """The catalogue. lacks: what a server lacks for an entry, or None."""
    return Instruments(
        instruments=[
            Instrument(
                name=entry.name,
                variants={name: one.description for name, one in entry.variants.items()},
                description=entry.description,
                safe_in_production=entry.safe_in_production,
                reason=entry.reason,
                remarks=list(entry.remarks),
                missing=None if lacks is None else [str(lack) for lack in lacks(entry)],
            )
            for entry in entries
        ]
    )
