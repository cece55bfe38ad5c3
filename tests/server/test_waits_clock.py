"""What is counted a second does not change with the server's wall clock."""

from __future__ import annotations

import contextlib
import mmap
import struct
import threading
from collections.abc import Iterator

import pytest

from pgtare.observing.doctor import examine
from pgtare.observing.doctor.session import connected
from pgtare.observing.flame.processes import activity
from pgtare.observing.waits import live
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.wait_counters.rates import profile
from pgtare.postgres.wait_counters.reader import open_reader
from tests.loads import during
from tests.preloaded import preloaded
from tests.servers import tracing
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: A session that waits for a table, and nothing else: one on average. Sleeps follow the clock.
WAITS = "Lock/relation"
#: What two seconds may last on a busy machine: much less than the step of the clock. There, who
#: looks can also be without a processor between its clock and the session's.
LONGEST_S = 600


@pytest.fixture(scope="module")
def stepping(wheel: Binaries) -> Iterator[tuple[Cluster, mmap.mmap]]:
    with (
        preloaded(wheel, "step_clock.c", "PGTARE_CLOCK_STEP", 8) as (binaries, step),
        tracing(wheel, {"wait_event_timing.capture": "stats"}, run=binaries) as cluster,
        cluster.connect() as holder,
        cluster.connect() as waiter,
    ):
        holder.execute("CREATE TABLE held ()")
        with holder.transaction():
            holder.execute("LOCK TABLE held")
            with during(lambda: waiter.execute("TABLE held")):
                eventually(lambda: "waiting" in activity(waiter.info.backend_pid)[0])
                yield cluster, step
                holder.execute("COMMIT")


@contextlib.contextmanager
def _set_meanwhile(step: mmap.mmap, seconds: int) -> Iterator[None]:
    """In a second the server's clock is set by so much, and afterwards back."""

    def put() -> None:
        step[:] = struct.pack("q", seconds * 1_000_000)

    timer = threading.Timer(1, put)
    timer.start()
    try:
        yield
    finally:
        timer.join()
        step[:] = bytes(8)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_waits(stepping: tuple[Cluster, mmap.mmap], seconds: int) -> None:
    cluster, step = stepping
    with open_reader(cluster.dsn()) as reader:
        first = reader.snapshot()
        with _set_meanwhile(step, seconds):
            (found,) = live.watch(reader, 2, 1, idle=False, background=False)
            kept = profile(first, reader.snapshot())
    for each in (found, kept):
        assert 2 <= each.duration_s < LONGEST_S
        (active,) = [rate.active for rate in each.events if rate.event.label == WAITS]
        assert active == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("seconds", [pytest.param(3600, marks=pytest.mark.slow), -3600])
def test_doctor(stepping: tuple[Cluster, mmap.mmap], seconds: int) -> None:
    cluster, step = stepping
    with connected(cluster.dsn()) as session, _set_meanwhile(step, seconds):
        found = examine.examine(session, 2)
    assert 2 <= found.duration_s < LONGEST_S
    assert found.transactions_per_s is not None
    assert found.transactions_per_s >= 0
    assert found.waits is not None
    assert found.waits.exact
    (active,) = [event.active for event in found.waits.events if event.event == WAITS]
    assert active == pytest.approx(1, abs=0.3)
