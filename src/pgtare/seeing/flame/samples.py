"""Samples as columns: when, which process, which stack, and how much time each represents."""

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

#: What a sample's time was spent on.
RUNNING, BLOCKED, RUNNABLE = 0, 1, 2
KINDS = {RUNNING: "running", BLOCKED: "blocked", RUNNABLE: "runnable"}


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
        return replace(
            self,
            start_ns=self.start_ns[mask],
            pid=self.pid[mask],
            stack=self.stack[mask],
            kind=self.kind[mask],
            weight_ns=self.weight_ns[mask],
        )

    def of(self, kind: int) -> StackSamples:
        """The samples of one kind."""
        return self.where(self.kind == kind)

    @property
    def total_ns(self) -> int:
        """The time that all samples represent."""
        return int(self.weight_ns.sum())

    def under(self, names: Sequence[str], which: npt.NDArray[np.int64]) -> StackSamples:
        """Each sample's stack put under the frame names[which]; -1 leaves it as it is."""
        keys = which.astype(np.int64) * len(self.stacks) + self.stack
        used, stack = np.unique(keys, return_inverse=True)
        stacks = []
        for key in used.tolist():
            name, old = divmod(key, len(self.stacks))
            own = self.stacks[old]
            stacks.append(own if name < 0 else (names[name], *own))
        return replace(self, stacks=tuple(stacks), stack=stack.astype(np.int32))

    def labelled(self, names: Sequence[str], which: npt.NDArray[np.int64]) -> StackSamples:
        """Each sample's stack with the frame names[which] below its outermost one; -1: none."""
        keys = which.astype(np.int64) * len(self.stacks) + self.stack
        used, stack = np.unique(keys, return_inverse=True)
        stacks = []
        for key in used.tolist():
            name, old = divmod(key, len(self.stacks))
            own = self.stacks[old]
            stacks.append(own if name < 0 else (*own[:1], names[name], *own[1:]))
        return replace(self, stacks=tuple(stacks), stack=stack.astype(np.int32))


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
        return StackSamples(
            tuple(self.index),
            np.array(self.start_ns, np.int64),
            np.array(self.pid, np.int32),
            np.array(self.stack, np.int32),
            np.array(self.kind, np.int8),
            np.array(self.weight_ns, np.int64),
        )
