"""Ten minutes of Prometheus that scrapes an agent.

Meanwhile all counters of the server are reset, the agent is stopped and started again, and killed
and started again after a pause. A steady load must look steady: no rate may rise over its median by
more than half, no series may fall, and all queries of rules and dashboard must give something.
The exit status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median

import pyarrow as pa
from prometheus_client import generate_latest
from tests.commands import start_pgtare
from tests.loads import traffic
from tests.prometheus import Prometheus, failed_queries, falls, fetch, free_port
from tests.servers import serving
from tests.sessions import session

from bench.harness import say
from bench.spool import START
from bench.spool import Server as SimulatedServer
from pgtare.errors import UsageError
from pgtare.keeping.metrics.exporter import MetricsExporter
from pgtare.keeping.spool import segments
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster

TAKES = "10 minutes, with Prometheus (Debian: apt-get install prometheus)"

_SCRAPE_S, _WINDOW = 15, "1m"
#: How far a rate may be above its median.
_MOST = 1.5
_PAUSE_S = 45
#: After the last start, until all windows are full again.
_SETTLED_S = 90
_RATES = {
    "sessions that wait for a lock": 'sum(rate(pgtare_active_seconds_total{type="Lock"}[W]))',
    "sessions that sleep": 'sum(rate(pgtare_active_seconds_total{event="PgSleep"}[W]))',
    "sleeps a second": 'sum(rate(pgtare_wait_duration_seconds_count{event="PgSleep"}[W]))',
    "sleeps under 4.2 ms a second": (
        'sum(rate(pgtare_wait_duration_seconds_bucket{event="PgSleep", le="0.004194303"}[W]))'
    ),
    "seconds slept a second": 'sum(rate(pgtare_wait_duration_seconds_sum{event="PgSleep"}[W]))',
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--costs", action="store_true", help="only what the metrics take")


def main(args: argparse.Namespace) -> int:
    """Play it, print a table; 1 if something is wrong."""
    for servers in (1, 100):
        print_costs(servers)
    if args.costs:
        return 0
    if shutil.which("prometheus") is None:
        raise UsageError("prometheus is not installed (Debian: apt-get install prometheus)")
    with tempfile.TemporaryDirectory() as name, serving(from_wheel()) as cluster:
        port = free_port()
        with (
            session(cluster) as holder,
            Prometheus(Path(name), port, f"{_SCRAPE_S}s") as prometheus,
        ):
            holder.execute("SELECT pg_advisory_lock(7)")
            with (
                traffic(cluster.dsn(), query="SELECT pg_sleep(0.003)"),
                traffic(cluster.dsn(), query="SELECT pg_sleep(0.02)"),
                waiting(cluster),
            ):
                began = time.monotonic()
                play(cluster, Path(name) / "spool", port, 60 * args.minutes)
                size = len(fetch(f"http://127.0.0.1:{port}/metrics"))
                say(f"a scrape: {size:,} bytes, {scrape_ms(port):.1f} ms")
                wrong = judge(prometheus, time.monotonic() - began)
                _agents[-1].send_signal(signal.SIGTERM)
                _agents[-1].communicate(timeout=60)
            holder.execute("SELECT pg_advisory_unlock_all()")
    return wrong


class waiting:
    """A session that waits for the lock, for `with`."""

    def __init__(self, cluster: Cluster) -> None:
        self._command = [str(cluster.binaries.program("psql")), cluster.dsn(), "-qAtc"]
        self._command.append("SELECT pg_advisory_lock(7)")
        self._cluster = cluster

    def __enter__(self) -> None:
        self._process = subprocess.Popen(
            self._command, cwd="/", stdout=subprocess.DEVNULL, **self._cluster.run_as
        )

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)


_agents: list[subprocess.Popen[str]] = []


def play(cluster: Cluster, spool: Path, port: int, seconds: float) -> None:
    """What happens to agent and server, and at which share of the time."""

    def start() -> None:
        words = ("agent", "--dsn", cluster.dsn(), "--spool", spool)
        _agents.append(start_pgtare(*words, "--metrics", f"127.0.0.1:{port}"))

    def stop(number: int) -> None:
        _agents[-1].send_signal(number)
        _agents[-1].communicate(timeout=60)

    began = time.monotonic()

    def until(share: float, what: str) -> None:
        time.sleep(max(0.0, began + share * seconds - time.monotonic()))
        say(f"{time.monotonic() - began:6.0f} s  {what}")

    try:
        until(0, "the agent is started")
        start()
        until(0.35, "all counters of the server are reset")
        with session(cluster) as admin:
            admin.execute("SELECT wait_event_timing_reset()")
        until(0.5, "the agent is stopped, and started at once")
        stop(signal.SIGTERM)
        start()
        until(0.65, f"the agent is killed, and started after {_PAUSE_S} s")
        stop(signal.SIGKILL)
        time.sleep(_PAUSE_S)
        start()
        time.sleep(_SETTLED_S)
        until(1, "the end")
    except BaseException:
        _agents[-1].kill()
        raise


def print_costs(servers: int) -> None:
    """Processor time of the metrics of simulated servers (`bench/spool.py`), median of ten."""
    simulated, up = SimulatedServer(), {f"server{number}": True for number in range(servers)}
    exporter = MetricsExporter(lambda server, part: None)
    commits, scrapes, size, series = [], [], 0, 0
    for number in range(10):
        tick = simulated.tick(START + timedelta(seconds=10 * number))
        rows = {
            name: pa.concat_tables(
                table.set_column(0, "server", pa.repeat(server, len(table))) for server in up
            )
            for name, table in tick.items()
        }
        began = time.process_time()
        size = sum(len(segments.encoded(table)) for table in exporter.grow(rows, 10).values())
        exporter.committed(up, written=True)
        commits.append(time.process_time() - began)
        began = time.process_time()
        text = generate_latest(exporter.registry)
        scrapes.append(time.process_time() - began)
        series = sum(line[:1] != b"#" for line in text.splitlines())
    say(
        f"{servers} servers: {1000 * median(commits):.1f} ms and {size:,} bytes a commit, "
        f"{1000 * median(scrapes):.1f} ms a scrape of {series:,} series"
    )


def judge(prometheus: Prometheus, seconds: float) -> int:
    """Print what Prometheus saw; 1 if anything is wrong."""
    wrong = 0
    say(f"{'rate over ' + _WINDOW:32}  median     max  max/median")
    for name, query in _RATES.items():
        found = prometheus.values(query.replace("W", _WINDOW), seconds, _SCRAPE_S)
        rates = found[0][1] if found else [0.0]
        ratio = max(rates) / median(rates) if median(rates) else float("inf")
        spike = ratio > _MOST
        say(f"{name:32} {median(rates):7.2f} {max(rates):7.2f} {ratio:11.2f} {'SPIKE' * spike}")
        wrong |= spike
    for labels in falls(prometheus, f"{round(seconds)}s"):
        say(f"fell: {labels}")
        wrong = 1
    for failed in failed_queries(prometheus, _WINDOW):
        say(f"failed, or empty: {failed}")
        wrong = 1
    say("something is wrong" if wrong else "no spike, nothing fell, all queries have answers")
    return int(wrong)


def scrape_ms(port: int) -> float:
    """The median time of a scrape, in ms."""
    times = []
    for _ in range(9):
        began = time.perf_counter()
        fetch(f"http://127.0.0.1:{port}/metrics")
        times.append(1000 * (time.perf_counter() - began))
    return median(times)
