"""What `pgtare weigh --dry-run` says as a JSON document, schema `pgtare.weigh.plan/1`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model


class PlannedArm(Model):
    """One arm."""

    name: str = Field(description="name of the arm")
    settings: dict[str, str] = Field(description="settings that the arm puts in force")
    inject_ns: int = Field(description="busy-wait added to each transaction")


class PlannedWeighing(Document):
    """A weighing that was not carried out."""

    schema_: Literal["pgtare.weigh.plan/1"] = Field(
        default="pgtare.weigh.plan/1", alias="schema", description="name and version"
    )
    seed: int = Field(description="seed of the assignment, 64 bits without sign")
    planned_s: float = Field(description="how long it would measure, at most")
    unit: str = Field(description="unit of randomisation: `transaction`, `slice` or `both`")
    block: list[int] = Field(description="indexes into `arms`: the arms of one block")
    arms: list[PlannedArm] = Field(description="the arms; the first is the base")
    description: list[str] = Field(description="the plan in words, line by line")
    warnings: list[str] = Field(description="what a reader must know")
