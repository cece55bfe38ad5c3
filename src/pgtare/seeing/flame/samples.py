"""Samples as columns: when, which process, which stack, how much time, and what went on then."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Mode = Literal["on", "off", "wake"]
Stack = tuple[str, ...]  # from the outermost frame to the innermost
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

#: What a sample's time was spent on.
RUNNING, BLOCKED, RUNNABLE = 0, 1, 2
COLUMNS = ("start_ns", "pid", "stack", "kind", "weight_ns")


@dataclass(frozen=True)
class Spans:
    """Stretches of time of processes, which do not overlap within one. Times: CLOCK_MONOTONIC.

    what: a number of the caller's for each stretch.
    """

    pid: Numbers
    start_ns: Numbers
    end_ns: Numbers
    what: Numbers


@dataclass(frozen=True)
class StackSamples:
    """Columns of equal length. stack: an index of `stacks`; start_ns: of CLOCK_MONOTONIC."""

    stacks: tuple[Stack, ...]
    start_ns: npt.NDArray[np.int64]
    pid: npt.NDArray[np.int32]
    stack: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    weight_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, mask: Mask) -> StackSamples:
        """The samples that the mask picks."""
        return replace(self, **{name: getattr(self, name)[mask] for name in COLUMNS})

    def of(self, kind: int) -> StackSamples:
        """The samples of one kind."""
        return self.where(self.kind == kind)

    @property
    def total_ns(self) -> int:
        """The time that all samples represent."""
        return int(self.weight_ns.sum())

    def framed(self, names: Sequence[str], which: Numbers, depth: int = 0) -> StackSamples:
        """Each sample's stack with the frame names[which] at this depth; -1 leaves it as it is."""
        keys = which.astype(np.int64) * len(self.stacks) + self.stack
        used, stack = np.unique(keys, return_inverse=True)
        stacks = []
        for key in used.tolist():
            name, old = divmod(key, len(self.stacks))
            own = self.stacks[old]
            stacks.append(own if name < 0 else (*own[:depth], names[name], *own[depth:]))
        return replace(self, stacks=tuple(stacks), stack=stack.astype(np.int32))

    def within(self, spans: Spans) -> Numbers:
        """`what` of the stretch that each sample begins in; -1 if there is none."""
        found = np.full(len(self), -1, np.int64)
        for pid in np.unique(self.pid):
            mine = np.flatnonzero(self.pid == pid)
            theirs = np.flatnonzero(spans.pid == pid)
            if not len(theirs):
                continue
            theirs = theirs[np.argsort(spans.start_ns[theirs], kind="stable")]
            times = self.start_ns[mine]
            place = np.searchsorted(spans.start_ns[theirs], times, side="right") - 1
            within = (place >= 0) & (times < spans.end_ns[theirs][np.maximum(place, 0)])
            found[mine] = np.where(within, spans.what[theirs][np.maximum(place, 0)], -1)
        return found

    def window(self, first_ns: int, last_ns: int) -> StackSamples:
        """The samples between two times; waits are cut to it."""
        point = self.kind == RUNNING
        end = np.where(point, self.start_ns + 1, self.start_ns + self.weight_ns)
        inside = (end > first_ns) & (self.start_ns < last_ns)
        cut = np.minimum(end, last_ns) - np.maximum(self.start_ns, first_ns)
        weight = np.where(point, self.weight_ns, cut)
        return replace(self, weight_ns=weight).where(inside & (weight > 0))


@dataclass
class Collected:
    """Samples while they come in: stacks are kept once, a sample takes 25 bytes."""

    index: dict[Stack, int] = field(default_factory=dict)
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    pid: array[int] = field(default_factory=lambda: array("i"))
    stack: array[int] = field(default_factory=lambda: array("i"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    weight_ns: array[int] = field(default_factory=lambda: array("q"))

    def add(self, start_ns: int, pid: int, stack: Stack, kind: int, weight_ns: int) -> None:
        """Take one sample."""
        self.start_ns.append(start_ns)
        self.pid.append(pid)
        self.stack.append(self.index.setdefault(stack, len(self.index)))
        self.kind.append(kind)
        self.weight_ns.append(weight_ns)

    def samples(self) -> StackSamples:
        """What has been taken."""
        return StackSamples(tuple(self.index), *(np.array(getattr(self, c)) for c in COLUMNS))
