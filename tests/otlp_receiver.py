"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, decodes it, and keeps it."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

Values = dict[tuple[str, ...], float]


@dataclass
class OtlpReceiver:
    """What came, and what is answered."""

    port: int = 0
    status: int = 200
    answer: ExportMetricsServiceResponse = field(default_factory=ExportMetricsServiceResponse)
    location: str = ""
    requests: list[ExportMetricsServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/metrics"


@contextlib.contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver on a free port."""
    found = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found.paths.append(self.path)
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            found.requests.append(ExportMetricsServiceRequest.FromString(body))
            answer = found.answer.SerializeToString()
            self.send_response(found.status)
            if found.location:
                self.send_header("Location", found.location)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_GET(self) -> None:
            found.paths.append(f"GET {self.path}")
            self.send_error(405)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def metrics_of(request: ExportMetricsServiceRequest) -> list[Metric]:
    """The metrics of the only scope of the only resource."""
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return list(scope.metrics)


def prometheus_values(request: ExportMetricsServiceRequest) -> Values:
    """Values by name and labels, as Prometheus translates OTLP."""
    values: Values = {}
    for metric in metrics_of(request):
        seconds = "_seconds" if metric.unit == "s" else ""
        name = metric.name.replace(".", "_") + seconds
        kind = metric.WhichOneof("data")
        assert kind is not None
        for point in getattr(metric, kind).data_points:
            labels = [f"{one.key}={one.value.string_value}" for one in point.attributes]
            if kind != "histogram":
                total = "_total" if kind == "sum" else ""
                values[name + total, *sorted(labels)] = point.as_double
                continue
            values[f"{name}_sum", *sorted(labels)] = point.sum
            values[f"{name}_count", *sorted(labels)] = point.count
            assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
            bounds = [*map(repr, point.explicit_bounds), "+Inf"]
            below = 0
            for bound, count in zip(bounds, point.bucket_counts, strict=True):
                below += count
                values[f"{name}_bucket", *sorted([*labels, f"le={bound}"])] = below
    return values
