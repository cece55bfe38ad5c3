"""What was committed last, as Prometheus reads it; uses no lock, no file and no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pgtare.keeping.metrics.server_totals import ServerSnapshot
from pgtare.keeping.metrics.wait_totals import SHOWN_BUCKETS
from pgtare.postgres.wait_counters.active_sessions import CPU_TYPE
from pgtare.postgres.wait_counters.counter_table import ACTIVE_NS, FIRST_BUCKET, TOTAL_NS

_EVENT = ("server", "backend_type", "type", "event")
#: The first bucket of a histogram holds what is shorter than 2 to the power of this, in ns.
_FIRST_POWER = 8
#: Where in the counts each shown bucket begins, the one without a bound included.
_STARTS = [0, *(bucket + 1 for bucket in SHOWN_BUCKETS)]


def bound_s(bucket: int) -> float:
    """The longest wait that a bucket counts, in s: 2^k − 1 ns, since waits are whole ns."""
    return ((1 << (bucket + _FIRST_POWER)) - 1) / 1e9


class SnapshotCollector(Collector):
    """Shows what `show` was given last. clock: never set, in s."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._bounds = [*(repr(bound_s(bucket)) for bucket in SHOWN_BUCKETS), "+Inf"]
        self._clock = clock
        self._shown: tuple[Mapping[str, bool], Mapping[str, ServerSnapshot], bool | None]
        self._shown = {}, {}, None

    def show(
        self, up: Mapping[str, bool], servers: Mapping[str, ServerSnapshot], written: bool
    ) -> None:
        """From now on, show this.

        up: servers that are watched, and whether each is connected. servers: what was committed of
        them. written: whether the last commit was written.
        """
        self._shown = up, servers, written  # one reference is replaced: a scrape needs no lock

    def collect(self) -> Iterable[Metric]:
        """The metrics of one scrape."""
        (up, committed, written), now_s = self._shown, self._clock()
        shown = {name: committed[name] for name in up if name in committed}
        yield from self._waits(shown, now_s)
        yield from _samples(shown, now_s)
        yield from _findings(shown)
        yield from _of_watching(up, shown)
        if written is not None:
            yield GaugeMetricFamily(
                "pgtare_spool_up", "Whether the last commit could be written.", value=float(written)
            )

    def _waits(self, servers: Mapping[str, ServerSnapshot], now_s: float) -> Iterator[Metric]:
        waits = HistogramMetricFamily(
            "pgtare_wait_duration_seconds",
            "Waits that ended, by how long they lasted; those for work are left out.",
            labels=_EVENT,
        )
        idle = HistogramMetricFamily(
            "pgtare_idle_wait_duration_seconds",
            "Waits for work that ended, by how long they lasted.",
            labels=_EVENT,
        )
        active = CounterMetricFamily(
            "pgtare_active_seconds",
            "Time that passed in waits, also in those that have not ended, and on processors "
            "(type CPU); its rate is the number of active sessions.",
            labels=_EVENT,
        )
        for name, server in servers.items():
            if now_s > server.series_until_s:
                continue
            for series in server.series:
                key = series.key
                labels = (name, key.backend_type, key.type, key.event)
                counted = now_s >= series.new_until_s
                if not key.idle:
                    active.add_metric(labels, series.seconds(ACTIVE_NS) if counted else 0.0)
                if key.type != CPU_TYPE:
                    buckets = np.add.reduceat(series.sums[FIRST_BUCKET:], _STARTS)
                    counts = np.cumsum(buckets if counted else np.zeros_like(buckets))
                    below = list(zip(self._bounds, counts.tolist(), strict=True))
                    family = idle if key.idle else waits
                    family.add_metric(labels, below, series.seconds(TOTAL_NS) if counted else 0.0)
        yield from (waits, idle, active)


def _samples(servers: Mapping[str, ServerSnapshot], now_s: float) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "pgtare_waiting_sessions",
        "Sessions that waited, seen by samples once a second; their mean since the last commit.",
        labels=_EVENT,
    )
    processors = GaugeMetricFamily(
        "pgtare_processors", "Processors that the server may use.", labels=("server",)
    )
    for name, server in servers.items():
        if now_s <= server.waiting_until_s:
            for key, sessions in server.waiting.items():
                waiting.add_metric((name, *key), sessions)
        if server.processors is not None:
            processors.add_metric((name,), server.processors)
    yield from (waiting, processors)


def _findings(servers: Mapping[str, ServerSnapshot]) -> Iterator[Metric]:
    labels = ("server", "kind", "class")
    count = GaugeMetricFamily(
        "pgtare_finding_open", "Findings that are open, by kind and class.", labels=labels
    )
    share = GaugeMetricFamily(
        "pgtare_finding_share",
        "The largest share of active time that an open finding of this kind and class takes, from "
        "0 to 1.",
        labels=labels,
    )
    for name, server in servers.items():
        for place, (number, largest) in sorted(server.findings.items()):
            count.add_metric((name, *place), number)
            if largest is not None:
                share.add_metric((name, *place), largest)
    yield from (count, share)


def _of_watching(
    connected: Mapping[str, bool], servers: Mapping[str, ServerSnapshot]
) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "pgtare_up", "Whether the agent is connected to the server.", labels=("server",)
    )
    for name, is_connected in connected.items():
        up.add_metric((name,), float(is_connected))
    last = GaugeMetricFamily(
        "pgtare_last_reading_timestamp_seconds",
        "When the server was read last, of what was committed; source: the table of the spool.",
        labels=("server", "source"),
    )
    losses = CounterMetricFamily(
        "pgtare_losses",
        "Waits that the server's module could not count, or entries that it evicted, by cause.",
        labels=("server", "kind"),
    )
    gaps = CounterMetricFamily(
        "pgtare_gaps", "Rows of table gaps of this server.", labels=("server", "kind")
    )
    for name, server in servers.items():
        for source, at_s in sorted(server.last_readings.items()):
            last.add_metric((name, source), at_s)
        for kind, count in sorted(server.losses.items()):
            losses.add_metric((name, kind), count)
        for kind, count in sorted(server.gaps.items()):
            gaps.add_metric((name, kind), count)
    yield from (up, last, losses, gaps)
