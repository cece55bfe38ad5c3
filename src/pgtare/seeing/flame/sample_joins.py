"""Joins samples to what went on at their moment: waits and statements, arms, a window of time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pgtare.seeing.flame.samples import StackSamples

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spans:
    """Stretches of time of processes, which do not overlap within one. Times: CLOCK_MONOTONIC.

    what: a number of the caller's for each stretch.
    """

    pid: Numbers
    start_ns: Numbers
    end_ns: Numbers
    what: Numbers


def at(samples: StackSamples, spans: Spans) -> Numbers:
    """`what` of the stretch that each sample begins in; -1 if there is none."""
    found = np.full(len(samples), -1, np.int64)
    for pid in np.unique(samples.pid):
        mine = np.flatnonzero(samples.pid == pid)
        theirs = np.flatnonzero(spans.pid == pid)
        if not len(theirs):
            continue
        theirs = theirs[np.argsort(spans.start_ns[theirs], kind="stable")]
        times = samples.start_ns[mine]
        place = np.searchsorted(spans.start_ns[theirs], times, side="right") - 1
        within = (place >= 0) & (times < spans.end_ns[theirs][np.maximum(place, 0)])
        found[mine] = np.where(within, spans.what[theirs][np.maximum(place, 0)], -1)
    return found


def window(samples: StackSamples, begin_ns: int, from_s: float, to_s: float) -> StackSamples:
    """The samples from `from_s` to `to_s` after the recording began; waits are cut to it."""
    first, last = begin_ns + int(from_s * 1e9), begin_ns + int(min(to_s, 1e9) * 1e9)
    point = samples.kind == 0
    end = np.where(point, samples.start_ns + 1, samples.start_ns + samples.weight_ns)
    inside = (end > first) & (samples.start_ns < last)
    cut = np.minimum(end, last) - np.maximum(samples.start_ns, first)
    weight = np.where(point, samples.weight_ns, cut)
    return replace(samples, weight_ns=weight).where(inside & (weight > 0))
