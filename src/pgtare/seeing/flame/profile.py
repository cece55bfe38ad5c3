"""Time by stack: sums, folded stacks as text, the widest frames, and two profiles side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pgtare.errors import UsageError
from pgtare.seeing.flame import frames
from pgtare.seeing.flame.samples import Stack, StackSamples

#: Time in ns by stack, outermost frame first.
Profile = dict[Stack, int]


def profile(samples: StackSamples, *, idle: bool = True) -> Profile:
    """Time by stack; idle: waits for something to do as well."""
    sums = np.bincount(samples.stack, samples.weight_ns, len(samples.stacks)).astype(np.int64)
    return {
        stack: ns
        for stack, ns in zip(samples.stacks, sums.tolist(), strict=True)
        if ns > 0 and (idle or not frames.is_idle(stack))
    }


def total(found: Mapping[Stack, int]) -> int:
    """All time of a profile, in ns."""
    return sum(found.values())


def folded(found: Mapping[Stack, int]) -> str:
    """A line for each stack: its frames joined by semicolons, and its time in µs."""
    lines = sorted(f"{';'.join(stack)} {max(1, round(ns / 1000))}" for stack, ns in found.items())
    return "".join(f"{line}\n" for line in lines)


def parse_folded(path: Path) -> Profile:
    """What `folded` wrote, or another tool. Raises UsageError if it is something else."""
    found: Profile = {}
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            stack, _, count = line.rpartition(" ")
            if not line.strip():
                continue
            if not stack or not count.isdigit():
                raise UsageError(
                    f"{path}, line {number}: no folded stack (frame;frame;frame count)"
                )
            key = tuple(stack.split(";"))
            found[key] = found.get(key, 0) + int(count) * 1000
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"{path} holds no folded stacks") from ex
    if not found:
        raise UsageError(f"{path} holds no folded stacks")
    return found


@dataclass(frozen=True)
class Function:
    """A frame's time: with all that it calls, and in itself."""

    name: str
    total_ns: int
    own_ns: int


def functions(found: Mapping[Stack, int]) -> list[Function]:
    """Every frame by its time with callees, largest first; a recurring one counts once.

    Of those that are alike, a caller comes before what it calls.
    """
    with_callees: dict[str, int] = {}
    alone: dict[str, int] = {}
    depths: dict[str, int] = {}
    for stack, ns in found.items():
        for depth, name in enumerate(stack):
            depths[name] = min(depth, depths.get(name, depth))
        for name in set(stack):
            with_callees[name] = with_callees.get(name, 0) + ns
        if stack:
            alone[stack[-1]] = alone.get(stack[-1], 0) + ns
    return sorted(
        (Function(name, ns, alone.get(name, 0)) for name, ns in with_callees.items()),
        key=lambda f: (-f.total_ns, depths[f.name], f.name),
    )


@dataclass(frozen=True)
class Change:
    """A frame's share of all time before and after, in %; the sum of its change over its stacks."""

    name: str
    before_pct: float
    after_pct: float

    @property
    def change_pct(self) -> float:
        """After minus before, in percentage points."""
        return self.after_pct - self.before_pct


def chance_points(before: StackSamples, after: StackSamples) -> float | None:
    """By how many points a share of 50 % moves by chance at least: half of a 95 % interval.

    Samples count as independent, by Kish's number (1965) if their weights differ; those of one
    process are alike, so that chance may do more. None if a side has no samples.
    """
    variance = 0.0
    for samples in (before, after):
        weights = samples.weight_ns.astype(np.float64)
        if not weights.sum():
            return None
        variance += 0.25 * float((weights**2).sum() / weights.sum() ** 2)
    return 100 * 1.96 * math.sqrt(variance)


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
    sums: Profile = {}
    for stack, ns in found.items():
        rest = tuple(name for name in stack if not name.startswith(label))
        sums[rest] = sums.get(rest, 0) + ns
    return sums


def changes(before: Mapping[Stack, int], after: Mapping[Stack, int]) -> list[Change]:
    """Every frame's share with callees of its profile's total; largest change first."""
    a, b = total(before) or 1, total(after) or 1
    old = {f.name: f.total_ns for f in functions(before)}
    new = {f.name: f.total_ns for f in functions(after)}
    found = [
        Change(name, 100 * old.get(name, 0) / a, 100 * new.get(name, 0) / b)
        for name in old.keys() | new.keys()
    ]
    return sorted(found, key=lambda c: (-abs(c.change_pct), c.name))
