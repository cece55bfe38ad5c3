"""The JSON documents of `pgtare flame`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model
from pgtare.seeing.flame import profile as profiles
from pgtare.seeing.flame.profile import Change, Profile
from pgtare.seeing.flame.record import FlameRecording
from pgtare.seeing.flame.samples import RUNNABLE

#: Most functions that a document lists.
_FRAMES = 200


class FlameFrame(Model):
    """A function, or another frame of a stack."""

    name: str = Field(description="its name; of the kernel it ends in `_[k]`")
    total_ns: float = Field(description="time with what it calls")
    own_ns: float = Field(description="time without")


class FlameStack(Model):
    """A stack."""

    frames: list[str] = Field(description="the outermost first")
    total_ns: float = Field(description="its time")


class FlameGraph(Document):
    """A recording of stacks."""

    schema_: Literal["pgtare.flame/1"] = Field(
        default="pgtare.flame/1", alias="schema", description="name and version"
    )
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
    total_ns: float = Field(description="time of all stacks")
    runnable_ns: int = Field(description="time ready to run, but without a processor")
    frames: list[FlameFrame] = Field(description="functions, the longest first, 200 at most")
    stacks: list[FlameStack] = Field(description="all stacks")


def graph(recording: FlameRecording, found: Profile) -> FlameGraph:
    """The document of a recording and of the profile that is shown of it."""
    return FlameGraph.model_validate(
        {
            "mode": recording.mode,
            "target": recording.target,
            "duration_s": recording.duration_s,
            "stopped_by": recording.stopped_by,
            "walk": recording.walk,
            "rate_hz": recording.rate,
            "events": recording.events,
            "lost": recording.lost,
            "unmatched": recording.unmatched,
            "notes": recording.notes,
            "total_ns": profiles.total(found),
            "runnable_ns": int(recording.samples.of(RUNNABLE).total_ns),
            "frames": profiles.functions(found)[:_FRAMES],
            "stacks": [{"frames": list(stack), "total_ns": ns} for stack, ns in found.items()],
        }
    )


class FrameChange(Model):
    """A frame in two recordings."""

    name: str = Field(description="its name")
    before_pct: float = Field(description="its share of the time in the first")
    after_pct: float = Field(description="its share in the second")


class FlameDifference(Document):
    """What has a larger or smaller share in one recording than in another."""

    schema_: Literal["pgtare.flame.diff/1"] = Field(
        default="pgtare.flame.diff/1", alias="schema", description="name and version"
    )
    frames: list[FrameChange] = Field(description="the largest change first")
    notes: list[str] = Field(description="what makes the two hard to compare, in sentences")


def difference(found: Iterable[Change], notes: Iterable[str]) -> FlameDifference:
    """The document of a comparison."""
    return FlameDifference.model_validate({"frames": list(found), "notes": list(notes)})
