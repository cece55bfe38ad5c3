"""What a day of one server takes in a spool, and what writing it costs: simulated rows.

The rows have the exact schema of every table. The server has 500 sessions of which some 12 are
active at a time, 40 pairs of process and wait event a tick, and 200 statement rows a minute.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from pgtare.keeping.spool import information, reader
from pgtare.keeping.spool.tables import HISTOGRAM, TABLES, rows
from pgtare.keeping.spool.writer import Spool
from pgtare.kit.numbers import volume
from pgtare.postgres.backend_types import is_background

TAKES = "a quarter of an hour"

START = datetime(2026, 11, 2, tzinfo=UTC)
TICK_S, EVENTS, STATEMENTS, ACTIVE = 10, 40, 200, 12
NAME = "shop-primary"
BACKENDS = (
    ["client backend"] * 30
    + ["checkpointer", "walwriter", "background writer"] * 3
    + ["autovacuum worker"]
)


class Server:
    """Figures as a busy server has them: a few events have most of the waits."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self._statements = self._rng.integers(-(1 << 62), 1 << 62, size=2000)
        self._popular = 1.0 / np.arange(1, 2001)
        self._popular /= self._popular.sum()

    def _times(self, number: int, weight: float) -> dict[str, Any]:
        """calls, total_ns, active_ns, max_ns and the histogram that goes with them."""
        rng = self._rng
        calls = rng.poisson(weight / np.arange(1, number + 1) ** 1.2)
        centre = rng.normal(6, 2, number).clip(0, 26).astype(int)
        histogram = np.zeros((number, 32), np.int64)
        for offset, share in ((0, 0.5), (1, 0.3), (2, 0.15), (3, 0.05)):
            histogram[np.arange(number), centre + offset] = (calls * share).astype(np.int64)
        total = (histogram * (1 << (np.arange(32) + 7))).sum(axis=1) + rng.integers(
            1000, size=number
        )
        risen = rng.random(number) < 0.02
        return {
            "calls": histogram.sum(axis=1),
            "total_ns": total,
            "active_ns": total + rng.integers(-100_000, 100_000, number),
            "max_ns": [int(t) if r else None for t, r in zip(total, risen, strict=True)],
            **{name: histogram[:, i] for i, name in enumerate(HISTOGRAM)},
        }

    def _common(self, number: int, ts: datetime, covered_s: float) -> dict[str, Any]:
        return {
            "server": [NAME] * number,
            "agent": ["5b1f4d52-9d9b-4d2a-8e0a-1c7f9c3f1e5e"] * number,
            "epoch": [-4611686018427387904 + 12345] * number,
            "ts": [ts] * number,
            "covered_ns": self._rng.normal(covered_s * 1e9, 1e6, 1).astype(np.int64).repeat(number),
            "quality": ["exact"] * number,
        }

    def tick(self, ts: datetime) -> dict[str, pa.Table]:
        """What a tick of 10 s brings."""
        sessions = [self._sessions(ts - timedelta(seconds=back)) for back in range(TICK_S)]
        found = {
            "waits": rows(
                "waits",
                {
                    **self._common(EVENTS, ts, TICK_S),
                    "backend_type": BACKENDS,
                    "background": [is_background(name) for name in BACKENDS],
                    "type": [f"Type{i % 7}" for i in range(EVENTS)],
                    "event": [f"WaitEventOfTheServer{i}" for i in range(EVENTS)],
                    "idle": [i % 9 == 0 for i in range(EVENTS)],
                    "sessions": self._rng.integers(1, 500, EVENTS).astype(np.int32),
                    **self._times(EVENTS, 50_000),
                },
            ),
            "sessions": pa.concat_tables(sessions),
            "ticks": self._ticks("waits", ts, TICK_S),
            "agent": self._agent(ts),
        }
        if int(ts.timestamp()) % 60 == 0:
            found["statements"] = self._of_statements(ts)
            found["activity"] = self._activity(ts)
        return found

    def _sessions(self, ts: datetime) -> pa.Table:
        rng, number = self._rng, int(self._rng.poisson(ACTIVE))
        waiting = rng.random(number) < 0.6
        ids = rng.choice(self._statements, number, p=self._popular)
        return rows(
            "sessions",
            {
                **self._common(number, ts, 1),
                "pid": rng.integers(10_000, 10_500, number).astype(np.int32),
                "role_oid": [16_400] * number,
                "role": ["shop"] * number,
                "database_oid": [16_384] * number,
                "database": ["shop"] * number,
                "application": [f"worker-{i}" for i in rng.integers(8, size=number)],
                "backend_type": ["client backend"] * number,
                "state": ["active"] * number,
                "type": ["LWLock" if one else None for one in waiting],
                "event": [f"Event{i}" if w else None for i, w in enumerate(waiting)],
                "query_id": ids,
                "query_age_us": rng.exponential(5000, number).astype(np.int64),
                "xact_age_us": rng.exponential(20_000, number).astype(np.int64),
                "blockers": [[] for _ in range(number)],
            },
        )

    def _ticks(self, source: str, ts: datetime, covered_s: float) -> pa.Table:
        return rows("ticks", {**self._common(1, ts, covered_s), "source": [source], "ticks": [1]})

    def _agent(self, ts: datetime) -> pa.Table:
        kinds = ["cpu", "query waits", "query sessions", "rows", "skipped", "late"]
        return rows(
            "agent",
            {
                **self._common(len(kinds), ts, TICK_S),
                "kind": kinds,
                "value": self._rng.exponential(10, len(kinds)),
                "unit": ["ms"] * len(kinds),
            },
        )

    def _of_statements(self, ts: datetime) -> pa.Table:
        ids = self._rng.choice(self._statements, STATEMENTS, p=self._popular)
        return rows(
            "statements",
            {
                **self._common(STATEMENTS, ts, 60),
                "role_oid": [16_400] * STATEMENTS,
                "role": ["shop"] * STATEMENTS,
                "database_oid": [16_384] * STATEMENTS,
                "database": ["shop"] * STATEMENTS,
                "query_id": ids,
                "text_hash": ids >> 1,
                "kind": ["statement"] * STATEMENTS,
                "type": [f"Type{i % 7}" for i in range(STATEMENTS)],
                "event": [f"WaitEventOfTheServer{i % 20}" for i in range(STATEMENTS)],
                "idle": [False] * STATEMENTS,
                **self._times(STATEMENTS, 100_000),
            },
        )

    def _activity(self, ts: datetime) -> pa.Table:
        names = [c.name for c in TABLES["activity"].columns if c.rule == "sum"]
        figures = {name: self._rng.poisson(600_000, 3) for name in names}
        return rows(
            "activity",
            {
                **figures,
                **self._common(3, ts, 60),
                "database_oid": [1, 5, 16_384],
                "database": ["template1", "postgres", "shop"],
                "processors": [16.0] * 3,
                "sessions": np.array([0, 2, 500], np.int32),
                "settings": [None] * 3,
            },
        )


def _timed(seconds: list[float], act: Callable[[], object]) -> object:
    begun = time.process_time()
    result = act()
    seconds.append(time.process_time() - begun)
    return result


def simulate(directory: Path, hours: float) -> None:
    """Write the day, and print what it takes."""
    server, commits, upkeep = Server(), [], []
    ticks = int(hours * 3600 / TICK_S)
    with Spool.open(directory) as spool:
        for index in range(1, ticks + 1):
            ts = START + timedelta(seconds=TICK_S * index)
            found = server.tick(ts)
            readings = {(NAME, "waits"): found["waits"].drop_columns(["ts"])}
            _timed(commits, lambda f=found, r=readings: spool.commit(f, r))
            while _timed(upkeep, lambda t=ts: spool.maintain(t, t.timestamp())):
                pass
        after = START + timedelta(hours=hours + 1)
        while spool.maintain(after, after.timestamp()):
            pass
        assert spool.trouble is None, spool.trouble
    used = sum(commits) + sum(upkeep)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"{ticks} ticks of {TICK_S} s, {hours:.3g} h of one server")
    print(f"processor time of a commit: median {np.median(commits) * 1e3:.1f} ms")
    print(
        f"of commits and upkeep: {used / ticks * 1e3:.1f} ms a tick, "
        f"{used / (ticks * TICK_S) * 100:.2f} % of a processor"
    )
    print(f"memory: {volume(psutil.Process().memory_info().rss)}, at most {volume(peak)}")
    written = psutil.Process().io_counters().write_bytes
    print(f"written to the disk: {volume(written)}")
    print(f"{'table':15}{'rows':>10}{'bytes':>12}{'bytes/row':>11}{'files':>7}")
    content = information.info(directory)
    for table in content.tables:
        print(
            f"{table.name:15}{table.rows:>10}{table.bytes:>12}"
            f"{table.bytes / table.rows:>11.1f}{table.segments:>7}"
        )
    print(f"{'sum':15}{'':>10}{content.bytes - content.waiting_bytes:>12}")
    begun = time.perf_counter()
    sql = "SELECT event, sum(active_ns) FROM waits GROUP BY event ORDER BY 2 DESC LIMIT 5"
    reader.query(directory, sql)
    print(f"{sql}: {(time.perf_counter() - begun) * 1e3:.0f} ms")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--directory", type=Path, help="where the spool stays")


def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        simulate(given.directory or Path(name) / "spool", given.hours)
