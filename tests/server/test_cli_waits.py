"""`pgtare waits` as a user runs it, on servers that capture in all processes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from pgtare.postgres import wait_ring
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.wait_counters.reader import open_reader
from pgtare.postgres.wait_ring import RingRecordKind
from tests.commands import arm, pgtare, read, refused
from tests.servers import binaries_slowly_on_15, named
from tests.sessions import Connection, eventually, one, rows, session
from tests.waits import on_one_server

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def waits(timed: Cluster, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = pgtare("waits", *arguments, "--dsn", timed.dsn())
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_top_has_the_share_of_an_event_and_its_statement(
    timed: Cluster, sleeping: Connection
) -> None:
    lines = waits(timed, "top", "--interval", "1s", "--iterations", "2", "--json").stdout
    found = [json.loads(line) for line in lines.splitlines()]
    assert len(found) == 2
    (event,) = [e for e in found[1]["events"] if e["event"]["name"] == "PgSleep"]
    assert 0.25 < event["active"] <= 1.1  # the sleeper waits for a processor as well
    assert 15 < event["mean_ms"] < 100
    assert not any(e["event"]["idle"] for e in found[1]["events"])
    sleeps = found[1]["statements"][0]
    assert sleeps["events"][0]["event"]["name"] == "PgSleep"
    assert sleeps["active"] == pytest.approx(event["active"], abs=0.2)
    assert 0 <= found[1]["on_cpu"] < 2


@on_one_server
def test_top_without_a_terminal_prints_one_table(timed: Cluster, sleeping: Connection) -> None:
    text = waits(timed, "top", "--interval", "2s").stdout
    assert "Timeout/PgSleep" in text
    assert "\x1b" not in text
    heading = re.compile(r"Where the time of \d+\.\d\d sessions went, on average over \d+\.\d s:\n")
    assert len(heading.findall(text)) == 1
    assert re.search(r"\n\d\.\d\d sessions active \(\d\.\d\d of these on CPU, counted\), \d", text)


def test_histogram_holds_every_wait(
    timed: Cluster, sleeping: Connection, observer: Connection
) -> None:
    count = (
        "SELECT coalesce(sum(waits), 0) FROM pg_stat_wait_event_timing_system "
        "WHERE wait_event = 'PgSleep'"
    )
    # on a busy machine many sleeps last too long; of thirty, some do not
    eventually(lambda: one(observer, count) > 30)
    found = json.loads(waits(timed, "histogram", "pgsleep", "--json").stdout)
    assert sum(b["waits"] for b in found["buckets"]) == found["event"]["waits"]
    assert {b["from_ms"] for b in found["buckets"] if b["waits"]} & {16.777216, 8.388608}
    assert found["buckets"][-1]["to_ms"] is None
    text = waits(timed, "histogram", "Timeout/PgSleep").stdout
    assert "█" in text
    message = refused("waits", "histogram", "pgslep", "--dsn", timed.dsn())
    assert "did you mean PgSleep" in message
    assert "EVENT is empty" in refused("waits", "histogram", "", "--dsn", timed.dsn())


def test_sessions_and_statements_have_the_sleeper(
    timed: Cluster, sleeping: Connection, observer: Connection
) -> None:
    pid = sleeping.info.backend_pid
    longest = (
        "SELECT wait_event, total_time > 500 FROM pg_stat_wait_event_timing"
        " WHERE pid = %s AND NOT idle ORDER BY total_time DESC LIMIT 1"
    )
    # when it began it may have waited longer for something else
    eventually(lambda: rows(observer, longest, pid) == [("PgSleep", True)])
    (session,) = [
        s
        for s in json.loads(waits(timed, "sessions", "--json").stdout)["sessions"]
        if s["pid"] == pid
    ]
    assert session["capture"] == "stats"
    assert session["events"][0]["name"] == "PgSleep"
    assert str(pid) in waits(timed, "sessions").stdout
    found = json.loads(waits(timed, "statements", "--json").stdout)["statements"]
    assert "PgSleep" in [e["name"] for s in found for e in s["events"]]
    assert "PgSleep" in waits(timed, "statements").stdout


def slept(observer: Connection) -> float:
    """How long sessions have slept in all, also in waits under way, ms."""
    query = (
        "SELECT coalesce(sum(total_time + running_time), 0) FROM wait_event_timing_moment()"
        " WHERE wait_event = 'PgSleep'"
    )
    return float(one(observer, query))


@on_one_server
def test_diff_of_two_snapshots(
    timed: Cluster, sleeping: Connection, observer: Connection, tmp_path: Path
) -> None:
    """Held against what the server counts just before and just after each of them."""
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    first = slept(observer)
    waits(timed, "snapshot", a)
    begun = slept(observer)
    eventually(lambda: slept(observer) > begun + 500)
    ended = slept(observer)
    waits(timed, "snapshot", b)
    last = slept(observer)
    done = pgtare("waits", "diff", a, b, "--json")
    found = json.loads(done.stdout)
    assert found["on_cpu"] >= 0
    (event,) = [e for e in found["events"] if e["event"]["name"] == "PgSleep"]
    assert ended - begun - 5 <= event["total_ms"] <= last - first + 5
    average = event["total_ms"] / 1000 / found["duration_s"]
    assert event["active"] == pytest.approx(average, rel=0.01)
    assert "Timeout/PgSleep" in pgtare("waits", "diff", a, b).stdout


def test_the_drain_agrees_with_the_trace_as_a_set(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    watched.execute("SET wait_event_timing.capture = trace")
    for _ in range(20):
        watched.execute("SELECT pg_sleep(0.001)")
    pid = watched.info.backend_pid
    wanted = rows(
        observer,
        "SELECT number, kind, since_begin, duration, calls, depth, queryid, rows"
        " FROM wait_event_trace(%s) ORDER BY number",
        pid,
    )
    ((following, data),) = rows(
        observer, "SELECT next, records FROM wait_event_trace_drain(%s, 0)", pid
    )
    records = wait_ring.decode(data)
    assert (records["seq"] - 1).tolist() == [row[0] for row in wanted]
    assert following == wanted[-1][0] + 1
    for record, (_, kind, since, duration, calls, depth, queryid, n) in zip(
        records, wanted, strict=True
    ):
        assert RingRecordKind(int(record["kind"])).name.replace("_", " ").lower() == kind
        assert record["start_ns"] / 1e6 == since
        value = int(record["value"])
        if duration is not None:
            assert value / 1e6 == duration
        assert calls is None or record["calls"] == calls
        assert depth is None or record["depth"] == depth
        assert queryid is None or value == queryid
        assert n is None or value == n


def test_bad_input_is_one_sentence(wheel: Binaries, waits18: Cluster, tmp_path: Path) -> None:
    dsn = waits18.dsn()
    on = ("--dsn", dsn)
    message = refused("waits", "top", "--dsn", waits18.dsn(dbname="template1"))
    assert "no extension wait_event_timing" in message
    with session(waits18) as connection:
        captured = "SELECT count(*) FROM pg_stat_wait_event_timing_sessions WHERE capture <> 'off'"
        uncaptured = (
            "SELECT pid FROM pg_stat_wait_event_timing_sessions WHERE capture = 'off' ORDER BY pid"
        )
        before = set(rows(connection, uncaptured))
        connection.execute("ALTER SYSTEM SET wait_event_timing.capture = off")
        connection.execute("SELECT pg_reload_conf()")
        eventually(lambda: one(connection, captured) == 0)
        message = refused("waits", "top", *on)
        connection.execute("ALTER SYSTEM RESET wait_event_timing.capture")
        connection.execute("SELECT pg_reload_conf()")
        # compared by process, as sessions of earlier tests may end meanwhile
        eventually(lambda: before.issuperset(rows(connection, uncaptured)))
    assert message.startswith("pgtare: wait_event_timing.capture is off in every process")
    assert "ALTER SYSTEM SET wait_event_timing.capture = 'stats'; SELECT pg_reload" in message
    assert "cannot connect" in refused("waits", "top", "--dsn", "host=/nowhere", status=1)
    assert "--interval" in refused("waits", "top", "--dsn", dsn, "--interval", "soon")
    assert "cannot be read" in refused("waits", "diff", tmp_path / "a", tmp_path / "b")


def test_the_reader_stays_out_of_its_own_picture(waits18: Cluster) -> None:
    with open_reader(waits18.dsn()) as reader:
        assert reader.pid not in [s.pid for s in reader.sessions()]
        assert reader.pid not in [row.pid for row in reader.by_process()]


@pytest.mark.slow
@binaries_slowly_on_15
def test_weighs_stats_and_trace(binaries: Binaries, tmp_path: Path) -> None:
    done = pgtare(
        "weigh wait_event_timing wait_event_timing/trace --duration 3 --scale 1 --output {}",
        tmp_path / "w.json",
        *named(binaries),
    )
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w.json")
    for name, label in (
        ("wait_event_timing", "calls timed"),
        ("wait_event_timing/trace", "records written to traces"),
    ):
        proof = arm(result, name)["proof"]
        assert proof["state"] == "active", proof
        assert label in proof["evidence"]
