"""What a proof of activity found of one arm."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pgtare.kit.document import Model

Unproven = Literal["own", "unknown", "unseen"]


class Proof(Model):
    """Evidence that the instrument really ran in its arm."""

    state: Literal["active", "idle", "missing"] = Field(
        description="`active`: it ran; `idle`: on, but this load gave it nothing to do; `missing`"
    )
    evidence: str = Field(description="what was counted or seen, in words")
    unproven: Unproven | None = Field(
        default=None,
        description="why nothing but its settings is known of an `idle` one: `own`, an arm of the "
        "user's own; `unknown`, no proof is known for it; `unseen`, from outside nothing counts it",
    )
