"""The JSON documents of `pgtare flame`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name


class FlameFrame(Model):
    """A function, or another frame of a stack."""

    name: str = Field(description="its name; of the kernel it ends in `_[k]`")
    total_ns: int = Field(description="time with what it calls")
    own_ns: int = Field(description="time without")


class FlameStack(Model):
    """A stack."""

    frames: tuple[str, ...] = Field(description="the outermost first")
    total_ns: int = Field(description="its time")


class FlameGraph(Document):
    """A recording of stacks."""

    schema_: Literal["pgtare.flame/1"] = schema_name("pgtare.flame/1")
    mode: str = Field(description="`on`, `off` or `wake`")
    target: str = Field(description="what was recorded, in words")
    duration_s: float = Field(description="how long")
    stopped_by: str = Field(description="what ended it")
    walk: str = Field(description="how stacks were walked")
    rate_hz: int = Field(description="samples a second, of `on`")
    events: int = Field(description="samples or switches that were read")
    lost: int = Field(description="events that perf lost")
    unmatched: int = Field(description="events that could not be paired")
    notes: list[str] = Field(description="what a reader must know, in sentences")
    total_ns: int = Field(description="time of all stacks")
    runnable_ns: int = Field(description="time ready to run, but without a processor")
    frames: list[FlameFrame] = Field(description="functions, the longest first, 200 at most")
    stacks: list[FlameStack] = Field(description="all stacks")
