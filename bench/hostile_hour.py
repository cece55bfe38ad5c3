"""An hour of hostile neighbours beside a healthy server: memory of the agent and of the live page.

The agent watches a healthy server, and one stand-in for each kind of answer that never ends. A
thousand connections to the live page never log in. A role of the healthy server makes errors all
the time, each of which the flight recorder could keep. Meanwhile, four times, another role's new
error must be kept, and once a minute the page must answer.

It prints memory minute by minute. The exit status is 1 if the healthy server has a gap, if the page
or the recorder fails, or if the agent or the page grows by more than MOST_MB.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
from tests.hostile_server import FLOODS, HostileServer

from bench.agent_runs import AgentProcess
from bench.harness import say
from pgtare.errors import MeasurementError
from pgtare.keeping.spool import reader
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value
from pgtare.postgres.signals import StopRequest, asked_to_stop

TAKES = "an hour (--minutes)"

CONNECTIONS, MOST_MB, MINUTE_S, CAUSES = 1_000, 100, 60.0, 4
_SETTLED_S = 120.0
#: How often a page is asked for again that the storm of connections cut off.
_ASKED_AGAIN = 2
_MODULES = "wait_event_timing", "sql_trace"
_ROLES = """
CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
CREATE ROLE flooder LOGIN;
CREATE ROLE app LOGIN;
CREATE ROLE office LOGIN;
"""


@dataclass
class Hour:
    """The processes that are looked at, and what was seen of them."""

    cluster: Cluster
    agent: psutil.Process
    page: psutil.Process
    address: str
    #: minutes, and MB of the agent and of the page
    memory: list[tuple[float, float, float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    causes: int = 0
    errors: int = 0
    refused: int = 0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=60.0)


def main(args: argparse.Namespace) -> int:
    """Play the hour, print memory and what went wrong; 1 if anything did."""
    with (
        tempfile.TemporaryDirectory(prefix="pgtare-hostile-", dir="/var/tmp") as name,
        asked_to_stop() as stop,
        _healthy() as cluster,
        contextlib.ExitStack() as hostile,
    ):
        directory = Path(name)
        servers = {flood: hostile.enter_context(HostileServer(flood)) for flood in FLOODS}
        dsns = {"healthy": cluster.dsn(user="watcher")}
        dsns |= {flood.replace(" ", "-"): each.dsn for flood, each in servers.items()}
        with _programs(directory, dsns) as (agent, page, address):
            hour = Hour(cluster, agent, page, address)
            _play(hour, 60 * args.minutes, stop)
            floods = {flood: each.floods for flood, each in servers.items()}
        with reader.connect(directory / "spool") as spool:
            gaps = spool.execute("SELECT server, kind, count(*) FROM gaps GROUP BY ALL").fetchall()
            ((ticks,),) = spool.execute(
                "SELECT count(*) FROM ticks WHERE server = 'healthy' AND source = 'waits'"
            ).fetchall()
    hour.wrong += [f"gap at the healthy server: {gap}" for gap in gaps if gap[0] == "healthy"]
    _show(hour)
    print(f"answers without end, by kind: {floods}")
    print(f"gaps of their servers: {sum(n for server, _, n in gaps if server != 'healthy')}")
    print(f"readings of the healthy server: {ticks}; errors of the flooding role: {hour.errors:,}")
    print(f"new causes that were kept: {hour.causes}; connections that were cut: {hour.refused:,}")
    for line in hour.wrong:
        print(f"WRONG: {line}")
    return int(bool(hour.wrong))


@contextlib.contextmanager
def _healthy() -> Iterator[Cluster]:
    binaries = from_wheel()
    modules = [loadable(binaries, name) for name in _MODULES]
    settings: dict[str, Value] = {
        "wait_event_timing.capture": "stats",
        "compute_query_id": True,
        "sql_trace.recorder": True,
        "sql_trace.recorder_memory": "32MB",
        "sql_trace.keep_sqlstates": "22012",
        "max_connections": 50,
    }
    with Cluster(binaries, settings, [module.library for module in modules]) as cluster:
        with cluster.connect() as connection:
            for module in modules:
                connection.execute(module.create_sql.encode())
            connection.execute(_ROLES)
        yield cluster


@contextlib.contextmanager
def _programs(
    directory: Path, dsns: dict[str, str]
) -> Iterator[tuple[psutil.Process, psutil.Process, str]]:
    """The agent and the live page, and the page's address with its token."""
    config = directory / "agent.toml"
    config.write_text("".join(f'[servers.{name}]\ndsn = "{dsn}"\n' for name, dsn in dsns.items()))
    spool, logs = directory / "spool", [directory / "agent.log", directory / "live.log"]
    words = [sys.executable, "-m", "pgtare", "live", "--spool", spool, "--listen", "127.0.0.1:0"]
    with (
        AgentProcess(logs[0], "--config", config, "--spool", spool) as agent,
        logs[1].open("wb") as log,
    ):
        while agent.pid and not (spool / "manifest.json").exists():
            time.sleep(0.5)
        page = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while not (found := re.search(r"http://\S+token=\S+", logs[1].read_text())):
                if page.poll() is not None:
                    raise MeasurementError(f"the page ended: {logs[1].read_text()[-500:]}")
                time.sleep(0.5)
            yield psutil.Process(agent.pid), psutil.Process(page.pid), found.group()
        finally:
            page.terminate()
            page.wait(60)
            for each in logs:
                say(f"{each.name} has {each.stat().st_size:,} bytes")


def _play(hour: Hour, seconds: float, stop: StopRequest) -> None:
    over = threading.Event()
    helpers = [threading.Thread(target=_flood, args=[hour, over])]
    helpers.append(threading.Thread(target=_connect_again_and_again, args=[hour, over]))
    cookie = _log_in(hour.address)
    for helper in helpers:
        helper.start()
    began = time.monotonic()
    due_minute, due_cause = began, began + seconds / CAUSES / 2
    try:
        while (now := time.monotonic()) < began + seconds and not stop.made:
            if now >= due_minute:
                due_minute += MINUTE_S
                minutes = (now - began) / 60
                hour.memory.append((minutes, _mb(hour.agent), _mb(hour.page)))
                answered = _answers(hour.address, cookie)
                if answered:
                    hour.wrong.append(f"minute {minutes:.0f}: the page: {answered}")
                say(f"agent {hour.memory[-1][1]:.0f} MB, page {hour.memory[-1][2]:.0f} MB")
            if now >= due_cause:
                due_cause += seconds / CAUSES
                _new_cause(hour)
            time.sleep(0.5)
    finally:
        over.set()
        for helper in helpers:
            helper.join()


def _mb(process: psutil.Process) -> float:
    family = [process, *process.children(recursive=True)]
    return float(sum(one.memory_info().rss for one in family)) / 1e6


def _flood(hour: Hour, over: threading.Event) -> None:
    """Errors that differ, and so are different causes, ten a second."""
    with psycopg.connect(hour.cluster.dsn(user="flooder"), autocommit=True) as connection:
        while not over.wait(0.1):
            columns = ", ".join(f"{n} AS c{n}" for n in range(hour.errors % 500))
            with contextlib.suppress(psycopg.errors.DivisionByZero):
                connection.execute(f"SELECT 1/0 AS x{', ' if columns else ''}{columns}".encode())
            hour.errors += 1


def _connect_again_and_again(hour: Hour, over: threading.Event) -> None:
    """A thousand connections that say nothing; those that are cut are opened again."""
    place = _place(hour.address)
    opened: list[socket.socket] = []
    while not over.wait(0.2):
        with contextlib.suppress(OSError):
            while len(opened) < CONNECTIONS:
                opened.append(socket.create_connection(place, timeout=1))
                opened[-1].setblocking(False)
        left = []
        for one in opened:
            try:
                cut = one.recv(1) == b""
            except BlockingIOError:
                cut = False
            except OSError:
                cut = True
            if cut:
                hour.refused += 1
                one.close()
            else:
                left.append(one)
        opened = left
    for one in opened:
        one.close()


def _place(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def _request(address: str, path: str, cookie: str = "") -> http.client.HTTPResponse:
    """The answer but for its text. As a reader would, it asks again if the connection is cut."""
    for _ in range(_ASKED_AGAIN):
        with contextlib.suppress(ConnectionError):
            return _request_once(address, path, cookie)
        time.sleep(1.0)
    return _request_once(address, path, cookie)


def _request_once(address: str, path: str, cookie: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*_place(address), timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        answer = connection.getresponse()
        answer.read()
        return answer


def _log_in(address: str) -> str:
    answer = _request(address, f"/?{urlsplit(address).query}")
    return (answer.headers["set-cookie"] or "").partition(";")[0]


def _answers(address: str, cookie: str) -> str:
    """What is wrong with the page's answer; empty if nothing is."""
    try:
        answer = _request(address, "/activity", cookie)
        return "" if answer.status == 200 else f"status {answer.status}"
    except OSError as ex:
        return f"{type(ex).__name__}: {ex}"


def _new_cause(hour: Hour) -> None:
    """An error of another role: the recorder must keep it in spite of the flood."""
    role = ("app", "office")[hour.causes % 2]
    with hour.cluster.connect() as admin:
        ((schema,),) = admin.execute(
            "SELECT pronamespace::regnamespace::text FROM pg_proc WHERE proname = 'sql_trace_kept'"
        ).fetchall()
        kept = f"SELECT count(*) FROM {schema}.sql_trace_kept() WHERE userid = '{role}'::regrole"
        query = kept.encode()
        ((before,),) = admin.execute(query).fetchall()
        with psycopg.connect(hour.cluster.dsn(user=role), autocommit=True) as app:
            columns = ", ".join(f"{n} AS d{n}" for n in range(hour.causes + 1))
            with contextlib.suppress(psycopg.errors.DivisionByZero):
                app.execute(f"SELECT 1/0 AS y, {columns}".encode())
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            ((after,),) = admin.execute(query).fetchall()
            if after > before:
                hour.causes += 1
                return
            time.sleep(0.5)
    hour.wrong.append(f"a new cause was not kept (number {hour.causes + 1})")


def _show(hour: Hour) -> None:
    most = max((max(agent, page) for _, agent, page in hour.memory), default=1.0)
    print(f"{'minute':>6}  {'agent':>6} {'page':>6}  MB; a: agent, p: page, 0 to {most:.0f} MB")
    for minutes, agent, page in hour.memory:
        line = [" "] * 61
        line[round(60 * page / most)], line[round(60 * agent / most)] = "p", "a"
        print(f"{minutes:6.0f}  {agent:6.0f} {page:6.0f}  |{''.join(line)}|")
    settled = [row for row in hour.memory if 60 * row[0] >= _SETTLED_S]
    for column, name in ((1, "agent"), (2, "page")):
        grown = max((row[column] for row in settled), default=0.0) - (
            settled[0][column] if settled else 0.0
        )
        if grown > MOST_MB:
            hour.wrong.append(f"the {name} grew by {grown:.0f} MB")
