"""Time by stack: sums, folded stacks as text, the widest frames, and two profiles side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pgtare.errors import UsageError
from pgtare.observing.flame import frames
from pgtare.observing.flame.documents import FlameFrame
from pgtare.observing.flame.frames import Stack
from pgtare.observing.flame.recording import StackSamples

#: Time in ns by stack, outermost frame first.
Profile = dict[Stack, int]


def profile(samples: StackSamples) -> Profile:
    """Time by stack."""
    sums = np.bincount(samples.stack, samples.weight_ns, len(samples.stacks)).astype(np.int64)
    pairs = zip(samples.stacks, sums.tolist(), strict=True)
    return {stack: ns for stack, ns in pairs if ns > 0}


def total(found: Profile) -> int:
    """All time of a profile, in ns."""
    return sum(found.values())


def folded(found: Profile) -> str:
    """A line for each stack: its frames joined by semicolons, and its time in µs."""
    lines = sorted(f"{';'.join(stack)} {max(1, round(ns / 1000))}" for stack, ns in found.items())
    return "".join(f"{line}\n" for line in lines)


def parse_folded(path: Path) -> Profile:
    """What `folded` wrote, or another tool. Raises UsageError if it is something else."""
    found: Counter[Stack] = Counter()
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            stack, _, count = line.rpartition(" ")
            if not line.strip():
                continue
            if not stack or not count.isdecimal():
                raise UsageError(
                    f"{path}, line {number}: no folded stack (frame;frame;frame count)"
                )
            found[tuple(stack.split(";"))] += int(count) * 1000
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except UnicodeDecodeError:
        found.clear()
    if not found:
        raise UsageError(f"{path} holds no folded stacks")
    return dict(found)


def functions(found: Profile) -> list[FlameFrame]:
    """Every frame by its time with callees, largest first; a recurring one counts once.

    Of those that are alike, a caller comes before what it calls.
    """
    with_callees: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    depths: dict[str, int] = {}
    for stack, ns in found.items():
        for depth, name in enumerate(stack):
            depths[name] = min(depth, depths.get(name, depth))
        for name in set(stack):
            with_callees[name] += ns
        if stack:
            alone[stack[-1]] += ns
    return [
        FlameFrame(name=name, total_ns=with_callees[name], own_ns=alone[name])
        for name in sorted(depths, key=lambda name: (-with_callees[name], depths[name], name))
    ]


def alike(before: Profile, after: Profile) -> tuple[Profile, Profile]:
    """Two profiles without the labels (statements, wait events) that only one of them has.

    A recording has labels if traces of waits were there; that is no change of the server.
    """
    for label in (frames.STATEMENT, frames.WAIT):
        has = [any(f.startswith(label) for stack in one for f in stack) for one in (before, after)]
        if has[0] != has[1]:
            before, after = _without(before, label), _without(after, label)
    return before, after


def _without(found: Profile, label: str) -> Profile:
    sums: Counter[Stack] = Counter()
    for stack, ns in found.items():
        sums[tuple(name for name in stack if not name.startswith(label))] += ns
    return dict(sums)


@dataclass(frozen=True)
class FrameChange:
    """A frame in two recordings, by its share of the time of each."""

    name: str
    before_pct: float
    after_pct: float

    @property
    def points(self) -> float:
        """After minus before, in percentage points."""
        return self.after_pct - self.before_pct


def changes(before: Profile, after: Profile) -> list[FrameChange]:
    """Every frame's share with callees of its profile's total; largest change first."""
    old, new = (
        {f.name: 100 * f.total_ns / (total(one) or 1) for f in functions(one)}
        for one in (before, after)
    )
    found = [
        FrameChange(name, old.get(name, 0), new.get(name, 0)) for name in old.keys() | new.keys()
    ]
    return sorted(found, key=lambda c: (-abs(c.points), c.name))
