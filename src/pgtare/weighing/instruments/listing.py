"""What `pgtare instruments` lists, schema `pgtare.instruments/1`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name
from pgtare.weighing.instruments.model import Entry
from pgtare.weighing.instruments.requirements import ServerFacts, availability


class Instrument(Model):
    """One instrument of the catalogue."""

    name: str = Field(description="its name, as `pgtare weigh` takes it")
    variants: list[str] = Field(description="its variants; the first is what the name alone means")
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


def listing(entries: Iterable[Entry], facts: ServerFacts | None) -> Instruments:
    """The catalogue, with what a server lacks if `facts` are given."""
    return Instruments(
        instruments=[
            Instrument(
                name=entry.name,
                variants=list(entry.variants),
                description=entry.description,
                safe_in_production=entry.safe_in_production,
                reason=entry.reason,
                remarks=list(entry.remarks),
                missing=None
                if facts is None
                else [str(lack) for lack in availability(entry, facts)],
            )
            for entry in entries
        ]
    )
