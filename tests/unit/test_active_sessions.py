"""Average active sessions are the same by `pgtare waits`, by the doctor, and by SQL on rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgtare.keeping.agent.rows import EXACT, Batch, RowInterval
from pgtare.keeping.live.query_worker import QueryWorker
from pgtare.keeping.spool.writer import Spool
from pgtare.observing.doctor.observed import ActivitySamples, CountedWaits, Look, wait_profile
from pgtare.postgres.backend_types import is_background
from pgtare.postgres.wait_counters.counter_table import WIDTH, CounterTable
from pgtare.postgres.wait_counters.difference import difference, processor_rows
from pgtare.postgres.wait_counters.epoch import ReadingBaseline, Transition
from pgtare.postgres.wait_counters.model import Counters, Event, EventRow, Snapshot, Timed
from pgtare.postgres.wait_counters.rates import profile
from tests.unit.live_rows import UNLIMITED

START, SECONDS = datetime(2026, 1, 1, tzinfo=UTC), 10
CLIENT, WORKER, WRITER = "client backend", "parallel worker", "walwriter"
READ, SYNC = Event("IO", "DataFileRead", False), Event("IO", "WALSync", False)
NEXT, REST = Event("Client", "ClientRead", True), Event("Activity", "WalWriterMain", True)


@dataclass(frozen=True)
class Waited:
    """A pair of process and event at one moment, in ms; the time of processes has no event."""

    backend_type: str
    event: Event | None
    ended: int
    running: int = 0


#: The reading, a long wait that goes on and one that has ended, and processes that came and went.
FIRST = (
    Waited(CLIENT, None, 100_000),
    Waited(CLIENT, READ, 10_000, 4_000),
    Waited(CLIENT, NEXT, 60_000, 9_000),
    Waited(WRITER, None, 20_000),
    Waited(WRITER, SYNC, 5_000),
    Waited(WRITER, REST, 14_000, 500),
)
LAST = (
    Waited(CLIENT, None, 140_000),
    Waited(CLIENT, READ, 22_000),
    Waited(CLIENT, SYNC, 1_500, 500),
    Waited(CLIENT, NEXT, 70_000, 17_000),
    Waited(WORKER, None, 6_000),
    Waited(WORKER, READ, 2_000, 1_000),
    Waited(WRITER, None, 30_000),
    Waited(WRITER, SYNC, 9_000),
    Waited(WRITER, REST, 20_000, 300),
)
#: By event: what the sessions at work did on average, by hand.
WAITING = {"IO/DataFileRead": (8 + 3) / 10, "IO/WALSync": 2 / 10}
ON_CPU = (40 - 8 - 2 - 18 + 6 - 3) / 10


def snapshot(rows: Sequence[Waited], seconds: int) -> Snapshot:
    return Snapshot(
        taken=START + timedelta(seconds=seconds),
        server="18",
        started=START,
        stats_reset=START,
        events=tuple(
            EventRow(
                backend_type=row.backend_type,
                event=row.event,
                counters=Counters(total_ms=row.ended, running_ms=row.running, waits=1),
            )
            for row in rows
            if row.event is not None
        ),
        statements=(),
        texts={},
        timed={
            row.backend_type: Timed(processes=1, total_ms=row.ended)
            for row in rows
            if row.event is None
        },
    )


def test_waits() -> None:
    found = profile(snapshot(FIRST, 0), snapshot(LAST, SECONDS))
    assert {rate.event.label: rate.active for rate in found.events} == pytest.approx(WAITING)
    assert found.on_cpu == pytest.approx(ON_CPU)
    assert found.active == pytest.approx(sum(WAITING.values()) + ON_CPU)


def look(rows: Sequence[Waited], seconds: int) -> Look:
    """What the doctor's query says, which leaves out the server's own processes."""
    ms: dict[Event, float] = defaultdict(float)
    captured = 0.0
    for row in rows:
        if is_background(row.backend_type):
            continue
        if row.event is None:
            captured += row.ended
        else:
            ms[row.event] += row.ended + row.running
    taken = START + timedelta(seconds=seconds)
    return Look(taken, 0, waits=CountedWaits(taken, dict(ms), captured_ms=captured))


def test_the_doctor() -> None:
    found = wait_profile(look(FIRST, 0), look(LAST, SECONDS), ActivitySamples(looks=1))
    assert found is not None
    assert {wait.event: wait.active for wait in found.events} == pytest.approx(WAITING)
    assert found.on_cpu == pytest.approx(ON_CPU)
    assert found.active == pytest.approx(sum(WAITING.values()) + ON_CPU)


def table(rows: Sequence[Waited]) -> CounterTable:
    sums = np.zeros((len(rows), WIDTH), np.int64)
    sums[:, 1] = [1_000_000 * row.ended for row in rows]
    sums[:, 2] = [1_000_000 * (row.ended + row.running) for row in rows]
    none = np.zeros(len(rows), np.int64)
    keys = {
        "backend_type": np.array([row.backend_type for row in rows]),
        "type": np.array([row.event.type if row.event else "" for row in rows]),
        "event": np.array([row.event.name if row.event else "" for row in rows]),
        "idle": np.array([bool(row.event and row.event.idle) for row in rows]),
    }
    return CounterTable(keys, sums, none, none, none)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> QueryWorker:
    """Asks a spool that holds what the agent makes of the two readings."""
    directory: Path = tmp_path_factory.mktemp("spool")
    since = Transition(ReadingBaseline.SAME, SECONDS * 10**9)
    grown = processor_rows(difference(table(FIRST), table(LAST), since), since)
    end_us = int(START.timestamp() + SECONDS) * 10**6
    interval = RowInterval("shop", "agent", 1, end_us, since.covered_ns, EXACT)
    batch = Batch()
    batch.waits(interval, grown)
    batch.tick(interval, "waits")
    with Spool.open(directory, UNLIMITED) as spool:
        spool.commit({name: parts[0] for name, parts in batch.rows.items()}, {})
    return QueryWorker(directory)


def asked(worker: QueryWorker, query: str, dimension: str) -> dict[str, float]:
    begin_us = int(START.timestamp()) * 10**6
    request: dict[str, Any] = {
        "query": query,
        "identifiers": {"rows": "waits", "dimension": dimension},
        "only": {},
        "values": {"source": "waits", "most": 100, "step_us": SECONDS * 10**6},
        "window": (begin_us, begin_us + SECONDS * 10**6),
        "grain": "tick",
    }
    found = worker.answer(request)
    assert "error" not in found, found
    names = found["columns"]
    rows = [dict(zip(names, row, strict=True)) for row in found["rows"]]
    return {row["member"]: row["aas"] for row in rows}


@pytest.mark.parametrize("query", ["breakdown", "series"])
def test_rows_of_the_agent_in_sql(query: str, worker: QueryWorker) -> None:
    events = {label.partition("/")[2]: active for label, active in WAITING.items()}
    found = asked(worker, query, "event")
    assert found == pytest.approx({**events, "Running": ON_CPU})
    assert asked(worker, query, "server")["shop"] == pytest.approx(sum(found.values()))
    # only by type of process are the server's own shown
    writer = asked(worker, query, "backend_type")[WRITER]
    assert writer == pytest.approx((4 + max(0.0, 10 - 4 - 5.8)) / 10)
