"""A spool as an agent writes it, made up: some hours of two servers, with a few stories.

`shop` has the module: a queue for a lock from 14:00 to 14:05, and a statement that waits longer
since 14:30. `cloud` is sampled. Rows are what `pgtare agent` would write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.tables import HISTOGRAM, TABLES, rows
from pgtare.keeping.spool.writer import Spool
from pgtare.postgres.backend_types import is_background
from tests.unit.live_findings import HOSTILE_TEXT, finding_row, findings_of_shop

TICK_S = 10
SHOP, CLOUD = "shop", "cloud"
#: A name that is to be quoted in SQL.
ODD_SERVER = "o'b\\x"
#: Statements of shop: identifier, role, database, text.
STATEMENTS = (
    (6001, "checkout", "shop", "UPDATE stock SET left_over = left_over - $1 WHERE id = $2"),
    (6002, "web", "shop", "SELECT * FROM product WHERE id = $1"),
    (-6003, "web", "shop", HOSTILE_TEXT),
    (6004, "report", "sales", "SELECT day, sum(price) FROM orders GROUP BY day"),
)
#: Type of process, type and event, idle, sessions in it on average, mean duration in ns.
EVENTS = (
    ("client backend", "CPU", "Running", False, 2.0, 0),
    ("client backend", "IO", "DataFileRead", False, 0.8, 180_000),
    ("client backend", "LWLock", "WALWrite", False, 0.5, 60_000),
    ("client backend", "Lock", "transactionid", False, 0.05, 4_000_000),
    ("client backend", "Client", "ClientRead", True, 20.0, 9_000_000),
    ("checkpointer", "IO", "DataFileWrite", False, 0.1, 250_000),
    ("checkpointer", "Activity", "CheckpointerMain", True, 0.9, 900_000_000),
    ("walwriter", "IO", "WALSync", False, 0.2, 2_000_000),
)
#: Which statement waits for which event, and its share of it.
_SHARES = (
    (6001, "Lock", "transactionid", 0.9),
    (6001, "LWLock", "WALWrite", 0.7),
    (6002, "IO", "DataFileRead", 0.5),
    (-6003, "IO", "DataFileRead", 0.2),
    (6004, "IO", "DataFileRead", 0.2),
    (6002, "Client", "ClientRead", 0.9),
)
UNLIMITED = SpoolLimits(most_bytes=1 << 60, reserve_bytes=0)
_AGENT = "5b1f4d52-9d9b-4d2a-8e0a-1c7f9c3f1e5e"


@dataclass(frozen=True)
class Story:
    """When it is: hours of rows after a noon, and before it.

    sampled: spans in which sessions are looked at: from, to (s after noon), and how far apart (s).
    texts: other texts of statements.
    """

    noon: datetime
    hours: int
    sampled: tuple[tuple[int, int, int], ...]
    hours_before: int = 0
    texts: Mapping[int, str] = field(default_factory=dict)

    @property
    def start(self) -> datetime:
        """When the oldest rows begin."""
        return self.noon - timedelta(hours=self.hours_before)

    @property
    def end(self) -> datetime:
        """When the newest rows are from."""
        return self.noon + timedelta(hours=self.hours)

    @property
    def locked(self) -> tuple[datetime, datetime]:
        """When sessions wait for a lock."""
        return self.noon + timedelta(hours=2), self.noon + timedelta(hours=2, minutes=5)

    @property
    def deployed(self) -> datetime:
        """When one statement becomes slower."""
        return self.noon + timedelta(hours=2, minutes=30)

    def is_locked(self, ts: datetime) -> bool:
        """Whether sessions wait for the lock."""
        return self.locked[0] < ts <= self.locked[1]

    def busy(self, ts: datetime, event: str, sessions: float) -> float:
        """Sessions in an event."""
        if event == "transactionid" and self.is_locked(ts):
            return 6.0
        slower = 1.5 if event == "DataFileRead" and ts > self.deployed else 1.0
        load = 1.0 + 0.4 * np.sin((ts - self.noon).total_seconds() / 1700)
        return float(sessions * slower * load)

    def times(self) -> list[tuple[datetime, int]]:
        """When sessions are looked at, and how far that is apart, s."""
        return [
            (self.noon + timedelta(seconds=second), step)
            for begin, end, step in self.sampled
            for second in range(begin + step, end + 1, step)
        ]


#: The story that tests ask about. Samples of an hour alone, every other second, keep them short.
STORY = Story(datetime(2026, 11, 2, 12, 0, tzinfo=UTC), 3, ((7200, 10_800, 2),))
START, END, LOCKED, DEPLOYED = STORY.start, STORY.end, STORY.locked, STORY.deployed


def hash_of(query_id: int) -> int:
    """The hash of a statement's text."""
    return abs(query_id) * 7


def _common(times: list[datetime], server: str, covered_s: float, quality: str) -> dict[str, Any]:
    count = len(times)
    return {
        "server": [server] * count,
        "agent": [_AGENT] * count,
        "epoch": [-77] * count,
        "ts": times,
        "covered_ns": [round(covered_s * 1e9)] * count,
        "quality": [quality] * count,
    }


def _figures(busy_s: np.ndarray, mean_ns: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """calls, total_ns, active_ns, max_ns and buckets, from seconds of waiting."""
    active = (busy_s * 1e9 * rng.normal(1, 0.1, len(busy_s)).clip(0.5)).astype(np.int64)
    calls = np.where(mean_ns > 0, active // np.maximum(mean_ns, 1), 0)
    middle = np.clip(np.log2(np.maximum(mean_ns, 1)).astype(int) - 7, 0, 29)
    buckets = np.zeros((len(calls), 32), np.int64)
    index = np.arange(len(calls))
    buckets[index, middle] = calls - calls // 3 - calls // 50
    buckets[index, middle + 1] = calls // 3
    buckets[index, middle + 2] = calls // 50
    risen = rng.random(len(calls)) < 0.1
    longest = [
        int(m) * 4 if r and c else None for m, r, c in zip(mean_ns, risen, calls, strict=True)
    ]
    return {
        "calls": calls,
        "total_ns": np.where(mean_ns > 0, active - active % 1000, 0),
        "active_ns": active,
        "max_ns": longest,
        **{name: buckets[:, number] for number, name in enumerate(HISTOGRAM)},
    }


def _waits(story: Story, times: list[datetime], rng: np.random.Generator) -> pa.Table:
    all_times = [ts for ts in times for _ in EVENTS]
    each = list(EVENTS) * len(times)
    busy = [
        story.busy(ts, one[2], one[4]) * TICK_S for ts, one in zip(all_times, each, strict=True)
    ]
    return rows(
        "waits",
        {
            **_common(all_times, SHOP, TICK_S, "exact"),
            "backend_type": [one[0] for one in each],
            "background": [is_background(one[0]) for one in each],
            "type": [one[1] for one in each],
            "event": [one[2] for one in each],
            "idle": [one[3] for one in each],
            "sessions": [3] * len(each),
            **_figures(np.array(busy), np.array([one[5] for one in each]), rng),
        },
    )


def _statements(story: Story, minutes: list[datetime], rng: np.random.Generator) -> pa.Table:
    known = {query_id: (role, base) for query_id, role, base, _ in STATEMENTS}
    events = {(one[1], one[2]): one for one in EVENTS}
    cells: list[tuple[Any, ...]] = []
    for ts in minutes:
        left = {
            (one[1], one[2]): story.busy(ts, one[2], one[4])
            for one in EVENTS
            if one[1] != "CPU" and not is_background(one[0])
        }
        for query_id, type_, event, share in _SHARES:
            busy = story.busy(ts, event, events[type_, event][4]) * share
            if type_ == "IO" and ts > story.deployed:  # it alone is slower, twice as slow as before
                busy *= 2 / 1.5 if query_id == 6002 else 1 / 1.5
            left[type_, event] = max(0.0, left[type_, event] - busy)
            cells.append((ts, query_id, *known[query_id], "statement", type_, event, busy))
        for (type_, event), busy in left.items():
            nobody = "(outside)"
            cells.append((ts, 0, nobody, nobody, "outside", type_, event, busy))
    means = [events[cell[5], cell[6]][5] for cell in cells]
    return rows(
        "statements",
        {
            **_common([cell[0] for cell in cells], SHOP, 60, "exact"),
            "role_oid": [len(cell[2]) for cell in cells],
            "role": [cell[2] for cell in cells],
            "database_oid": [len(cell[3]) for cell in cells],
            "database": [cell[3] for cell in cells],
            "query_id": [cell[1] for cell in cells],
            "text_hash": [hash_of(cell[1]) if cell[1] else None for cell in cells],
            "kind": [cell[4] for cell in cells],
            "type": [cell[5] for cell in cells],
            "event": [cell[6] for cell in cells],
            "idle": [events[cell[5], cell[6]][3] for cell in cells],
            **_figures(np.array([cell[7] * 60 for cell in cells]), np.array(means), rng),
        },
    )


def _sessions(story: Story, server: str, rng: np.random.Generator) -> pa.Table:
    found: list[dict[str, Any]] = []
    for ts, step_s in story.times():
        before = len(found)
        if server == SHOP and story.is_locked(ts):
            holder = {"pid": 100, "role": "admin", "state": "idle in transaction"}
            holder["application"] = "nightly-job"
            age = round((ts - story.locked[0]).total_seconds() * 1e6) + 4_000_000
            ages = {"query_age_us": age, "xact_age_us": age}
            found.append({"ts": ts, **holder, **ages, "type": "Client", "event": "ClientRead"})
            for number in range(4):
                held_by = 100 if number < 2 else 101
                waiter = {"pid": 101 + number, "role": "checkout", "state": "active"}
                lock = {"type": "Lock", "event": "transactionid", "blockers": [held_by]}
                found.append({"ts": ts, **waiter, **ages, **lock, "query_id": 6001})
        for number in range(int(rng.poisson(3))):
            waits = number % 2 == 0
            query_id, role, database, _ = STATEMENTS[int(rng.integers(len(STATEMENTS)))]
            what = {"pid": 200 + number, "role": role, "database": database, "state": "active"}
            event = {"type": "IO", "event": "DataFileRead"} if waits else {}
            found.append({"ts": ts, **what, **event, "query_id": query_id if number else None})
        for one in found[before:]:
            one["covered_ns"] = step_s * 10**9
    usual: dict[str, Any] = {
        "role_oid": 10,
        "database_oid": 5,
        "database": "shop",
        "application": "worker",
        "backend_type": "client backend",
        "type": None,
        "event": None,
        "query_id": None,
        "query_age_us": 12_000,
        "xact_age_us": 15_000,
        "blockers": None,
    }
    complete = [{**usual, **one} for one in found]
    names = [
        c.name for c in TABLES["sessions"].columns if c.name in {*usual, "pid", "role", "state"}
    ]
    common = _common([one["ts"] for one in complete], server, 1, "sampled")
    common["covered_ns"] = [one["covered_ns"] for one in complete]
    return rows("sessions", {**common, **{n: [one[n] for one in complete] for n in names}})


def _activity(minutes: list[datetime], server: str, rng: np.random.Generator) -> pa.Table:
    names = [c.name for c in TABLES["activity"].columns if c.rule == "sum"]
    count = len(minutes)
    figures = {name: rng.poisson(60_000, count) for name in names}
    return rows(
        "activity",
        {
            **figures,
            **_common(minutes, server, 60, "exact"),
            "database_oid": [5] * count,
            "database": ["shop"] * count,
            "deadlocks": [0] * count,
            "processors": [4.0] * count,
            "sessions": [25] * count,
            "settings": ['{"track_io_timing": "on"}', *[None] * (count - 1)],
        },
    )


def _ticks(times: list[datetime], server: str, source: str, covered_s: float) -> pa.Table:
    quality = "sampled" if source == "sessions" else "exact"
    columns = {"source": [source] * len(times), "ticks": [1] * len(times)}
    return rows("ticks", {**_common(times, server, covered_s, quality), **columns})


def few_rows(table: str, ts: datetime, server: str = SHOP, **columns: list[Any]) -> pa.Table:
    """A few rows; columns that are not given are empty."""
    count = len(next(iter(columns.values())))
    given = {**_common([ts] * count, server, 10, "exact"), **columns}
    empty = {
        field.name: [None if field.nullable else "" if pa.types.is_string(field.type) else 0]
        * count
        for field in TABLES[table].row_schema
    }
    return rows(table, {**empty, **given})


def finding_table(server: str, found: list[dict[str, Any]]) -> pa.Table:
    """Rows of `findings`."""
    columns = {name: [one[name] for one in found] for name in found[0]}
    return rows("findings", {**_common(columns["ts"], server, 10, "sampled"), **columns})


def findings_each_minute(begin: datetime, minute: int) -> pa.Table:
    """Rows of two findings of two servers; the second ends in the second minute and
    comes back."""
    at = begin + timedelta(minutes=minute)
    found = [
        finding_row(
            at,
            "close" if key == "ended" and minute == 1 else "update",
            key=key,
            since=at if key == "ended" and minute == 2 else begin,
            until=at if key == "ended" and minute == 1 else None,
            share=0.5 / (minute + 1),
            active_s=30.0 * minute,
            victims=[minute, 7],
            title=f"{key} {minute}",
            **{"class": 1 + minute},
        )
        for key in ("open", "ended")
    ]
    return pa.concat_tables(finding_table(server, found) for server in (SHOP, ODD_SERVER))


def all_rows(story: Story) -> dict[str, pa.Table]:
    """Rows of every table that an agent writes."""
    rng = np.random.default_rng(7)
    count = (story.end - story.start) // timedelta(seconds=TICK_S)
    ticks = [story.start + timedelta(seconds=TICK_S * i) for i in range(1, count + 1)]
    minutes = ticks[5::6]
    sampled = [(SHOP, "waits", ticks, TICK_S), (SHOP, "statements", minutes, 60)]
    for step in sorted({step for _, step in story.times()}):
        seconds = [ts for ts, apart in story.times() if apart == step]
        sampled += [(one, "sessions", seconds, step) for one in (SHOP, CLOUD)]
    sampled += [(one, "activity", minutes, 60) for one in (SHOP, CLOUD)]
    kinds = [
        ("cpu", 0.06, "s"),
        ("memory", 125e6, "bytes"),
        ("commit", 0.02, "s"),
        ("rows", 900.0, "rows"),
    ]
    own = [(ts, "", *kind) for ts in ticks for kind in kinds]
    own += [(ts, SHOP, "look_waits", 0.004, "s") for ts in ticks]
    agent = {
        **_common([one[0] for one in own], SHOP, TICK_S, "exact"),
        "server": [one[1] for one in own],
        "kind": [one[2] for one in own],
        "value": [one[3] for one in own],
        "unit": [one[4] for one in own],
    }
    fired = (story.locked[0], story.locked[0], story.deployed)
    return {
        "waits": _waits(story, ticks, rng),
        "statements": _statements(story, minutes, rng),
        "sessions": pa.concat_tables([_sessions(story, s, rng) for s in (SHOP, CLOUD)]),
        "activity": pa.concat_tables([_activity(minutes, s, rng) for s in (SHOP, CLOUD)]),
        "ticks": pa.concat_tables([_ticks(times, s, src, c) for s, src, times, c in sampled]),
        "agent": rows("agent", agent),
        "texts": few_rows(
            "texts",
            story.start,
            text_hash=[hash_of(one[0]) for one in STATEMENTS],
            text=[story.texts.get(one[0], one[3]) for one in STATEMENTS],
        ),
        "findings": pa.concat_tables(
            [
                finding_table(SHOP, findings_of_shop(*story.locked, story.deployed, story.end)),
                finding_table(CLOUD, [finding_row(story.end, "update", since=story.deployed)]),
            ]
        ),
        "recordings": few_rows(
            "recordings",
            story.locked[1],
            number=[3, 4, 5],
            cause=["lock wait", "blocker", "request"],
            detail=["61.2 s", "", "52.3 ms, usually 1.2 ms"],
            started=[ts + timedelta(seconds=30) for ts in fired],
            pid=[101, 100, 200],
            role=["checkout", "admin", "web"],
            query_id=[6001, None, 6002],
            bytes=[70_000, 20_000, 30_000],
            incident=[3, 3, None],
        ),
        "gaps": few_rows(
            "gaps",
            story.start + timedelta(minutes=30),
            kind=["absence"],
            from_ts=[story.start + timedelta(minutes=29)],
            detail=["the agent was away"],
        ),
    }


def make_spool(directory: Path, story: Story = STORY) -> Path:
    """Write the spool, rolled up as far as its hours are over."""
    with Spool.open(directory, UNLIMITED) as spool:
        spool.commit(all_rows(story), {})
        while spool.maintain(story.end, story.end.timestamp()):
            pass
        assert spool.trouble is None
    return directory
