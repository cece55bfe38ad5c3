"""The clocks of different processors against each other: all pairs, or a stated sample."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

from pgtare.errors import MeasurementError
from pgtare.kit import numbers
from pgtare.observing.clock import probe
from pgtare.observing.clock.distribution import NS
from pgtare.observing.clock.schema import CoreOffset, Cores

MOST_PAIRS = 64
ROUNDS = 5_000
#: An idle pair takes 2 ms; on a busy machine both threads must first run at once.
LIMIT_NS = 250_000_000
ALL_LIMIT_NS = 600_000_000


def sample(cpus: Sequence[int], most: int = MOST_PAIRS) -> tuple[list[tuple[int, int]], str | None]:
    """The pairs to compare, and a sentence if they are not all.

    Among many processors the first is compared with others, evenly spread if even those are
    too many: offsets between the others follow from two of these.
    """
    possible = len(cpus) * (len(cpus) - 1) // 2
    if len(cpus) < 2:
        return [], (
            f"only processor {cpus[0]} may be used (affinity, cgroup or a machine with one), so "
            "clocks across processors cannot be compared"
        )
    if possible <= most:
        return list(itertools.combinations(cpus, 2)), None
    first, others = cpus[0], cpus[1:]
    step = max(1.0, len(others) / most)
    chosen = [others[int(i * step)] for i in range(min(most, len(others)))]
    return [(first, other) for other in chosen], (
        f"a sample: processor {first} with {len(chosen)} others, of {possible:,} pairs"
    )


def compare(counter: bool, hz: int, cpus: Sequence[int] | None = None, offset: int = 0) -> Cores:
    """Compare the counter, or CLOCK_MONOTONIC, of the processors that may be used.

    offset: ticks added to the second processor's readings, for tests.
    """
    cpus = sorted(os.sched_getaffinity(0)) if cpus is None else cpus
    pairs, note = sample(cpus)
    found, failed = [], []
    limit = min(LIMIT_NS, ALL_LIMIT_NS // max(1, len(pairs)))
    for first, second in pairs:
        try:
            got = probe.cores(
                first, second, counter=counter, rounds=ROUNDS, limit_ns=limit, offset=offset
            )
        except MeasurementError as ex:
            failed.append(str(ex))
            continue
        scale = NS / hz if counter else 1.0
        found.append(
            CoreOffset(
                first=first,
                second=second,
                lo_ns=got.lower * scale,
                hi_ns=got.upper * scale,
                rounds=got.rounds,
                backward=got.backward,
            )
        )
    if failed:
        failures = failed[0] + (
            f"; nor {numbers.counted(len(failed) - 1, 'more pair')}" if len(failed) > 1 else ""
        )
        note = f"{note}; {failures}" if note else failures
    clock = "counter" if counter else "monotonic"
    possible = len(cpus) * (len(cpus) - 1) // 2
    return Cores(clock=clock if found else None, pairs=found, possible=possible, note=note)
