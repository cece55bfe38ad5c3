"""`pgtare live --dsn` on a real server: agent, spool and page by one command, nothing left."""

from __future__ import annotations

import csv
import http.client
import io
import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pgtare.postgres.binaries import Binaries
from tests.commands import refused, start_pgtare
from tests.servers import serving, stopped_at_once
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def asked(port: int, path: str, cookie: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers.get("set-cookie", "")


def printed_address(live: subprocess.Popen[str]) -> tuple[int, str]:
    assert live.stdout is not None
    for line in live.stdout:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)(/\?token=\S+)", line):
            return int(found[1]), found[2]
    raise AssertionError(live.communicate())


def seen(
    port: int, cookie: str, type_: str = "Timeout", least: int = 1, backend_type: str = ""
) -> list[dict[str, Any]]:
    """The events of one class on the page, once they have that many waits."""
    deadline = time.monotonic() + 60
    path = f"/breakdown.csv?by=event&table=by_event&type={type_}&backend_type={backend_type}"
    while time.monotonic() < deadline:
        status, text, _ = asked(port, path, cookie)
        assert status == 200, text
        rows = list(csv.DictReader(io.StringIO(text)))
        if sum(int(row["calls"]) for row in rows) >= least:
            return rows
        time.sleep(0.5)
    raise AssertionError("no rows")


@pytest.mark.slow
def test_a_first_look(wheel: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with stopped_at_once(serving(wheel)) as cluster:
        live = start_pgtare("live", "--dsn", cluster.dsn(), "--listen", "127.0.0.1:0")
        try:
            port, path = printed_address(live)
            (scratch,) = tmp_path.glob("pgtare-live-*")
            assert scratch.stat().st_mode & 0o077 == 0
            assert (scratch / "agent.toml").stat().st_mode & 0o077 == 0
            status, _, cookie = asked(port, path, "")
            assert status == 303
            cookie = cookie.partition(";")[0]
            with cluster.connect() as connection:
                for _ in range(8):
                    connection.execute("SELECT pg_sleep(0.5)")
                (row,) = seen(port, cookie)
            assert row["event"] == "PgSleep"
            assert int(row["calls"]) >= 1
            children = psutil.Process(live.pid).children(recursive=True)
            assert len(children) == 2  # the agent, and the process that queries
        finally:
            live.send_signal(signal.SIGINT)
            _, errors = live.communicate(timeout=30)
        assert (live.returncode, "Traceback" in errors) == (0, False), errors
        _, alive = psutil.wait_procs(children, timeout=5)
        assert alive == []
        assert list(tmp_path.glob("pgtare-live-*")) == []


@pytest.mark.parametrize(
    ("deadly", "once"),
    [(signal.SIGHUP, "spool"), (signal.SIGTERM, "agent.toml")],
    ids=["its agent is at work", "its agent is being started"],
)
def test_the_connection_string_goes_when_the_terminal_does(
    wheel: Binaries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deadly: signal.Signals,
    once: str,
) -> None:
    """Also before the page is served."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with stopped_at_once(serving(wheel)) as cluster:
        live = start_pgtare("live", "--dsn", cluster.dsn(), "--listen", "127.0.0.1:0")
        try:
            eventually(lambda: list(tmp_path.glob(f"pgtare-live-*/{once}")))
            live.send_signal(deadly)
            live.communicate(timeout=60)
        finally:
            live.kill()
    assert list(tmp_path.glob("pgtare-live-*")) == []


@pytest.mark.slow
def test_the_page_and_waits_top_give_the_same_figures(wheel: Binaries, tmp_path: Path) -> None:
    with stopped_at_once(serving(wheel)) as cluster:
        live = start_pgtare("live", "--dsn", cluster.dsn(), "--listen", "127.0.0.1:0")
        try:
            port, path = printed_address(live)
            cookie = asked(port, path, "")[2].partition(";")[0]
            top = start_pgtare(
                "waits", "top", "--dsn", cluster.dsn(), "--interval", "12s", "--json"
            )
            time.sleep(4)  # until it has had its first look
            with cluster.connect() as connection:
                for _ in range(20):
                    connection.execute("SELECT pg_sleep(0.05 + random() / 50)")
            found = seen(port, cookie, least=20, backend_type="client+backend")
            profile, errors = top.communicate(timeout=60)
        finally:
            live.send_signal(signal.SIGINT)
            live.communicate(timeout=30)
    assert top.returncode == 0, errors
    (event,) = (one for one in json.loads(profile)["events"] if one["event"]["name"] == "PgSleep")
    (row,) = found
    assert (row["event"], int(row["calls"])) == ("PgSleep", event["waits"])
    assert event["waits"] == 20
    assert int(row["active_ns"]) / 1e6 == pytest.approx(event["total_ms"], abs=0.001)
    assert float(row["mean_ns"]) / 1e6 == pytest.approx(event["mean_ms"], abs=0.001)


def test_a_server_that_is_not_there() -> None:
    words = refused("live", "--dsn", "host=/nowhere dbname=x", "--listen", "127.0.0.1:0", status=1)
    assert "nowhere" in words
