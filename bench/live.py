"""How quickly the page of `pgtare live` answers: every view, over simulated rows of an agent.

A server has 40 pairs of process and event a tick, 200 pairs of statement and event a minute, and 12
active sessions. With many servers a tick is a minute, and sessions are of the last half hour.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.live_pages import ServedPage, served

from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.tables import HISTOGRAM, TABLES, rows
from pgtare.keeping.spool.writer import Spool

TAKES = "a minute; some minutes with --servers 100"

END_S = int(datetime(2026, 11, 3, tzinfo=UTC).timestamp())
EVENTS, PAIRS, STATEMENTS, ACTIVE = 40, 200, 60, 12
RUNS = 5
CLASSES = ("CPU", "IO", "LWLock", "Lock", "Client", "IPC", "Activity", "Timeout")
VIEWS = (
    "/activity?last=24h",
    "/activity?last=1h",
    "/breakdown?last=24h&by=event",
    "/breakdown?last=24h&by=query_id",
    "/breakdown?last=24h&by=role",
    "/breakdown?last=24h&by=server",
    "/event?last=24h&event=Event3",
    "/statement?last=24h&server=server-000&query_id=1001",
    "/compare?last=6h&by=event",
    "/compare?last=6h&by=query_id",
    "/blockers?last=1h",
    "/bill?last=24h",
    "/findings?last=24h",
)


class Rows:
    """Rows of some servers, an hour at a time."""

    def __init__(self, servers: int) -> None:
        self._rng = np.random.default_rng(1)
        self._names = [f"server-{number:03d}" for number in range(servers)]
        self.tick_s = 10 if servers == 1 else 60

    def _common(
        self, times_s: Sequence[int], each: int, covered_s: int, quality: str
    ) -> dict[str, Any]:
        """Columns of all servers at all times, `each` rows of them."""
        count = len(times_s) * len(self._names) * each
        names = np.tile(np.repeat(np.arange(len(self._names)), each), len(times_s))
        ts = np.repeat(np.array(times_s) * 1_000_000, len(self._names) * each)
        return {
            "server": _words(names, self._names),
            "agent": pa.repeat("agent", count),
            "epoch": np.full(count, 5),
            "ts": pa.array(ts, pa.timestamp("us", "UTC")),
            "covered_ns": np.full(count, covered_s * 10**9),
            "quality": pa.repeat(quality, count),
        }

    def _times(self, count: int, busy_s: float) -> dict[str, Any]:
        active = self._rng.exponential(busy_s * 1e9, count).astype(np.int64)
        calls = active // 40_000
        columns = {name: np.zeros(count, np.int64) for name in HISTOGRAM}
        columns["h07"], columns["h08"], columns["h09"] = calls // 2, calls // 3, calls // 6
        longest = pa.array(active // 50, mask=self._rng.random(count) > 0.02)
        return {
            "calls": calls,
            "total_ns": active,
            "active_ns": active,
            "max_ns": longest,
            **columns,
        }

    def hour(self, end_s: int, sessions_s: int) -> dict[str, pa.Table]:
        """All rows of the hour that ends then, and of sessions in its last seconds."""
        ticks = range(end_s - 3600 + self.tick_s, end_s + 1, self.tick_s)
        minutes = range(end_s - 3600 + 60, end_s + 1, 60)
        seconds = range(end_s - sessions_s + 1, end_s + 1)
        found = {
            "waits": self._waits(ticks),
            "statements": self._statements(minutes),
            "activity": self._activity(minutes),
            "ticks": pa.concat_tables(
                self._ticks(times, source, covered_s)
                for times, source, covered_s in (
                    (ticks, "waits", self.tick_s),
                    (minutes, "statements", 60),
                    (seconds, "sessions", 1),
                )
                if len(times)
            ),
            "agent": self._agent(ticks),
        }
        return found | ({"sessions": self._sessions(seconds)} if sessions_s else {})

    def _waits(self, times: Sequence[int]) -> pa.Table:
        common = self._common(times, EVENTS, self.tick_s, "exact")
        count = len(common["epoch"])
        event = np.tile(np.arange(EVENTS), count // EVENTS)
        classes = [CLASSES[number % len(CLASSES)] for number in range(EVENTS)]
        return rows(
            "waits",
            {
                **common,
                "backend_type": _words(event % 4, ["client backend", "walwriter", "a", "b"]),
                "background": event % 4 == 1,
                "type": _words(event, classes),
                "event": _words(event, [f"Event{number}" for number in range(EVENTS)]),
                "idle": np.isin(event % len(CLASSES), [4, 6]),
                "sessions": np.full(count, 5, np.int32),
                **self._times(count, self.tick_s * 0.1),
            },
        )

    def _statements(self, times: Sequence[int]) -> pa.Table:
        common = self._common(times, PAIRS, 60, "exact")
        count = len(common["epoch"])
        pair = np.tile(np.arange(PAIRS), count // PAIRS)
        statement, event = pair % STATEMENTS, pair // STATEMENTS
        return rows(
            "statements",
            {
                **common,
                "role_oid": statement % 5,
                "role": _words(statement % 5, [f"role{number}" for number in range(5)]),
                "database_oid": np.zeros(count, np.int64),
                "database": pa.repeat("shop", count),
                "query_id": statement + 1000,
                "text_hash": statement + 7000,
                "kind": pa.repeat("statement", count),
                "type": _words(event, ["IO", "LWLock", "Lock", "IPC"]),
                "event": _words(event, ["Event1", "Event2", "Event3", "Event5"]),
                "idle": np.zeros(count, bool),
                **self._times(count, 1.0),
            },
        )

    def _sessions(self, times: Sequence[int]) -> pa.Table:
        common = self._common(times, ACTIVE, 1, "sampled")
        count = len(common["epoch"])
        number = self._rng.integers(ACTIVE * 4, size=count)
        blocked = number % 40 == 1
        blockers = pa.array([[1] if one else [] for one in blocked], pa.list_(pa.int32()))
        return rows(
            "sessions",
            {
                **common,
                "pid": number.astype(np.int32),
                "role_oid": np.zeros(count, np.int64),
                "role": _words(number % 5, [f"role{one}" for one in range(5)]),
                "database_oid": np.zeros(count, np.int64),
                "database": pa.repeat("shop", count),
                "application": _words(number % 8, [f"worker-{one}" for one in range(8)]),
                "backend_type": pa.repeat("client backend", count),
                "state": pa.repeat("active", count),
                "type": _words(number % 4, ["IO", "LWLock", "Lock", "IPC"]),
                "event": _words(number % 4, ["Event1", "Event2", "Event3", "Event5"]),
                "query_id": number % STATEMENTS + 1000,
                "query_age_us": number * 10,
                "xact_age_us": number * 20,
                "blockers": blockers,
            },
        )

    def _activity(self, times: Sequence[int]) -> pa.Table:
        common = self._common(times, 3, 60, "exact")
        count = len(common["epoch"])
        sums = [one.name for one in TABLES["activity"].columns if one.rule == "sum"]
        figures = {name: self._rng.poisson(60_000, count) for name in sums}
        base = np.tile(np.arange(3), count // 3)
        return rows(
            "activity",
            {
                **figures,
                **common,
                "database_oid": base,
                "database": _words(base, ["postgres", "shop", "sales"]),
                "processors": np.full(count, 16.0),
                "sessions": np.full(count, 100, np.int32),
                "settings": pa.nulls(count, pa.string()),
            },
        )

    def _ticks(self, times: Sequence[int], source: str, covered_s: int) -> pa.Table:
        common = self._common(times, 1, covered_s, "exact")
        count = len(common["epoch"])
        own = {"source": pa.repeat(source, count), "ticks": np.ones(count, np.int64)}
        return rows("ticks", {**common, **own})

    def _agent(self, times: Sequence[int]) -> pa.Table:
        common = self._common(times, 6, self.tick_s, "exact")
        kind = np.tile(np.arange(6), len(common["epoch"]) // 6)
        names = ["cpu", "look_waits", "look_sessions", "rows", "commit", "memory"]
        value = self._rng.exponential(1, len(kind))
        own = {"kind": _words(kind, names), "value": value, "unit": pa.repeat("s", len(kind))}
        return rows("agent", {**common, **own})


def _words(numbers: np.ndarray[Any, Any], names: Sequence[str]) -> pa.Array:
    indices = pa.array(numbers.astype(np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array(names)).cast(pa.string())


def simulate(directory: Path, servers: int, hours: int) -> None:
    """Write the spool, rolled up."""
    made = Rows(servers)
    unlimited = SpoolLimits(most_bytes=1 << 60, reserve_bytes=0)
    began = time.monotonic()
    with Spool.open(directory, unlimited) as spool:
        texts = {"text_hash": list(range(7000, 7000 + STATEMENTS))}
        texts["text"] = [f"SELECT {number} FROM wide_table" for number in range(STATEMENTS)]  # type: ignore[list-item]
        common = {
            "server": [""] * STATEMENTS,
            "agent": ["agent"] * STATEMENTS,
            "epoch": [5] * STATEMENTS,
            "ts": [datetime.fromtimestamp(END_S, UTC)] * STATEMENTS,
            "covered_ns": [0] * STATEMENTS,
            "quality": ["exact"] * STATEMENTS,
        }
        spool.commit({"texts": rows("texts", {**common, **texts})}, {})
        for back in reversed(range(hours)):
            end_s = END_S - 3600 * back
            sessions_s = 3600 if servers == 1 else 0 if back else 1800
            spool.commit(made.hour(end_s, sessions_s), {})
            while spool.maintain(datetime.fromtimestamp(end_s, UTC), float(end_s)):
                pass
        assert spool.trouble is None, spool.trouble
    print(f"{servers} servers, {hours} h, made in {time.monotonic() - began:.0f} s")


def measure(page: ServedPage) -> None:
    """Print how long each view takes to be answered."""
    page.log_in()
    page.get("/activity")
    print(f"{'view':55}{'median s':>9}{'most s':>8}{'KiB':>7}")
    for view in VIEWS:
        took = []
        for _ in range(RUNS):
            began = time.perf_counter()
            answer = page.get(view)
            took.append(time.perf_counter() - began)
            assert answer.status == 200, (view, answer.text[-800:])
        size = len(answer.text) / 1024
        print(f"{view:55}{statistics.median(took):9.2f}{max(took):8.2f}{size:7.0f}")


def first_paint(page: ServedPage) -> None:
    """Print when Chromium first shows something, and when the chart is there."""
    executable = shutil.which("chromium", path="/usr/bin:/usr/local/bin")
    if executable is None:
        print("first paint: no chromium")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page()
        for words in ("first visit", "second visit"):
            tab.goto(page.rules.login_address() if words[0] == "f" else f"{page.url}/activity")
            tab.wait_for_selector("html[data-drawn]")
            script = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            painted_ms = tab.evaluate(script)
            drawn_ms = tab.evaluate("performance.now()")
            print(f"{words}: painted after {painted_ms:.0f} ms, charts by {drawn_ms:.0f} ms")
        browser.close()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--directory", type=Path, help="a spool made before, or to be made")


def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = given.directory or Path(name) / "spool"
        if not directory.exists():
            simulate(directory, given.servers, given.hours)
        with served(directory) as page:
            measure(page)
            first_paint(page)
