"""What was committed last, as Prometheus reads it; uses no lock, no file and no server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pgtare.watching.agent.counter_table import Array
from pgtare.watching.metrics.families import (
    MetricFamily,
    MetricsSnapshot,
    bound_s,
    families,
    shown_buckets,
)


class SnapshotCollector(Collector):
    """Shows the snapshot that `show` was given last. clock: never set, in s."""

    def __init__(self, every_bucket: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = shown_buckets(every_bucket)
        self.bounds_s = [bound_s(bucket) for bucket in self._buckets]
        """upper ends of the buckets of all histograms, except the last, which has none"""
        self._bounds = [*map(repr, self.bounds_s), "+Inf"]
        self._clock = clock
        self._snapshot = MetricsSnapshot()

    def show(self, snapshot: MetricsSnapshot) -> None:
        """From now on, show this."""
        self._snapshot = snapshot  # a reference is replaced at once, so a scrape needs no lock

    def families(self) -> Iterator[MetricFamily]:
        """All that is shown now."""
        return families(self._snapshot, self._buckets, self._clock())

    def collect(self) -> Iterable[Metric]:
        """The metrics of one scrape."""
        for family in self.families():
            name = f"pgtare_{family.name}{'_seconds' if family.unit == 's' else ''}"
            if family.kind == "histogram":
                histogram = HistogramMetricFamily(name, family.about, labels=family.labels)
                for point in family.points:
                    assert point.counts is not None
                    histogram.add_metric(point.labels, self._cumulative(point.counts), point.value)
                yield histogram
                continue
            of_kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            found = of_kind(name, family.about, labels=family.labels)
            for point in family.points:
                found.add_metric(point.labels, point.value)
            yield found

    def _cumulative(self, counts: Array) -> list[tuple[str, float]]:
        return list(zip(self._bounds, np.cumsum(counts).tolist(), strict=True))
