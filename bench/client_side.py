"""What the client of a trial in slices sees: latencies from pgbench's log, and throughput.

The slices of a trial follow from its seed, so that a client's transaction can be put into the slice
in which it was due. Each slice gives one number for each quantity; a block of slices holds each arm
once, and its differences from the base are the units of inference.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench import harness
from pgtare.estimate.inference import Estimate, Reference, mean_of_blocks
from pgtare.estimate.trial.design import Design, slice_ends, slice_order
from pgtare.estimate.trial.observations import Observations
from pgtare.kit import machine
from pgtare.load import LoadSpec, TransactionLog, find_pgbench
from pgtare.load.pgbench import run
from pgtare.server import own_session
from pgtare.weighing.trials import Population, Trials

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: The queue of the slice before has gone by then, and the slice after has not begun to count.
GUARD_NS = 8_000_000
#: The body's cap, pooled over all arms.
CAP = 0.999
_LEAD_S = 1


@dataclass(frozen=True)
class Recorded:
    """A trial in slices from both sides; due_ns, latency_us: the client's transactions (N,)."""

    observations: Observations
    due_ns: Ints
    latency_us: Floats
    idle: float


def record(target: harness.Server, spec: LoadSpec, design: Design, seconds: int) -> Recorded:
    """Run a load with its log on while a trial in slices runs."""
    pgbench = find_pgbench(target.binaries)
    with (
        TransactionLog() as log,
        own_session.connect(target.dsn) as conn,
        ThreadPoolExecutor(1) as threads,
    ):
        population = Population(conn.info.dbname, application="pgtare-load-*", sessions=64)
        whole = seconds + 2 * _LEAD_S + 1
        load = threads.submit(run, pgbench, target.dsn, spec, whole, log=log)
        time.sleep(_LEAD_S)  # until all of its clients are at work
        before = machine.usage()
        got = harness.observe(Trials(conn), design, population, seconds, cpu=True, load=None)
        after = machine.usage()
        started = Trials(conn).status().started
        load.result()
        logged = log.transactions()
    assert started is not None
    begin_us = round(started.timestamp() * 1e6)
    idle = (after.idle - before.idle) / max(after.total - before.total, 1)
    return Recorded(got.observations, 1000 * (logged.due_us - begin_us), logged.latency_us, idle)


@dataclass(frozen=True)
class Schedule:
    """The whole slices of a trial that lasted until end_ns: begin, end and arm of each (S,)."""

    begin_ns: Ints
    end_ns: Ints
    arm: Ints
    block: Ints

    @classmethod
    def of(cls, design: Design, end_ns: int) -> Schedule:
        """Of a design with one slice an arm in each block."""
        assert design.slices is not None
        per_block = len(design.slices.kinds)
        ends = np.array(
            list(itertools.takewhile(lambda end: end <= end_ns, slice_ends(design))), dtype=np.int64
        )
        whole = len(ends) // per_block * per_block
        begins = np.concatenate([[0], ends[:-1]])[:whole] if whole else ends[:0]
        orders = [slice_order(design, block) for block in range(whole // per_block)]
        arms = np.array([arm for order in orders for arm in order], dtype=np.int64)
        return cls(begins, ends[:whole], arms, np.arange(whole, dtype=np.int64) // per_block)

    def place(self, at_ns: Ints, guard_ns: int = GUARD_NS) -> Ints:
        """The slice in which each time lies (N,), -1 outside all and near the ends of one."""
        number = np.searchsorted(self.end_ns, at_ns, side="right")
        inside = (at_ns >= 0) & (number < len(self.end_ns))
        safe = np.where(inside, number, 0)
        if not len(self.end_ns):
            return np.full(len(at_ns), -1, dtype=np.int64)
        inside &= at_ns >= self.begin_ns[safe] + guard_ns
        inside &= at_ns < self.end_ns[safe] - guard_ns
        return np.where(inside, number, -1)

    def difference(self, by_slice: Floats, arm: int, base: int) -> Estimate:
        """Of an arm from a base, from one number a slice (S,); t over blocks that have both."""
        blocks = int(self.block[-1]) + 1 if len(self.block) else 0
        table = np.full((blocks, int(self.arm.max(initial=0)) + 1), np.nan)
        table[self.block, self.arm] = by_slice
        d = table[:, arm] - table[:, base]
        d = d[np.isfinite(d)]
        return mean_of_blocks(d, Reference(len(d), len(d) - 1))


def per_slice(number: Ints, values: Floats, slices: int) -> Floats:
    """The mean of the values in each slice (S,), NaN if there is none."""
    keep = number >= 0
    count = np.bincount(number[keep], minlength=slices)
    total = np.bincount(number[keep], weights=values[keep], minlength=slices)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / count)


def median_of(number: Ints, values: Floats, slices: int) -> Floats:
    """The median of the values in each slice (S,), NaN if there is none."""
    keep = number >= 0
    if not keep.any():
        return np.full(slices, np.nan)
    order = np.lexsort((values[keep], number[keep]))
    ordered = values[keep][order]
    count = np.bincount(number[keep], minlength=slices)
    middle = np.cumsum(count) - count + count // 2
    return np.where(count > 0, ordered[np.minimum(middle, len(ordered) - 1)], np.nan)


@dataclass(frozen=True)
class Seen:
    """Differences from the base by arm, and the base's own values."""

    median_us: list[Estimate]  # of the latency at the client
    latency_us: list[Estimate]
    service_us: list[Estimate]
    cpu_us: list[Estimate]
    tps: list[Estimate]
    base: dict[str, float]


def seen(recorded: Recorded, design: Design) -> Seen:
    """Latency at the client, service time and CPU in the server, and throughput, by arm."""
    schedule = Schedule.of(design, int(recorded.observations["start_ns"].max(initial=0)))
    columns = by_slice(recorded, schedule)
    found: dict[str, Any] = {
        name: [schedule.difference(values, arm, 0) for arm in range(len(design.arms))]
        for name, values in columns.items()
    }
    base = {name: float(np.nanmean(values[schedule.arm == 0])) for name, values in columns.items()}
    return Seen(**found, base=base)


def between(recorded: Recorded, design: Design, quantity: str, arm: int, base: int) -> Estimate:
    """The difference of one quantity between any two arms."""
    schedule = Schedule.of(design, int(recorded.observations["start_ns"].max(initial=0)))
    return schedule.difference(by_slice(recorded, schedule)[quantity], arm, base)


def by_slice(recorded: Recorded, schedule: Schedule, guard_ns: int = GUARD_NS) -> dict[str, Floats]:
    """What each slice (S,) says of each quantity; what was not taken is NaN."""
    data, slices = recorded.observations, len(schedule.arm)
    own = schedule.place(np.asarray(data["start_ns"], dtype=np.int64), guard_ns)
    length_s = (schedule.end_ns - schedule.begin_ns - 2 * guard_ns) / 1e9
    columns: dict[str, Floats] = {
        "service_us": per_slice(own, _body(data["service_ns"] / 1000.0), slices),
        "cpu_us": per_slice(own, _body(data["cpu_ns"] / 1000.0), slices),
        "tps": np.bincount(own[own >= 0], minlength=slices) / length_s,
        "latency_us": np.full(slices, np.nan),
        "median_us": np.full(slices, np.nan),
    }
    if len(recorded.due_ns):
        client = schedule.place(recorded.due_ns, guard_ns)
        columns["latency_us"] = per_slice(client, _body(recorded.latency_us), slices)
        columns["median_us"] = median_of(client, recorded.latency_us, slices)
    return columns


def _body(values: Floats) -> Floats:
    return np.minimum(values, np.quantile(values, CAP)) if len(values) else values
