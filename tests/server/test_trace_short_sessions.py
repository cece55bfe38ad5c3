"""Sessions that end before a reader has seen them: read all the same, or reported."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.observing.trace.file.reader import Trace, load
from pgtare.observing.trace.file.tables import NO_RING
from pgtare.postgres.cluster import Cluster
from tests.commands import start_pgtare
from tests.sessions import Connection, eventually
from tests.trace_recorder import has_streams
from tests.trace_rings import KEPT, short, since, unread

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def unread_notes(trace: Trace) -> list[str]:
    """Notes of sessions that ended unread."""
    return [note for note in trace.notes() if "ended unread" in note]


@pytest.mark.slow
def test_recorder_that_comes_too_late(
    tracer: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    rec = tmp_path / "rec"
    recorder = start_pgtare(
        "trace", "record", rec, "--dsn", tracer.dsn(), "--reserve", "0", "--armed", "--json"
    )
    eventually(lambda: short(tracer, onlooker) and has_streams(rec))
    before = unread(onlooker)
    with stopped(recorder.pid):
        for _ in range(KEPT + 4):
            short(tracer, onlooker)
    lost = since(onlooker, before)
    time.sleep(0.5)
    recorder.send_signal(signal.SIGINT)
    out, err = recorder.communicate(timeout=60)
    assert recorder.returncode == 0, err
    found = json.loads(out)
    assert found["unread_sessions"] >= lost.sessions >= 4
    assert found["unread_records"] >= lost.records
    assert found["unread_bytes"] >= lost.bytes
    assert any("ended unread" in note for note in found["notes"])
    trace = load(rec)
    assert trace.losses[NO_RING] == found["unread_bytes"]
    assert unread_notes(trace) == [note for note in found["notes"] if "ended unread" in note]
