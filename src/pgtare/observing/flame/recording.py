"""A recording: samples as columns, and how they came about."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from pgtare.observing.flame import frames
from pgtare.observing.flame.frames import Stack

Mode = Literal["on", "off", "wake"]
StoppedBy = Literal["time", "interrupt", "target", "full", "perf"]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

#: What a sample's time was spent on.
RUNNING, BLOCKED, RUNNABLE = 0, 1, 2
_COLUMNS = ("start_ns", "pid", "stack", "kind", "weight_ns")


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
        return replace(self, **{name: getattr(self, name)[mask] for name in _COLUMNS})

    def of(self, kind: int) -> StackSamples:
        """The samples of one kind."""
        return self.where(self.kind == kind)

    @property
    def total_ns(self) -> int:
        """The time that all samples represent."""
        return int(self.weight_ns.sum())

    def framed(self, names: Sequence[str], which: Numbers) -> StackSamples:
        """Each sample's stack with names[which] below its first frame; -1 leaves it as it is."""
        keys = which.astype(np.int64) * len(self.stacks) + self.stack
        used, stack = np.unique(keys, return_inverse=True)
        stacks = []
        for key in used.tolist():
            name, old = divmod(key, len(self.stacks))
            own = self.stacks[old]
            stacks.append(own if name < 0 else (*own[:1], names[name], *own[1:]))
        return replace(self, stacks=tuple(stacks), stack=stack.astype(np.int32))

    def within(self, spans: Numbers) -> Numbers:
        """What each sample's moment belongs to; -1 if to nothing.

        spans: rows of process, start, end and a number of the caller's, which is returned. Those of
        one process do not overlap. Times: CLOCK_MONOTONIC.
        """
        found = np.full(len(self), -1, np.int64)
        spans = spans[np.argsort(spans[:, 1], kind="stable")]
        for pid in np.intersect1d(self.pid, spans[:, 0]):
            mine = np.flatnonzero(self.pid == pid)
            _, start, end, what = spans[spans[:, 0] == pid].T
            times = self.start_ns[mine]
            place = np.searchsorted(start, times, side="right") - 1
            within = (place >= 0) & (times < end[place])
            found[mine[within]] = what[place[within]]
        return found


class Collected:
    """Samples while they come in: stacks are kept once, a sample takes 25 bytes."""

    def __init__(self) -> None:
        self._index: dict[Stack, int] = {}
        self._columns = [array(code) for code in ("q", "i", "i", "b", "q")]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, start_ns: int, pid: int, stack: Stack, kind: int, weight_ns: int) -> None:
        """Take one sample."""
        number = self._index.setdefault(stack, len(self._index))
        values = (start_ns, pid, number, kind, weight_ns)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def samples(self) -> StackSamples:
        """What has been taken."""
        return StackSamples(tuple(self._index), *map(np.array, self._columns))


@dataclass
class FlameRecording:
    """Samples, and how they came about. Times are of CLOCK_MONOTONIC."""

    mode: Mode
    target: str
    samples: StackSamples
    begin_ns: int
    duration_s: float
    walk: str
    rate_hz: int
    stopped_by: StoppedBy
    events: int = 0
    lost: int = 0
    unmatched: int = 0
    #: wall-clock time is CLOCK_MONOTONIC plus this
    realtime_ns: int = 0
    notes: list[str] = field(default_factory=list)

    def shown(self, *, idle: bool = False) -> StackSamples:
        """The samples that it is about: computing, or blocked. idle: for something to do as well.

        A process that computes has something to do, even if it then waits for more.
        """
        if self.mode == "on":
            return self.samples.of(RUNNING)
        wanted = [idle or not frames.is_idle(stack) for stack in self.samples.stacks]
        chosen = self.samples.of(BLOCKED)
        return chosen.where(np.array(wanted, np.bool_)[chosen.stack])
