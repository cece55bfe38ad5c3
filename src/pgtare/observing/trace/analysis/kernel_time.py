"""How much of a wait the kernel works in: estimated, for nothing measures it wait by wait.

CPU time of a process counts what the kernel does inside its waits; a read from the page cache is
nearly all of it. Between two readings of CPU time, what exceeds the time outside of waits must
have been spent within them (or, a little, between requests). Many such excesses, regressed on the
time of each event, give the share of it that is CPU.

The other way round a lack says nothing of waits: the process did not run. On a busy machine most
intervals have one. So the fit looks for the upper edge first, then leaves out what lies far below.

What a fit leaves to an event that hardly any interval tells of is no estimate. So it is repeated
without a part of the intervals, and an event has its share only as far as that does not move it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.file.reader import MAX_EVENTS, Integers

Floats = npt.NDArray[np.float64]

#: Fewer intervals than this, or more parameters than a tenth of them, say too little.
_INTERVALS = 50
_MOST = 5_000
_EVENTS = 12
#: How much less a lack weighs than an excess while the upper edge is looked for, and how many
#: times the middle distance of what lies above it another interval may lie below.
_LACK = 0.1
_FAR = 9.0
#: Distances from the fit beyond which they count by their size, not by its square.
_SOFT = 0.1
#: Newton's steps at most, and how many times one is halved that is too long.
_ITERATIONS, _HALVINGS = 100, 40
#: The most that the kernel works in a wait in which the process sleeps until it is woken, in ns.
_ASLEEP_NS = 30_000.0
#: Blocks of intervals left out in turn, the runs in which each is spread over the trace, and
#: half the width of a 95 % interval of this many in standard errors.
_BLOCKS = 10
_RUNS = 5
_HALF = 2.26


@dataclass(frozen=True)
class Sample:
    """Of one process, by interval between two readings: CPU less the time outside waits, in ns.

    spent: the CPU itself.
    idle: how often it went from an answer to the next request there. interval, event, wait_ns:
    of each wait, or part of one that was cut; times: 0 for the later parts.
    """

    excess: Floats
    spent: Floats
    idle: Floats
    interval: Integers
    event: Integers
    wait_ns: Integers
    times: Integers


@dataclass(frozen=True)
class Shares:
    """The share of its time that is CPU, by event, and CPU ns spent between two requests."""

    by_event: dict[int, float] = field(default_factory=dict)
    idle_ns: float = 0.0

    def of(self, event: Integers) -> Floats:
        """The share of each of some events; 0 for those without an estimate."""
        table = np.zeros(MAX_EVENTS + 1)
        for number, share in self.by_event.items():
            table[number] = share
        return np.asarray(table[event], np.float64)


def shares(samples: Sequence[Sample], asleep: Collection[int] = ()) -> Shares:
    """Estimate from all processes together; without enough of them, nothing is.

    asleep: events in whose waits the process sleeps until it is woken.
    """
    excess: Floats = np.concatenate([np.zeros(0), *(s.excess for s in samples)])
    if len(excess) < _INTERVALS:
        return Shares()
    offsets = np.cumsum([0, *(len(s.excess) for s in samples)])
    interval = np.concatenate([s.interval + o for s, o in zip(samples, offsets, strict=False)])
    event = np.concatenate([s.event for s in samples])
    ns = np.concatenate([s.wait_ns for s in samples]).astype(float)
    total = np.bincount(event, ns, minlength=1)
    times = np.bincount(event, np.concatenate([s.times for s in samples]), minlength=1)
    events = [int(e) for e in np.argsort(-total, kind="stable")[:_EVENTS] if total[e] > 0]
    caps = np.array([_ASLEEP_NS * times[e] / total[e] if e in asleep else 1.0 for e in events])
    columns: list[Floats] = [
        np.bincount(interval[event == e], ns[event == e], len(excess)).astype(np.float64)
        for e in events
    ]
    columns.append(np.concatenate([s.idle for s in samples]) * 1000.0)
    design: Floats = np.stack(columns, axis=1)
    spent: Floats = np.concatenate([s.spent for s in samples])
    busy = design.any(axis=1)
    design, excess, spent = design[busy], excess[busy], spent[busy]
    if len(excess) < max(_INTERVALS, 10 * len(columns)):
        return Shares()
    if len(excess) > _MOST:
        chosen = np.linspace(0, len(excess) - 1, _MOST).astype(int)
        design, excess, spent = design[chosen], excess[chosen], spent[chosen]
    found = _determined(design, excess, spent, caps)
    by_event = {e: float(x) for e, x in zip(events, found, strict=False)}
    return Shares(by_event, float(found[-1]) * 1000.0)


def _determined(design: Floats, excess: Floats, spent: Floats, caps: Floats) -> Floats:
    """The fit, shrunk: to 0 if its 95 % interval reaches 0, hardly if that is narrow.

    The interval is that of a jackknife over blocks of neighbouring intervals.
    """
    found = _fit(design, excess, spent, caps)
    block = np.arange(len(excess)) // (len(excess) // (_RUNS * _BLOCKS) or 1) % _BLOCKS
    without = np.array(
        [
            _fit(design[block != b], excess[block != b], spent[block != b], caps)
            for b in range(_BLOCKS)
        ]
    )
    half = _HALF * np.sqrt((_BLOCKS - 1) * without.var(axis=0))
    doubt = np.divide(half, found, out=np.ones(len(found)), where=found > half)
    return np.asarray(found * (1 - doubt**2), np.float64)


def _fit(design: Floats, excess: Floats, spent: Floats, caps: Floats) -> Floats:
    """The share of each event, and µs between two requests; 0 of what is in no interval used."""
    # no event takes more CPU than was spent in the intervals in which it occurred
    waited = design[:, :-1]
    possible = np.minimum(waited, np.maximum(spent, 0.0)[:, None]).sum(axis=0)
    limit = np.minimum(possible / np.maximum(waited.sum(axis=0), 1.0), caps)
    most = np.append(np.maximum(limit, 1e-9), 1000.0)
    scale = float(np.median(np.abs(excess))) or 1.0
    design, excess = design / scale, excess / scale
    found = _solved(design, excess, most, _LACK)
    left = excess - design @ found
    near = left > -_FAR * float(np.median(left[left > 0])) if (left > 0).any() else left > -np.inf
    if near.sum() >= max(_INTERVALS, 10 * len(most)):
        design, excess = design[near], excess[near]
        found = _solved(design, excess, most, 1.0)
    return np.where(design.any(axis=0), found, 0.0)


def _solved(design: Floats, excess: Floats, most: Floats, lack: float) -> Floats:
    """The robust fit with coefficients up to `most`; lack: the weight of what lies below it.

    It minimises a sum of soft absolute values (√(1 + z²) − 1), which is convex, by Newton's method
    on the coefficients that are not held at a bound (Bertsekas, SIAM Journal on Control and
    Optimization 1982).
    """

    def loss(x: Floats) -> tuple[float, Floats, Floats, Floats]:
        left = design @ x - excess
        weight = np.where(left > 0, lack, 1.0) / _SOFT
        root = np.sqrt(1 + (weight * left) ** 2)
        return float(root.sum()), weight, left, root

    found = most / 100
    value, weight, left, root = loss(found)
    for _ in range(_ITERATIONS):
        slope = design.T @ (weight**2 * left / root)
        curvature = (design.T * (weight**2 / root**3)) @ design
        free = ~(((found <= 0) & (slope > 0)) | ((found >= most) & (slope < 0)))
        unit = np.sqrt(np.maximum(curvature.diagonal(), 1e-300))
        scaled = (curvature / unit / unit[:, None])[np.ix_(free, free)]
        step = np.zeros(len(found))
        step[free] = np.linalg.lstsq(scaled, (slope / unit)[free])[0] / unit[free]
        for halvings in range(_HALVINGS):
            tried = np.clip(found - step / 2**halvings, 0.0, most)
            after = loss(tried)
            if after[0] < value:
                break
        else:
            break
        gained, found = value - after[0], tried
        value, weight, left, root = after
        if gained < 1e-10 * value:
            break
    return found
