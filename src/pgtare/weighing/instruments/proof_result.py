"""What a proof of activity found of one arm."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Proof(BaseModel):
    """Evidence that the instrument really ran in its arm."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null", populate_by_name=True)

    state: Literal["active", "idle", "missing"] = Field(
        description="`active`: it ran; `idle`: on, but this load gave it nothing to do; `missing`"
    )
    evidence: str = Field(description="what was counted or seen, in words")
