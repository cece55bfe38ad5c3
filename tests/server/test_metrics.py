"""What Prometheus sees of an agent that is killed, and of a server whose counters are reset."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.keeping.spool import reader
from pgtare.keeping.spool.writer import Spool
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.wait_counters.counter_table import SUMS
from tests.loads import traffic
from tests.prometheus import (
    RULES,
    Prometheus,
    failed_queries,
    falls,
    fetch,
    free_port,
    require_prometheus,
)
from tests.servers import serving, stopped_at_once
from tests.sessions import eventually, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

CONFIG = """
[intervals]
waits = "2s"  # a shorter one slows down on a busy machine
statements = "60s"
sessions = "0.5s"
activity = "1s"
[metrics]
listen = "127.0.0.1:{port}"
[servers.shop]
dsn = "{dsn}"
"""
ACTIVE = 'sum(pgtare_active_seconds_total{type="Lock"})'
COUNT, SLEEP = "pgtare_wait_duration_seconds_count", "event=PgSleep"
WINDOW = "20s"


@pytest.fixture
def cluster(wheel: Binaries) -> Iterator[Cluster]:
    with stopped_at_once(serving(wheel)) as found:
        with found.connect() as connection:
            connection.execute("CREATE TABLE sales (amount int)")
        yield found


def test_the_rules_pass_their_own_tests() -> None:
    require_prometheus()
    done = subprocess.run(
        ["promtool", "test", "rules", "rules_test.yml"],
        cwd=RULES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # each fires in one of them, and is silent in another
    text = (RULES.parent / "rules_test.yml").read_text()
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert len(alerts) == 8
    assert set(re.findall(r"alertname: (\w+)\n\s+exp_alerts", text)) == alerts
    assert set(re.findall(r"alertname: (\w+)\}", text)) == alerts
    subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"],
        cwd=RULES.parent,
        capture_output=True,
        check=True,
    )


@pytest.mark.slow
def test_prometheus_sees_no_spike(
    cluster: Cluster, started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    require_prometheus()
    port, spool, config = free_port(), tmp_path / "spool", tmp_path / "agent.toml"
    config.write_text(CONFIG.format(dsn=cluster.dsn(), port=port))
    words = ("agent", "--config", config, "--spool", spool)
    address = f"http://127.0.0.1:{port}/metrics"
    with (
        session(cluster) as holder,
        session(cluster) as admin,
        Prometheus(tmp_path, port, "1s") as prometheus,
    ):
        holder.execute("SELECT pg_advisory_lock(7)")
        with traffic(cluster.dsn(), query="INSERT INTO sales SELECT 1 FROM pg_sleep(0.002)"):
            waiter = a_waiter(cluster)
            agent = started(*words)

            def scraped(more: float) -> None:
                now = value(prometheus, ACTIVE)
                eventually(lambda: value(prometheus, ACTIVE) >= now + more, 100)

            scraped(3)
            admin.execute("SELECT wait_event_timing_reset()")
            scraped(2)
            os.kill(agent.pid, signal.SIGKILL)
            agent.communicate()
            time.sleep(1)
            agent = started(*words)
            scraped(4)
            failed = until_none(lambda: failed_queries(prometheus, WINDOW))
            assert failed == []
            # one session waits for a lock, all the time
            rate = f'sum(rate(pgtare_active_seconds_total{{type="Lock"}}[{WINDOW}]))'
            ((_, rates),) = prometheus.values(rate, 60, 1)
            assert max(rates) < 2, rates
            ((_, waiting),) = prometheus.instant('pgtare_waiting_sessions{type="Lock"}')
            assert waiting == 1
            assert falls(prometheus, "2m") == []
        # a scrape asks no server: without one the answer is the same
        cluster.stop("immediate")
        eventually(lambda: 'pgtare_up{server="shop"} 0.0' in fetch(address), 20)
        assert "pgtare_gaps_total" in fetch(address)
        waiter.wait(20)
        agent.send_signal(signal.SIGTERM)
        _, log = agent.communicate(timeout=30)
        assert agent.returncode == 0, log
        assert f"event=metrics listen=127.0.0.1:{port}" in log
    assert_exact(spool)


@pytest.mark.slow
def test_an_outage_is_an_alert(
    cluster: Cluster, started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """All sessions wait for one: it fires after half a minute, and ends with the outage."""
    require_prometheus()
    port, config = free_port(), tmp_path / "agent.toml"
    config.write_text(CONFIG.format(dsn=cluster.dsn(), port=port))

    def alerts() -> list[tuple[str, str]]:
        found = [one for one in prometheus.ask("alerts")["alerts"] if one["state"] == "firing"]
        return sorted((one["labels"]["alertname"], one["labels"].get("kind", "")) for one in found)

    with session(cluster) as holder, Prometheus(tmp_path, port, "1s") as prometheus:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE sales")
        waiters = [a_waiter(cluster, "INSERT INTO sales VALUES (1)") for _ in range(4)]
        agent = started("agent", "--config", config, "--spool", tmp_path / "spool")
        assert eventually(lambda: ("PgtareOutage", "lock") in alerts(), 150), alerts()
        text = fetch(f"http://127.0.0.1:{port}/metrics")
        open_now = re.findall(r"pgtare_finding_open\{(.*?)\} 1.0", text)
        assert 'class="0",kind="lock",server="shop"' in open_now
        (one,) = [
            one
            for one in prometheus.ask("alerts")["alerts"]
            if one["labels"]["alertname"] == "PgtareOutage"
        ]
        page = "http://127.0.0.1:8765/findings?last=1h&server=shop"
        assert one["annotations"]["page"] == page
        holder.close()
        for waiter in waiters:
            waiter.wait(30)
        assert eventually(lambda: alerts() == [], 150), alerts()
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=30)


def a_waiter(
    cluster: Cluster, query: str = "SELECT pg_advisory_lock(7)"
) -> subprocess.Popen[bytes]:
    """A session that waits for a lock, in a process of its own."""
    psql = str(cluster.binaries.program("psql"))
    command = [psql, cluster.dsn(), "-qAtc", query]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd="/", **quiet, **cluster.run_as)


def until_none(found: Callable[[], list[str]], seconds: float = 60) -> list[str]:
    """What is still found at the end: a rate needs two scrapes after the restart."""
    deadline = time.monotonic() + seconds
    while (left := found()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def value(prometheus: Prometheus, query: str) -> float:
    found = prometheus.instant(query)
    return found[0][1] if found else 0.0


def assert_exact(directory: Path) -> None:
    """The totals are the sums of all rows, by pair and column."""
    keys = "backend_type, type, event, idle"
    with reader.connect(directory) as found:
        sums = ", ".join(f"sum({name})::BIGINT" for name in SUMS)
        rows = found.execute(f"SELECT {keys}, {sums} FROM waits GROUP BY {keys}").fetchall()
    with Spool.open(directory) as spool:
        stored = spool.reading("shop", "metrics-waits")
    assert stored is not None
    columns = [stored[name].to_pylist() for name in (*keys.split(", "), *SUMS)]
    assert sorted(rows) == sorted(zip(*columns, strict=True))
    assert len(rows) > 10
