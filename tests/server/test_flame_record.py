"""What begins and ends while a server is recorded is in the recording."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from pgtare.errors import MeasurementError
from pgtare.observing.flame import perf, processes
from pgtare.observing.flame.perf import Collector
from pgtare.observing.flame.processes import FlameTarget
from pgtare.observing.flame.record import record
from pgtare.observing.flame.recording import FlameRecording, Mode
from pgtare.postgres.cluster import Cluster
from tests.flame_recordings import needs_perf
from tests.loads import repeating
from tests.sessions import Connection, eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@contextlib.contextmanager
def _sessions_that_come_and_go(cluster: Cluster, directory: str) -> Iterator[None]:
    script = f"{directory}/work.sql"
    with open(script, "w") as file:
        file.write("SELECT count(*) FROM generate_series(1, 20000);\n")
    command = [str(cluster.binaries.pgbench), "-n", "-C", "-c", "1", "-T", "60", "-f", script]
    with subprocess.Popen(
        [*command, cluster.dsn()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as load:
        try:
            eventually(lambda: len(processes.children(cluster.postmaster_pid)) > 5, 20)
            yield
        finally:
            load.terminate()


@pytest.mark.parametrize(
    "everything", [pytest.param(True, marks=pytest.mark.slow), False], ids=["as root", "by number"]
)
def test_sessions_that_come_and_go(
    server18: Cluster, tmp_path: object, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    """perf begins although processes that it was to follow have ended, and no sample is dropped."""
    needs_perf("on")
    if not everything:
        monkeypatch.setattr(perf, "sees_everything", lambda: False)
    with _sessions_that_come_and_go(server18, str(tmp_path)):
        target = processes.of_postmaster(server18.postmaster_pid)
        found = record("on", target, 2, 499)
    backends = [i for i, stack in enumerate(found.samples.stacks) if stack[0] == "backend"]
    of = [stack in backends for stack in found.samples.stack.tolist()]
    # a session takes some 15 ms, and ten times as long where others want the processors, too
    assert len(set(found.samples.pid[of].tolist())) > 3
    assert found.samples.where(of).total_ns > 0.02e9  # type: ignore[arg-type]
    assert target.unknown == 0
    # other programs' frames are none of its business
    assert not [note for note in found.notes if "pgbench" in note]
    if not everything:
        assert len(found.samples) == found.events


_MANY_THREADS = """
import sys, threading
threading.stack_size(65536)
end = threading.Event()
for _ in range(3000):
    threading.Thread(target=end.wait, daemon=True).start()
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_machine_with_thousands_of_tasks(
    server18: Cluster, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """perf tells of all of them before it begins, and waits until that is read."""
    needs_perf()
    monkeypatch.setattr(perf, "too_many", lambda pids: True)
    with (
        subprocess.Popen(
            [sys.executable, "-c", _MANY_THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as others,
        _sessions_that_come_and_go(server18, str(tmp_path)),
    ):
        assert others.stdout is not None
        assert others.stdout.readline() == b"there\n"
        found = record("on", processes.of_postmaster(server18.postmaster_pid), 1, 499)
        others.communicate()
    assert found.samples.total_ns > 0.1e9


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("off", marks=pytest.mark.slow), "wake"])
def test_waits_of_sessions_that_come_and_go(
    server18: Cluster, tmp_path: object, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """Where the kernel lets all processes of the program pass, other servers' are sifted here."""
    needs_perf()
    monkeypatch.setattr(FlameTarget, "alone", True)
    with _sessions_that_come_and_go(server18, str(tmp_path)):
        target = processes.of_postmaster(server18.postmaster_pid)
        found = record(mode, target, 2)
    backends = [i for i, stack in enumerate(found.samples.stacks) if stack[0] == "backend"]
    of = [stack in backends for stack in found.samples.stack.tolist()]
    assert len(set(found.samples.pid[of].tolist())) > 10
    assert target.unknown == 0
    assert not [note for note in found.notes if "not in it" in note]


def test_what_ends_before_perf_begins(server18: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_perf("on")
    with subprocess.Popen(["true"]) as ended:
        pass
    monkeypatch.setattr(perf, "sees_everything", lambda: False)
    monkeypatch.setattr("pgtare.observing.flame.record._TRIES", 1)
    monkeypatch.setattr(FlameTarget, "refresh", lambda target: target.pids.append(ended.pid))
    with pytest.raises(MeasurementError, match=r"perf can follow .*No such process.* as root"):
        record("on", processes.of_postmaster(server18.postmaster_pid), 1)


@pytest.mark.slow
def test_parallel_workers(server18: Cluster) -> None:
    """Each serves one query, and has ended when its samples are read."""
    needs_perf("on")
    with server18.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS wide")
        connection.execute("CREATE TABLE wide AS SELECT g FROM generate_series(1, 300000) g")
        connection.execute("ALTER TABLE wide SET (parallel_workers = 1)")
        connection.execute("ANALYZE wide")
    settings = "-c parallel_setup_cost=0 -c parallel_tuple_cost=0 -c min_parallel_table_scan_size=0"

    def work(connection: Connection, number: int) -> None:
        connection.execute("SELECT sum(g) FROM wide")

    with repeating(server18.dsn(), 1, work, options=settings):
        found = record("on", processes.of_postmaster(server18.postmaster_pid), 2, 999)
    own = {kind: _time(found, kind) for kind in ("backend", "parallel worker")}
    assert own["parallel worker"] > 0.3 * own["backend"] > 0


def _waits(pid: int) -> bool:
    return "waiting" in processes.activity(pid)[0]


def _time(recording: FlameRecording, kind: str) -> int:
    weights = recording.samples.weight_ns
    stacks = recording.samples.stacks
    return sum(
        ns
        for stack, ns in zip(recording.samples.stack.tolist(), weights.tolist(), strict=True)
        if stacks[stack][0] == kind
    )


def test_what_began_to_wait_while_perf_started(
    server18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits throughout, for what it waits for then: not for what it did before perf started."""
    needs_perf()
    collecting = perf.collecting
    with server18.connect() as holder, server18.connect() as idle, server18.connect() as active:
        holder.execute("CREATE TABLE IF NOT EXISTS held ()")
        pids = idle.info.backend_pid, active.info.backend_pid
        waits: list[threading.Thread] = []

        @contextlib.contextmanager
        def later(mode: Mode, arguments: Sequence[str]) -> Iterator[Collector]:
            for session, pid in ((idle, pids[0]), (active, pids[1])):
                session.execute("SET deadlock_timeout = '1min'")  # which would wake it
                take = threading.Thread(target=session.execute, args=("TABLE held",), daemon=True)
                take.start()
                waits.append(take)
                eventually(partial(_waits, pid), 20)
            with collecting(mode, arguments) as collector:
                yield collector

        monkeypatch.setattr(perf, "collecting", later)
        with holder.transaction():
            holder.execute("LOCK TABLE held")
            found = record("off", processes.of_postmaster(server18.postmaster_pid), 1)
        for thread in waits:
            thread.join(20)
    shown = found.shown()
    for pid in pids:
        of = shown.where(shown.pid == pid)
        assert found.lost or of.total_ns > 0.9e9  # where events are lost, waits end
        assert all("idle" not in of.stacks[number][1] for number in of.stack.tolist())
