"""An estimate with its interval, as every document writes it."""

from __future__ import annotations

from pydantic import Field

from pgtare.kit.document import Model


class Interval(Model):
    """An estimate with its 95 % interval (another level if the field says so)."""

    estimate: float | None = Field(description="the estimate")
    lo: float | None = Field(description="lower end of the interval")
    hi: float | None = Field(description="upper end; the level is 95 % unless another is named")
