"""Metrics by OTLP: the same values as a scrape has, and what is said if they cannot be sent."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)

import pgtare
from pgtare.errors import UsageError
from pgtare.watching.agent import config
from pgtare.watching.agent.agent_log import AgentLog
from pgtare.watching.agent.config import OtlpSettings
from pgtare.watching.metrics.exporter import MetricsExporter
from pgtare.watching.metrics.otlp import OtlpSender, message
from tests.commands import refused
from tests.otlp_receiver import OtlpReceiver, metrics_of, otlp_receiver, prometheus_values
from tests.unit.spool_rows import at
from tests.unit.test_metrics import (
    CPU,
    IDLE,
    INTERVAL_S,
    LOCK,
    READ,
    SECOND,
    commit,
    exporter,
    going_on,
    sessions,
    shown,
    tick,
    waits,
)

SPOOL = "a spool"


def sender(found: MetricsExporter, receiver: OtlpReceiver, **more: object) -> OtlpSender:
    settings = OtlpSettings.model_validate({"endpoint": receiver.endpoint, **more})
    shown = found.collector
    return OtlpSender(settings, shown.families, shown.bounds_s, SPOOL, AgentLog())


def filled(**more: bool) -> MetricsExporter:
    """An exporter that shows something of every family."""
    found = exporter(**more)
    commit(
        found,
        waits=waits({READ: (5, 2 * SECOND), IDLE: (7, 90 * SECOND), CPU: (0, 3 * SECOND)}),
        ticks=pa.concat_tables([tick(), tick("sessions")]),
        sessions=sessions(LOCK[:3], READ[:3], None),
    )
    return found


@pytest.mark.parametrize("every", [False, True])
def test_a_message_has_what_a_scrape_has(every: bool) -> None:
    found = filled(all_buckets=every)
    with otlp_receiver() as receiver:
        sender(found, receiver).send()
    (request,) = receiver.requests
    scraped = {(name, *sorted(labels)): value for (name, *labels), value in shown(found).items()}
    del scraped["pgtare_agent_info", f"version={pgtare.__version__}"]
    assert prometheus_values(request) == scraped
    assert len(scraped) > 50
    (resource,) = request.resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "pgtare"
    assert about["service.instance.id"] == SPOOL
    assert receiver.headers[0]["content-type"] == "application/x-protobuf"
    units = {metric.name: metric.unit for metric in metrics_of(request)}
    assert units["pgtare.wait_duration"] == "s"
    assert units["pgtare.up"] == ""
    for metric in metrics_of(request):
        kind = metric.WhichOneof("data")
        if kind != "gauge":
            assert getattr(metric, str(kind)).aggregation_temporality == 2  # cumulative


def test_counting_began_with_the_first_row_and_goes_on_after_a_restart() -> None:
    found = exporter()
    first_us = round(at(0).timestamp() * 1e6 - INTERVAL_S * 1e6)
    readings = commit(found, waits=waits({READ: (5, SECOND)}), ticks=tick())
    again = going_on(readings)
    commit(again, waits=waits({READ: (5, SECOND), LOCK: (1, 1)}, at(10)), ticks=tick())
    later_us = first_us + round(INTERVAL_S * 1e6)
    # an agent that did not note it yet goes on with what it has
    table = readings["shop", "metrics-waits"].drop_columns(["since_us"])
    older = going_on({("shop", "metrics-waits"): table})
    commit(older, waits=waits({READ: (5, SECOND)}, at(10)), ticks=tick())
    for one, wanted in (
        (found, {"DataFileRead": first_us}),
        (again, {"DataFileRead": first_us, "relation": later_us}),
        (older, {"DataFileRead": 0}),
    ):
        shown = one.collector
        request = message(shown.families(), shown.bounds_s, SPOOL, time.time_ns())
        (histogram,) = (m for m in metrics_of(request) if m.name == "pgtare.wait_duration")
        starts = {
            point.attributes[3].value.string_value: point.start_time_unix_nano // 1000
            for point in histogram.histogram.data_points
        }
        assert starts == wanted


def test_it_is_sent_again_and_again_and_once_at_the_end() -> None:
    found = filled()
    with otlp_receiver() as receiver:
        with sender(found, receiver, interval="1s", headers={"X-Key": "hush"}):
            deadline = time.monotonic() + 20
            while not receiver.requests and time.monotonic() < deadline:
                time.sleep(0.05)
            before = len(receiver.requests)
        assert before >= 1
        assert len(receiver.requests) >= before + 1
    assert receiver.headers[0]["x-key"] == "hush"


def test_what_goes_wrong_is_said_once_and_without_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = filled()
    with otlp_receiver() as receiver:
        rejected = ExportMetricsPartialSuccess(rejected_data_points=3, error_message="too old\n")
        one = sender(found, receiver, headers={"X-Key": "hush"})

        def said() -> str:
            one.send()
            one.send()
            log = capsys.readouterr().err
            assert log.count("\n") == 1, log
            assert "hush" not in log
            return log

        receiver.answer = ExportMetricsServiceResponse(partial_success=rejected)
        assert "left out 3 values: too old" in said()
        receiver.status = 404
        assert "answered 404 Not Found: give the whole address" in said()
        receiver.status = 401
        assert "metrics.otlp.headers" in said()
        receiver.status, receiver.location = 302, f"http://127.0.0.1:{receiver.port}/elsewhere"
        assert "redirects are not followed" in said()
        assert set(receiver.paths) == {"/v1/metrics"}
        # what is over is said again when it comes back
        receiver.status, receiver.answer = 200, ExportMetricsServiceResponse()
        one.send()
        assert capsys.readouterr().err == ""
        receiver.status = 302
        assert "redirects" in said()
    assert "cannot be reached" in said()


def test_a_receiver_that_does_not_answer_holds_nothing_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtare.watching.metrics.otlp._TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        receiver = OtlpReceiver(silent.getsockname()[1])
        sender(filled(), receiver).send()
    assert "cannot be reached: timed out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        ("https://otel.example.com/", "https://otel.example.com/v1/metrics"),
        ("http://[::1]:9090/api/v1/otlp/v1/metrics", "http://[::1]:9090/api/v1/otlp/v1/metrics"),
        ("https://otel.example.com/in?key=hush", "https://otel.example.com/in?key=hush"),
    ],
)
def test_endpoints(given: str, wanted: str) -> None:
    found = OtlpSettings(endpoint=given)
    assert found.endpoint == wanted
    sent = OtlpSender(found, list, [], SPOOL, AgentLog())
    assert "hush" not in sent.address
    assert sent.is_open is False


def test_an_open_way_is_known() -> None:
    settings = OtlpSettings(endpoint="http://otel.example.com:4318")
    assert OtlpSender(settings, list, [], SPOOL, AgentLog()).is_open


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("endpoint = '127.0.0.1:4318'", "metrics.otlp.endpoint: give an address of HTTP or HTTPS"),
        ("endpoint = 'http://127.0.0.1:99999'", "metrics.otlp.endpoint: give an address"),
        ("endpoint = 'http://me:hush@x'", "name user and password in metrics.otlp.headers"),
        ("endpoint = 'http://x/a b'", "write spaces"),
        ("interval = 10", "metrics.otlp.interval: write a time in quotes"),
        ("interval = '0.5s'", "metrics.otlp.interval: give 1s or more"),
        ('headers = { X = "hush\\nY: 1" }', "metrics.otlp.headers: a header has a name"),
        ("headers = { 'X Y' = 'hush' }", "metrics.otlp.headers: a header has a name"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f"[servers.a]\ndsn = 'x'\n[metrics.otlp]\n{text}\n")
    with pytest.raises(UsageError) as caught:
        config.read(path)
    assert words in str(caught.value)
    assert "hush" not in str(caught.value)


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    words = ("agent", "--dsn", "host=/nowhere", "--spool", tmp_path)
    assert "--otlp: give an address of HTTP" in refused(*words, "--otlp", "here:4318")
