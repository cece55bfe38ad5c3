"""The base of every JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


def schema_name(name: str) -> Any:
    """The field `schema_` of a document of this schema, written as `schema`."""
    return Field(default=name, alias="schema", description="name and version")


class Model(BaseModel):
    """A part of a document. What is not a number becomes null."""

    model_config = ConfigDict(
        extra="forbid", ser_json_inf_nan="null", populate_by_name=True, from_attributes=True
    )

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        """The part that a query's row has, in the order of the fields."""
        return cls(**dict(zip(cls.model_fields, row, strict=True)))


class Document(Model):
    """A whole document: a subclass has `schema_`, written as `schema`, as its first field."""

    def to_json(self, *, indent: int | None = 2) -> str:
        """The document as text; on one line if `indent` is None."""
        return self.model_dump_json(by_alias=True, indent=indent)
