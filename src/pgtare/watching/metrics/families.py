"""What is shown of a snapshot, for any protocol: families of points with labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pgtare.watching.agent.counter_table import ACTIVE_NS, BUCKETS, FIRST_BUCKET, TOTAL_NS, Array
from pgtare.watching.agent.difference import PROCESSOR_TYPE
from pgtare.watching.metrics.server_totals import ServerSnapshot

#: A histogram counts from zero, as a counter does; a gauge is what is so now.
FamilyKind = Literal["histogram", "counter", "gauge"]

_EVENT = ("server", "backend_type", "type", "event")
#: The first bucket of a histogram holds what is shorter than 2 to the power of this, in ns.
_FIRST_POWER = 8


@dataclass(frozen=True)
class MetricsSnapshot:
    """All that is shown. up: servers that are watched, and whether each is connected.

    servers: what was committed of them. written: whether the last commit was written.
    """

    up: Mapping[str, bool] = field(default_factory=dict)
    servers: Mapping[str, ServerSnapshot] = field(default_factory=dict)
    written: bool | None = None


@dataclass(frozen=True)
class MetricPoint:
    """A value with its labels, in the order of the family's.

    value: of a histogram the sum. counts: of a histogram, how many lie in each bucket; the last
    bucket has no end. since_us: when counting began, since 1970; 0 if that is unknown.
    """

    labels: tuple[str, ...]
    value: float
    counts: Array | None = None
    since_us: int = 0


@dataclass
class MetricFamily:
    """Points of one name. unit: s, or what is counted in braces, as UCUM has it."""

    name: str
    kind: FamilyKind
    unit: str
    about: str
    labels: tuple[str, ...]
    points: list[MetricPoint] = field(default_factory=list)

    def add(
        self, labels: tuple[str, ...], value: float, counts: Array | None = None, since_us: int = 0
    ) -> None:
        """Add a point."""
        self.points.append(MetricPoint(labels, value, counts, since_us))


def shown_buckets(every: bool) -> list[int]:
    """The buckets whose upper bound is shown: all, or every second one; the last has none."""
    return list(range(0, BUCKETS - 1, 1 if every else 2))


def bound_s(bucket: int) -> float:
    """The longest wait that a bucket counts, in s: 2^k − 1 ns, since waits are whole ns."""
    return ((1 << (bucket + _FIRST_POWER)) - 1) / 1e9


def families(snapshot: MetricsSnapshot, buckets: list[int], now_s: float) -> Iterator[MetricFamily]:
    """All families to show now. buckets: those whose bound is shown."""
    shown = {name: snapshot.servers[name] for name in snapshot.up if name in snapshot.servers}
    yield from _waits(shown, buckets, now_s)
    yield from _samples(shown, now_s)
    yield from _of_watching(snapshot, shown)


def _waits(
    servers: Mapping[str, ServerSnapshot], buckets: list[int], now_s: float
) -> Iterator[MetricFamily]:
    waits = MetricFamily(
        "wait_duration",
        "histogram",
        "s",
        "Waits that ended, by how long they lasted; those for work are left out.",
        _EVENT,
    )
    idle = MetricFamily(
        "idle_wait_duration",
        "histogram",
        "s",
        "Waits for work that ended, by how long they lasted.",
        _EVENT,
    )
    active = MetricFamily(
        "active",
        "counter",
        "s",
        "Time that passed in waits, also in those that have not ended, and on processors "
        "(type CPU); its rate is the number of active sessions.",
        _EVENT,
    )
    starts = [0, *(bucket + 1 for bucket in buckets)]
    for name, server in servers.items():
        if now_s > server.series_until_s:
            continue
        for series in server.series:
            key, since_us = series.key, series.since_us
            labels = (name, key.backend_type, key.type, key.event)
            sums = series.sums if now_s >= series.new_until_s else np.zeros_like(series.sums)
            if not key.idle:
                active.add(labels, int(sums[ACTIVE_NS]) / 1e9, since_us=since_us)
            if key.type != PROCESSOR_TYPE:
                counts = np.add.reduceat(sums[FIRST_BUCKET:], starts)
                family = idle if key.idle else waits
                family.add(labels, int(sums[TOTAL_NS]) / 1e9, counts, since_us)
    yield from (waits, idle, active)


def _samples(servers: Mapping[str, ServerSnapshot], now_s: float) -> Iterator[MetricFamily]:
    waiting = MetricFamily(
        "waiting_sessions",
        "gauge",
        "{session}",
        "Sessions that waited, seen by samples once a second; their mean since the last commit.",
        _EVENT,
    )
    processors = MetricFamily(
        "processors",
        "gauge",
        "{processor}",
        "Processors that the server may use.",
        ("server",),
    )
    for name, server in servers.items():
        if now_s <= server.waiting_until_s:
            for key, sessions in server.waiting.items():
                waiting.add((name, *key), sessions)
        if server.processors is not None:
            processors.add((name,), server.processors)
    yield from (waiting, processors)


def _of_watching(
    snapshot: MetricsSnapshot, servers: Mapping[str, ServerSnapshot]
) -> Iterator[MetricFamily]:
    up = MetricFamily(
        "up", "gauge", "", "Whether the agent is connected to the server.", ("server",)
    )
    for name, connected in snapshot.up.items():
        up.add((name,), float(connected))
    last = MetricFamily(
        "last_reading_timestamp",
        "gauge",
        "s",
        "When the server was read last, of what was committed; source: the table of the spool.",
        ("server", "source"),
    )
    losses = MetricFamily(
        "losses",
        "counter",
        "{wait}",
        "Waits that the server's module could not count, by cause.",
        ("server", "kind"),
    )
    gaps = MetricFamily(
        "gaps", "counter", "{gap}", "Rows of table gaps of this server.", ("server", "kind")
    )
    left_out = MetricFamily(
        "series_left_out",
        "gauge",
        "{series}",
        "Time series for which there was no room (most_series); they are counted as (other).",
        ("server",),
    )
    for name, server in servers.items():
        for source, at_s in sorted(server.last_readings.items()):
            last.add((name, source), at_s)
        for kind, count in sorted(server.losses.items()):
            losses.add((name, kind), count)
        for kind, count in sorted(server.gaps.items()):
            gaps.add((name, kind), count)
        left_out.add((name,), server.left_out)
    yield from (up, last, losses, gaps, left_out)
    if snapshot.written is not None:
        spool = MetricFamily(
            "spool_up", "gauge", "", "Whether the last commit could be written.", ()
        )
        spool.add((), float(snapshot.written))
        yield spool
