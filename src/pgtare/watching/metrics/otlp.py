"""What is shown, as OTLP over HTTP: sent to an OpenTelemetry collector every few seconds.

Every message has all values since counting began (cumulative temporality). So one that was lost is
made up for by the next, and none is sent twice.
"""

from __future__ import annotations

import gzip
import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import IO, Self
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

import pgtare
from pgtare.kit import option_values
from pgtare.kit.terminal_text import plain
from pgtare.watching.agent.agent_log import AgentLog
from pgtare.watching.agent.config import OtlpSettings
from pgtare.watching.metrics.families import MetricFamily, MetricPoint

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
#: The receiver may take this long to answer, s.
_TIMEOUT_S = 10.0
_MOST_ANSWER_BYTES = 64 << 10
_LONGEST_WORDS = 200


def message(
    families: Iterable[MetricFamily], bounds_s: Sequence[float], agent: str, now_ns: int
) -> ExportMetricsServiceRequest:
    """All families as one request. agent: what tells this agent from others. now_ns: since 1970."""
    metrics = [_metric(family, bounds_s, now_ns) for family in families if family.points]
    scope = InstrumentationScope(name="pgtare", version=pgtare.__version__)
    about = {
        "service.name": "pgtare",
        "service.version": pgtare.__version__,
        "service.instance.id": agent,
    }
    resource = Resource(attributes=_attributes(tuple(about), tuple(about.values())))
    scoped = ScopeMetrics(scope=scope, metrics=metrics)
    return ExportMetricsServiceRequest(
        resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scoped])]
    )


def _metric(family: MetricFamily, bounds_s: Sequence[float], now_ns: int) -> Metric:
    found = Metric(name=f"pgtare.{family.name}", description=family.about, unit=family.unit)
    if family.kind == "histogram":
        points = [_histogram(family, point, bounds_s, now_ns) for point in family.points]
        histogram = Histogram(data_points=points, aggregation_temporality=_CUMULATIVE)
        found.histogram.CopyFrom(histogram)
        return found
    numbers = [
        NumberDataPoint(
            attributes=_attributes(family.labels, point.labels),
            start_time_unix_nano=1000 * point.since_us,
            time_unix_nano=now_ns,
            as_double=point.value,
        )
        for point in family.points
    ]
    if family.kind == "counter":
        total = Sum(data_points=numbers, is_monotonic=True, aggregation_temporality=_CUMULATIVE)
        found.sum.CopyFrom(total)
    else:
        found.gauge.CopyFrom(Gauge(data_points=numbers))
    return found


def _histogram(
    family: MetricFamily, point: MetricPoint, bounds_s: Sequence[float], now_ns: int
) -> HistogramDataPoint:
    assert point.counts is not None
    counts = point.counts.tolist()
    return HistogramDataPoint(
        attributes=_attributes(family.labels, point.labels),
        start_time_unix_nano=1000 * point.since_us,
        time_unix_nano=now_ns,
        count=sum(counts),
        sum=point.value,
        bucket_counts=counts,
        explicit_bounds=bounds_s,
    )


def _attributes(names: tuple[str, ...], values: tuple[str, ...]) -> list[KeyValue]:
    return [
        KeyValue(key=name, value=AnyValue(string_value=value))
        for name, value in zip(names, values, strict=True)
    ]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another address would get the headers, which may hold a password."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Refuse every redirect."""


class OtlpSender:
    """Sends what is shown, by a thread of its own; a context manager, which sends a last time.

    families: what is shown now. No look, commit or scrape waits for it.
    """

    def __init__(
        self,
        settings: OtlpSettings,
        families: Callable[[], Iterable[MetricFamily]],
        bounds_s: Sequence[float],
        agent: str,
        log: AgentLog,
    ) -> None:
        assert settings.endpoint is not None
        self._settings, self._families, self._log = settings, families, log
        self._url: str = settings.endpoint
        self._bounds_s, self._agent = bounds_s, agent
        self._opener = urllib.request.build_opener(_NoRedirects())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.interval):
            self.send()
        self.send()

    def send(self) -> None:
        """Send once; what goes wrong is logged."""
        try:
            answer = self._post()
        except urllib.error.HTTPError as ex:
            with ex:
                why = f"{self.address} answered {ex.code} {ex.reason}{_remedy(ex.code)}"
        except (OSError, http.client.HTTPException) as ex:
            reason = ex.reason if isinstance(ex, urllib.error.URLError) else ex
            why = f"{self.address} cannot be reached: {reason}"
        else:
            why = _rejected(answer)
        if why:
            self._log.once("error", "otlp", "", plain(why))
        else:
            self._log.forget("otlp", "")

    @property
    def address(self) -> str:
        """The address to log, without what may be secret."""
        found = urlsplit(self._url)
        return f"{found.scheme}://{found.netloc}{found.path}"

    @property
    def is_open(self) -> bool:
        """Whether others could read what is sent."""
        found = urlsplit(self._url)
        return found.scheme == "http" and not option_values.is_loopback(found.hostname or "")

    def _post(self) -> bytes:
        request = message(self._families(), self._bounds_s, self._agent, time.time_ns())
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            "User-Agent": f"pgtare/{pgtare.__version__}",
        }
        body = gzip.compress(request.SerializeToString(), 5)
        post = urllib.request.Request(  # noqa: S310 - the configuration lets only HTTP through
            self._url, body, {**headers, **self._settings.headers}, method="POST"
        )
        with self._opener.open(post, timeout=_TIMEOUT_S) as answer:
            found: bytes = answer.read(_MOST_ANSWER_BYTES)
        return found


def _remedy(status: int) -> str:
    if status in (401, 403):
        return ": it may need a header, see metrics.otlp.headers"
    if status in (404, 405):
        return ": give the whole address of its metrics, as http://127.0.0.1:4318/v1/metrics"
    if 300 <= status < 400:
        return ": redirects are not followed, since headers may hold a password"
    return ""


def _rejected(answer: bytes) -> str:
    """What a receiver says that it did not take, or an empty string."""
    try:
        found = ExportMetricsServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return ""  # some answer in other ways; the status says that it was taken
    if not (found.rejected_data_points or found.error_message):
        return ""
    words = found.error_message[:_LONGEST_WORDS] or "it does not say why"
    return f"the receiver left out {found.rejected_data_points} values: {words}"
