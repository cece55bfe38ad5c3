"""Metrics for Prometheus: totals that no crash makes fall or count twice, and what is shown."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pgtare.errors import UsageError
from pgtare.keeping.metrics.collector import bound_s
from pgtare.keeping.metrics.exporter import MetricsExporter
from pgtare.keeping.metrics.scrape_server import MOST_CLIENTS
from pgtare.keeping.metrics.wait_totals import (
    MOST_SERIES,
    OTHER,
    SHOWN_BUCKETS,
    ZERO_S,
    WaitKey,
    WaitTotals,
)
from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.tables import HISTOGRAM, rows
from pgtare.keeping.spool.writer import Spool
from pgtare.kit.option_values import address, is_loopback
from pgtare.postgres.wait_counters.counter_table import SUMS, TOTAL_NS
from tests.commands import refused
from tests.sessions import eventually
from tests.unit.spool_rows import START, UNLIMITED, at, held
from tests.unit.test_spool_kill import Deadly, memory

__all__ = ["memory"]

Wait = tuple[str, str, str, bool]
CPU: Wait = ("client backend", "CPU", "Running", False)
READ: Wait = ("client backend", "IO", "DataFileRead", False)
LOCK: Wait = ("client backend", "Lock", "relation", False)
IDLE: Wait = ("client backend", "Client", "ClientRead", True)
INTERVAL_S = 10.0
SECOND = 10**9


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def waits(
    found: Mapping[Wait, tuple[int, int]], ts: datetime = START, server: str = "shop"
) -> pa.Table:
    """Rows of waits: of each pair, how many waits, and its active time in ns."""
    columns: dict[str, object] = {
        name: [key[number] for key in found]
        for number, name in enumerate(("backend_type", "type", "event", "idle"))
    }
    calls = [count for count, _ in found.values()]
    active = [active_ns for _, active_ns in found.values()]
    columns |= {"background": [False] * len(found)}
    columns |= {"calls": calls, "total_ns": active, "active_ns": active}
    columns |= {name: [0] * len(found) for name in HISTOGRAM} | {"h03": calls}
    columns |= {"max_ns": [None] * len(found), "sessions": [1] * len(found)}
    return rows("waits", common(len(found), ts, server) | columns)


def common(
    count: int, ts: datetime, server: str = "shop", covered_s: float = INTERVAL_S
) -> dict[str, object]:
    return {
        "server": [server] * count,
        "agent": ["an agent"] * count,
        "epoch": [1] * count,
        "ts": [ts] * count,
        "covered_ns": [round(covered_s * SECOND)] * count,
        "quality": ["exact"] * count,
    }


def tick(source: str = "waits", ts: datetime = START, covered_s: float = INTERVAL_S) -> pa.Table:
    return rows("ticks", common(1, ts, covered_s=covered_s) | {"source": [source], "ticks": [1]})


def sessions(*found: tuple[str, str, str] | None) -> pa.Table:
    """Active sessions: what each waits for."""
    count = len(found)
    columns: dict[str, object] = {
        "pid": list(range(count)),
        **{name: [0] * count for name in ("role_oid", "database_oid")},
        **{name: [""] * count for name in ("role", "database", "application", "state")},
        "backend_type": ["client backend" if one is None else one[0] for one in found],
        "type": [one and one[1] for one in found],
        "event": [one and one[2] for one in found],
        **{name: [None] * count for name in ("query_id", "query_age_us", "xact_age_us")},
        "blockers": [None] * count,
    }
    return rows("sessions", common(count, at(0)) | columns)


def exporter(clock: Clock | None = None, most: int = MOST_SERIES) -> MetricsExporter:
    return going_on({}, clock, most)


def going_on(
    readings: Mapping[tuple[str, str], pa.Table],
    clock: Clock | None = None,
    most: int = MOST_SERIES,
) -> MetricsExporter:
    """An exporter that goes on from what a commit holds."""
    stored = dict(readings)
    return MetricsExporter(lambda server, part: stored.get((server, part)), clock or Clock(), most)


def commit(
    found: MetricsExporter, written: bool = True, **tables: pa.Table
) -> dict[tuple[str, str], pa.Table]:
    readings = found.grow(tables, INTERVAL_S)
    found.committed({"shop": True}, written=written)
    return readings


def shown(found: MetricsExporter) -> dict[tuple[str, ...], float]:
    """What a scrape gets: values by name and labels."""
    values: dict[tuple[str, ...], float] = {}
    for sample in samples(found):
        key = (sample.name, *(f"{name}={value}" for name, value in sample.labels.items()))
        assert key not in values
        values[key] = sample.value
    return values


def samples(found: MetricsExporter) -> list[Sample]:
    text = generate_latest(found.registry).decode()
    return [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("pgtare_")
    ]


def value(found: MetricsExporter, name: str, **labels: str) -> list[float]:
    return [
        sample.value
        for sample in samples(found)
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


# What is shown


def test_the_bounds_are_those_of_whole_nanoseconds() -> None:
    exact = [round(bound_s(bucket) * SECOND) for bucket in SHOWN_BUCKETS]
    assert exact == [2**power - 1 for power in range(8, 39, 2)]
    found = exporter()
    commit(found, waits=waits({READ: (5, 5 * SECOND)}), ticks=tick())
    wide = "pgtare_wait_duration_seconds_bucket"
    bounds = [sample.labels["le"] for sample in samples(found) if sample.name == wide]
    assert len(bounds) == 17
    assert bounds[0] == repr(255 / SECOND)
    # h03: waits of 1,024 to 2,047 ns
    assert value(found, wide, le="1.023e-06") == [0]
    assert value(found, wide, le=repr((2**12 - 1) / SECOND)) == [5]
    assert value(found, wide, le="+Inf") == [5]


def test_labels_and_families() -> None:
    found = exporter()
    commit(
        found,
        waits=waits({READ: (5, 2 * SECOND), IDLE: (7, 90 * SECOND), CPU: (0, 3 * SECOND)}),
        ticks=pa.concat_tables([tick(), tick("sessions"), tick("sessions")]),
        sessions=sessions(LOCK[:3], LOCK[:3], LOCK[:3], READ[:3], None),
    )
    labels = {name for sample in samples(found) for name in sample.labels}
    assert labels == {
        *("server", "backend_type", "type", "event", "le", "kind", "source", "version")
    }
    assert value(found, "pgtare_wait_duration_seconds_sum") == [2]
    assert value(found, "pgtare_wait_duration_seconds_count") == [5]
    assert value(found, "pgtare_idle_wait_duration_seconds_sum", event="ClientRead") == [90]
    assert value(found, "pgtare_idle_wait_duration_seconds_count") == [7]
    active = "pgtare_active_seconds_total"
    assert sorted(value(found, active)) == [2, 3]
    assert value(found, active, type="CPU", server="shop") == [3]
    assert value(found, "pgtare_waiting_sessions", event="relation") == [1.5]
    assert value(found, "pgtare_waiting_sessions", event="DataFileRead") == [0.5]
    assert value(found, "pgtare_up") == [1]
    assert value(found, "pgtare_spool_up") == [1]
    assert set(value(found, "pgtare_losses_total")) == {0}
    at_s = at(0).timestamp()
    assert value(found, "pgtare_last_reading_timestamp_seconds", source="waits") == [at_s]
    # nobody waits now, which is a zero; rows of one commit come in any order
    commit(found, ticks=pa.concat_tables([tick("sessions", at(8)), tick("sessions", at(7))]))
    last = value(found, "pgtare_last_reading_timestamp_seconds", source="sessions")
    assert last == [at(8).timestamp()]
    assert value(found, "pgtare_waiting_sessions") == [0, 0]


def test_a_sampled_server_has_no_histogram() -> None:
    found = exporter()
    commit(found, ticks=tick("sessions"), sessions=sessions(LOCK[:3]))
    names = {sample.name for sample in samples(found)}
    assert "pgtare_waiting_sessions" in names
    assert not {name for name in names if "duration" in name or "active" in name}


def test_losses_and_gaps_are_counted() -> None:
    found = exporter()
    lost = {"kind": ["overflows", "look_waits"], "value": [3.0, 0.1], "unit": ["waits", "s"]}
    gap = {"kind": ["reset"], "from_ts": [at(0)], "detail": [""]}
    readings = commit(
        found,
        agent=rows("agent", common(2, at(0)) | lost),
        gaps=rows("gaps", common(1, at(0)) | gap),
        ticks=tick(),
    )
    assert value(found, "pgtare_losses_total", kind="overflows") == [3]
    assert value(found, "pgtare_losses_total", kind="missed") == [0]
    assert value(found, "pgtare_gaps_total", kind="reset") == [1]
    assert value(found, "pgtare_gaps_total", kind="restart") == [0]
    again = going_on(readings)
    commit(again, ticks=tick())
    assert value(again, "pgtare_losses_total", kind="overflows") == [3]
    assert value(again, "pgtare_gaps_total", kind="reset") == [1]


# What rate() must not see


def test_nothing_is_shown_before_its_commit_is_written() -> None:
    clock = Clock()
    found = exporter(clock)
    commit(found, waits=waits({READ: (5, SECOND)}), ticks=tick())
    before = shown(found)
    commit(found, waits=waits({READ: (6, SECOND)}), ticks=tick(), written=False)
    now = shown(found)
    assert now.pop(("pgtare_spool_up",)) == 0
    assert before.pop(("pgtare_spool_up",)) == 1
    assert now == before
    commit(found)
    assert value(found, "pgtare_wait_duration_seconds_count") == [11]


def test_counters_are_left_out_while_there_is_no_new_reading() -> None:
    # what comes back after an hour in one step is no rate of a minute
    clock = Clock()
    found = exporter(clock)
    readings = commit(found, waits=waits({READ: (5, SECOND)}), ticks=tick())
    count = "pgtare_wait_duration_seconds_count"
    clock.now_s += 2.9 * INTERVAL_S
    assert value(found, count) == [5]
    clock.now_s += 0.2 * INTERVAL_S
    assert value(found, count) == []
    assert value(found, "pgtare_last_reading_timestamp_seconds") == [at(0).timestamp()]
    # a slow pace is a pace, but an absence is none
    commit(found, ticks=tick(covered_s=8 * INTERVAL_S))
    clock.now_s += 23 * INTERVAL_S
    assert value(found, count) == [5]
    commit(found, ticks=tick(covered_s=3600 * INTERVAL_S))
    clock.now_s += 97 * INTERVAL_S
    assert value(found, count) == []
    # nor are they shown by the next agent before it has read the server
    again = going_on(readings, clock)
    commit(again)
    assert value(again, count) == []
    assert value(again, "pgtare_up") == [1]
    commit(again, waits=waits({READ: (2, SECOND)}), ticks=tick())
    assert value(again, count) == [7]


def test_the_time_of_a_reading_goes_back_with_the_clock() -> None:
    found = exporter()
    for ts in (at(3600), at(10)):
        commit(found, ticks=tick(ts=ts))
        assert value(found, "pgtare_last_reading_timestamp_seconds") == [ts.timestamp()]


def test_a_pair_that_comes_later_begins_with_zero() -> None:
    clock = Clock()
    found = exporter(clock)
    commit(found, waits=waits({READ: (5, SECOND)}), ticks=tick())
    commit(found, waits=waits({READ: (5, SECOND), LOCK: (3, SECOND)}), ticks=tick())
    count = "pgtare_wait_duration_seconds_count"
    assert value(found, count, event="relation") == [0]
    assert value(found, count, event="DataFileRead") == [10]
    clock.now_s += ZERO_S
    commit(found, ticks=tick())
    assert value(found, count, event="relation") == [3]


def test_a_server_that_is_no_longer_watched_is_not_shown() -> None:
    found = exporter()
    commit(found, waits=waits({READ: (5, SECOND)}), ticks=tick())
    found.committed({"other": False}, written=True)
    assert {sample.labels.get("server", "other") for sample in samples(found)} == {"other"}
    assert value(found, "pgtare_up", server="other") == [0]


def test_each_server_has_its_own() -> None:
    found = exporter()
    some = [
        waits({READ: (5, SECOND)}, server="shop"),
        waits({READ: (1, SECOND)}, server="blog"),
        waits({READ: (7, SECOND)}, server="shop"),
    ]
    ticks = [rows("ticks", {**tick().to_pydict(), "server": [name]}) for name in ("blog", "shop")]
    found.grow({"waits": pa.concat_tables(some), "ticks": pa.concat_tables(ticks)}, INTERVAL_S)
    found.committed({"shop": True, "blog": False}, written=True)
    count = "pgtare_wait_duration_seconds_count"
    assert value(found, count, server="shop") == [12]
    assert value(found, count, server="blog") == [1]
    assert value(found, "pgtare_up", server="blog") == [0]


# Room


def test_what_has_no_room_is_counted_as_other() -> None:
    found = exporter(most=100)  # five histograms of 17 buckets, sum, count, active time
    events: dict[Wait, tuple[int, int]] = {
        ("client backend", "LWLock", f"event{i}", False): (1, (i + 1) * SECOND) for i in range(20)
    }
    total = sum(active_ns for _, active_ns in events.values()) / SECOND
    readings = commit(found, waits=waits(events), ticks=tick())
    active = "pgtare_active_seconds_total"
    assert sum(value(found, active)) == total
    assert value(found, active, event="event19") == [20]  # the largest come first
    assert len(value(found, active)) == 6
    series = [sample for sample in samples(found) if sample.labels.get("event", OTHER) != OTHER]
    assert len(series) == 100
    # all keep their places, also in the next agent, and with another limit
    for most in (100, 140, 5000):
        again = going_on(readings, most=most)
        readings |= commit(again, waits=waits(events), ticks=tick())
        now = shown(again)
        assert not {key for key, was in shown(found).items() if now[key] < was}
        found = again


def test_names_that_a_server_makes_up_do_not_pile_up() -> None:
    found = exporter(most=100)
    for look in range(10):
        names = [f"event{look}_{i}" for i in range(100)]
        commit(
            found,
            waits=waits({("client backend", "Extension", name, False): (1, 1) for name in names}),
            sessions=sessions(*(("client backend", "Extension", name) for name in names)),
            ticks=pa.concat_tables([tick(), tick("sessions")]),
        )
    assert sum(value(found, "pgtare_active_seconds_total")) == 1000 / SECOND


# Totals

changes = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 100)), max_size=4), max_size=12
)


@settings(max_examples=60)
@given(changes, st.sets(st.integers(0, 11)), st.integers(20, 90))
def test_totals_are_exact_and_what_is_shown_never_falls(
    batches: list[list[tuple[int, int]]], restarts: set[int], most: int
) -> None:
    pairs = [READ, LOCK, IDLE, CPU]
    totals, expected = WaitTotals(most), 0
    before: dict[WaitKey, list[int]] = {}
    for number, batch in enumerate(batches):
        if number in restarts and before:
            table, totals = totals.to_table(), WaitTotals(most)
            totals.restore(table)
            assert totals.to_table() == table
        for pair, active_ns in batch:
            totals.add(waits({pairs[pair]: (abs(active_ns), active_ns)}), 0.0)
            expected += active_ns
        now = {series.key: series.sums.tolist() for series in totals.all_series()}
        for key, sums in before.items():
            assert all(after >= was for after, was in zip(now[key], sums, strict=True))
        before = now
    assert int(np.sum(totals._totals[:, 0, SUMS.index("active_ns")])) == expected


def test_a_total_goes_on_beyond_64_bits() -> None:
    """A thousand idle sessions, for a year, a day at a time."""
    totals, day_ns, before = WaitTotals(100), 1000 * 86400 * SECOND, 0.0
    for day in range(1, 366):
        totals.add(waits({IDLE: (1, day_ns), READ: (1, 1)}), 0.0)
        totals.add(waits({IDLE: (0, -1)}), 0.0)
        if day % 50 == 0:
            table, totals = totals.to_table(), WaitTotals(100)
            totals.restore(table)
            assert totals.to_table() == table
        idle, read = totals.all_series()
        total_s = idle.seconds(TOTAL_NS)
        assert total_s > before
        before = total_s
    assert total_s == pytest.approx(365 * 1000 * 86400, rel=1e-12)
    assert read.seconds(TOTAL_NS) == 365 / SECOND


# Kills


def play(root: Path, last: int | None, torn: bool) -> int | None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["pytest", __name__])
    process = processes.Process(target=act, args=(root, last, torn))
    process.start()
    process.join(60)
    return process.exitcode


def act(root: Path, last: int | None, torn: bool) -> None:
    """Two commits after those that are there, each noted as soon as it is shown."""
    volume = Deadly(root, last, torn=torn)
    with Spool.open(root, SpoolLimits(1 << 60, 0, reader_s=0), volume) as spool:
        keep_committing(spool, root.parent / "shown", 2)
    (root.parent / "steps").write_text(" ".join(volume.steps))


def keep_committing(spool: Spool, note: Path | None, count: int) -> None:
    found = MetricsExporter(spool.reading)
    for number in range(count):
        # one event comes again and again, one is new, and active time may fall
        tables = {
            "waits": waits({READ: (7, SECOND - 300 * SECOND * (number == 1)), IDLE: (number, 1)}),
            "ticks": tick(),
        }
        readings = found.grow(tables, INTERVAL_S)
        spool.commit(tables, dict(readings))
        found.committed({"shop": True}, written=not spool.trouble)
        if note is not None:
            values = shown(found)
            note.write_text(json.dumps({" ".join(key): values[key] for key in values}))


@pytest.mark.slow
def test_killed_at_any_step_of_a_commit(memory: Path) -> None:
    before, now, note = memory / "before", memory / "now", memory / "shown"
    with Spool.open(before, UNLIMITED) as spool:
        keep_committing(spool, None, 2)

    def copy() -> None:
        shutil.rmtree(now, ignore_errors=True)
        shutil.copytree(before, now)
        note.unlink(missing_ok=True)

    copy()
    assert play(now, None, False) == 0
    operations = (memory / "steps").read_text().split()
    assert len(operations) > 20
    checked = 0
    second = len(operations) // 2  # the second commit: every other step
    for last in range(second, len(operations) + 1, 2):
        for torn in (False, True) if operations[last - 1] == "write" else (False,):
            copy()
            assert play(now, last, torn) == -signal.SIGKILL
            check(now, json.loads(note.read_text()) if note.exists() else {})
            checked += note.exists()
    assert checked > 5


def check(root: Path, seen: Mapping[str, float]) -> None:
    """Totals are those of the rows, and nothing that was seen falls."""
    with Spool.open(root, UNLIMITED) as spool:
        stored = spool.reading("shop", "metrics-waits")
        assert stored is not None
        found = held(root, "waits")
        for name in SUMS:
            assert sum(stored[name].to_pylist()) == sum(found[name].to_pylist()), name
        again = MetricsExporter(spool.reading)
        again.grow({"ticks": tick()}, INTERVAL_S)
        again.committed({"shop": True}, written=True)
        now = {" ".join(key): value for key, value in shown(again).items()}
        assert not {key for key, was in seen.items() if now[key] < was}


# Addresses


def test_addresses() -> None:
    assert address("", "9187") == ("127.0.0.1", 9187)
    assert address("", ":9187") == ("127.0.0.1", 9187)
    assert address("", "0.0.0.0:80") == ("0.0.0.0", 80)  # noqa: S104
    assert address("", "[::1]:9187") == ("::1", 9187)
    assert address("", "localhost:0") == ("localhost", 0)
    for wrong in ("", "host", "host:", "host:x", "::1:9187", "1:99999", "host:-1"):
        with pytest.raises(UsageError, match="give an address and a port"):
            address("--metrics", wrong)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "db")] == [
        *(True, True, True, False, False)
    ]


def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[metrics]\nlisten = 'here'\n[servers.a]\ndsn = ''")
    words = ("agent", "--config", config, "--spool", tmp_path / "spool")
    assert "metrics.listen: give an address and a port" in refused(*words)
    config.write_text("[metrics]\nlisten = ''\n[servers.a]\ndsn = ''")
    assert "metrics.listen: give an address and a port" in refused(*words)
    config.write_text("[servers.a]\ndsn = 'host=/nowhere'")
    assert "--metrics nowhere: give an address" in refused(*words, "--metrics", "nowhere")
    found = exporter()
    _, port = found.listen("127.0.0.1", 0)
    assert "metrics cannot be served on 127.0.0.1" in refused(*words, "--metrics", port)
    assert os.listdir(tmp_path / "spool")


@pytest.mark.slow
def test_clients_that_send_nothing_take_neither_threads_nor_files() -> None:
    _, port = exporter().listen("127.0.0.1", 0)
    threads = threading.active_count()
    with contextlib.ExitStack() as opened:
        silent = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(3 * MOST_CLIENTS)
        ]
        for one in silent[::2]:
            one.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert b"pgtare_agent_info" in answer.read()
        assert eventually(lambda: threading.active_count() - threads <= MOST_CLIENTS)
        silent[0].settimeout(30)
        assert silent[0].recv(1) == b""  # cut
