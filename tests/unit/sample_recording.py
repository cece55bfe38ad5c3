"""A recording made up for tests: two sessions, two statements, three events, ten seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from pgtare.seeing.waits.recording import RecordedSession, Recording, Writer
from pgtare.server import statement_spans, wait_ring
from pgtare.server.wait_ring import RingRecordKind

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
READ, SLEEP, CLIENT = 0x0A000015, 0x09000004, 0x06000000
TEXTS = {"101": "SELECT balance FROM accounts WHERE id = $1", "102": "SELECT pg_sleep($1)"}


def write(directory: Path, texts: dict[str, str] | None = None, lost: int = 0) -> Recording:
    """Write it: each session runs a statement every 10 ms that reads or sleeps, in three parts."""
    writer = Writer(directory)
    names = {str(READ): ["IO", "DataFileRead"], str(CLIENT): ["Client", "ClientRead"]}
    recording = Recording(
        started=BEGAN,
        duration_s=10.0,
        stopped_by="time",
        server="180006",
        sessions=[
            RecordedSession(
                number=n,
                pid=4000 + n,
                started=BEGAN - timedelta(seconds=1),
                user="app",
                database="bank",
                application="web",
                records=3500,
                lost=lost * n,
            )
            for n in range(2)
        ],
        events=names,
        texts=TEXTS if texts is None else texts,
    )
    for part in range(3):
        for session in range(2):
            _add(writer, session, np.arange(part * 333, (part + 1) * 333))
        writer.flush()
    writer.close(recording)
    return recording


def _add(writer: Writer, session: int, cycles: np.ndarray) -> None:
    began_ns = round(BEGAN.timestamp() * 1e6) * 1000
    records = np.zeros(5 * len(cycles), wait_ring.RECORD)
    shape = records.reshape(len(cycles), 5)
    start = cycles * 10_000_000
    shape["kind"] = [
        RingRecordKind.WAIT,
        RingRecordKind.STATEMENT_BEGIN,
        RingRecordKind.WAIT,
        RingRecordKind.CPU,
        RingRecordKind.STATEMENT_END,
    ]
    shape["start_ns"] = start[:, None] + np.array([0, 4, 5, 9, 9]) * 1_000_000
    shape["event"][:, 0] = CLIENT
    shape["value"][:, 0] = 4_000_000
    shape["value"][:, 1] = 101 + session
    shape["event"][:, 2] = READ if session == 0 else SLEEP
    shape["value"][:, 2] = 1000 << (cycles % 11)
    shape["value"][:, 3] = (cycles + 1) * 500_000
    shape["value"][:, 4] = 1
    shape["calls"] = 1
    query_id, _ = statement_spans.running(records["kind"], records["depth"], records["value"])
    writer.add(
        {
            "session": np.full(len(records), session),
            "number": np.arange(len(records)),
            **{name: records[name] for name in ("kind", "depth", "event", "calls", "value")},
            "start_ns": records["start_ns"] + began_ns,
            "query_id": query_id,
        }
    )
