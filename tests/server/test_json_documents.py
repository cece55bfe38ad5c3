"""Every command's --json on a real server: one object that follows its schema, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process, pgtare
from tests.flame_recordings import needs_perf
from tests.json_documents import documents
from tests.loads import traffic
from tests.servers import CAPTURING, with_everything

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def busy(wheel: Binaries) -> Iterator[Cluster]:
    """PostgreSQL 18 with everything, and a session that sleeps now and then."""
    with (
        with_everything(wheel, CAPTURING) as cluster,
        traffic(cluster.dsn(), 1, "SELECT pg_sleep(0.01)"),
    ):
        yield cluster


def document(name: str, printed: str) -> None:
    found = json.loads(printed)
    assert found["schema"] == name
    jsonschema.validate(found, documents()[name].schema)


def printed(*arguments: str | Path, status: int = 0) -> str:
    done = in_process(*arguments, "--json")
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.slow
def test_of_waits(busy: Cluster, tmp_path: Path) -> None:
    where = ("--dsn", busy.dsn())
    lines = printed("waits", "top", "--interval", "1s", "--iterations", "2", *where)
    for line in lines.splitlines():
        document("pgtare.waits.profile/1", line)
    document("pgtare.waits.histogram/1", printed("waits", "histogram", "PgSleep", *where))
    document("pgtare.waits.sessions/1", printed("waits", "sessions", "--background", *where))
    document("pgtare.waits.statements/1", printed("waits", "statements", *where))
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    for path in (one, two):
        document("pgtare.waits.snapshot/1", printed("waits", "snapshot", path, *where))
    document("pgtare.waits.profile/1", printed("waits", "diff", one, two, "--idle"))


@pytest.mark.slow
def test_of_trace(busy: Cluster, tmp_path: Path) -> None:
    where = ("--dsn", busy.dsn())
    trace = tmp_path / "trace"
    done = printed("trace", "record", trace, "-d", "1s", "--reserve", "0", *where)
    document("pgtare.trace.recorded/1", done)
    document("pgtare.trace.kept/1", printed("trace", "kept", *where))
    document("pgtare.trace.profile/1", printed("trace", "profile", trace))
    document("pgtare.trace.statements/1", printed("trace", "statements", trace))
    document("pgtare.trace.clients/1", printed("trace", "clients", trace))


@pytest.mark.slow
def test_of_weighing(busy: Cluster, tmp_path: Path) -> None:
    where = ("--dsn", busy.dsn())
    script = tmp_path / "one.sql"
    script.write_text("SELECT 1;\n")
    document("pgtare.instruments/1", printed("instruments", *where))
    command = ("weigh", "track_io_timing", "--script", script, "-d", "3", *where)
    out = tmp_path / "out"
    document("pgtare.weigh/2", printed(*command, "--out", out))
    document("pgtare.weigh/2", printed("report", out))
    doctor = pgtare("doctor", "--interval", "1s", "--json", *where)
    document("pgtare.doctor/1", doctor.stdout)


@pytest.mark.slow
def test_of_flame(busy: Cluster) -> None:
    needs_perf()
    pid = str(busy.postmaster_pid)
    document("pgtare.flame/1", printed("flame", "off", "-d", "1s", "--postmaster", pid))


@pytest.mark.slow
def test_of_no_server() -> None:
    document("pgtare.clock/1", printed("clock"))
    document("pgtare.instruments/1", printed("instruments"))
