"""Findings of an agent name the traces that the flight recorder kept of their sessions."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.agent_rows import role_dsn
from tests.commands import in_process
from tests.json_documents import documents
from tests.servers import tracing
from tests.sessions import eventually, session
from tests.trace_keeper import place
from tests.trace_records import grant_usage

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

GRANT = "GRANT EXECUTE ON FUNCTION public.sql_trace_keep_for_finding(integer[],text) TO watcher;"


@pytest.fixture(scope="module")
def recording(wheel: Binaries) -> Iterator[tuple[Cluster, Path]]:
    """A server whose flight recorder is on, and where it writes what it keeps."""
    with place() as path:
        settings = {
            "sql_trace.recorder_memory": "16MB",
            "sql_trace.recorder": True,
            "sql_trace.keep_directory": str(path / "kept"),
        }
        with tracing(wheel, settings) as cluster:
            with session(cluster) as admin:
                admin.execute("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
                admin.execute("CREATE TABLE hot AS SELECT 1 AS id")
                grant_usage(admin, "watcher")
            yield cluster, path / "kept"


@contextlib.contextmanager
def held_up(cluster: Cluster) -> Iterator[list[int]]:
    """A session that keeps a row and three that want it: their processes, the holder's first."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(session(cluster))
        holder.execute("BEGIN; UPDATE hot SET id = id")
        pool = stack.enter_context(ThreadPoolExecutor(3))
        pids = [holder.info.backend_pid]
        for _ in range(3):
            waiter: psycopg.Connection[Any] = stack.enter_context(session(cluster))
            stack.callback(waiter.cancel)
            pids.append(waiter.info.backend_pid)
            pool.submit(waiter.execute, b"UPDATE hot SET id = id")
        yield pids


def findings(spool: Path) -> list[dict[str, Any]]:
    if not (spool / "spool.json").exists():
        return []
    done = in_process("findings", "--spool", spool, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, documents()["pgtare.findings/1"].schema)
    return [one for one in document["findings"] if one["kind"] == "lock"]


def watched(
    cluster: Cluster, spool: Path, started: Callable[..., subprocess.Popen[str]]
) -> tuple[list[int], dict[str, Any], str]:
    """The processes of a queue, the finding that an agent makes of it, and how it is listed."""
    with held_up(cluster) as pids:
        started("agent", "--dsn", role_dsn(cluster), "--spool", spool)
        (found,) = eventually(lambda: findings(spool), 90)
    return pids, found, " ".join(in_process("findings", "--spool", spool).stdout.split())


@pytest.mark.slow
def test_without_the_right_a_finding_says_how_to_grant_it(
    recording: tuple[Cluster, Path],
    started: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    cluster, directory = recording
    pids, found, shown = watched(cluster, tmp_path / "spool", started)
    assert found["root"]["pid"] == pids[0]
    assert found["traces"]["kept"] == []
    grant = f"no trace, as the role may not have any kept: {GRANT}"
    assert found["traces"]["missing"] == grant
    assert shown.count(GRANT) == 1
    assert not list(directory.glob("kept-*"))


@pytest.mark.slow
def test_the_traces_of_a_finding_are_kept_and_named(
    recording: tuple[Cluster, Path],
    started: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    cluster, directory = recording
    with session(cluster) as admin:
        admin.execute(GRANT.encode())
    try:
        pids, found, shown = watched(cluster, tmp_path / "spool", started)
        traces = found["traces"]["kept"]
        assert found["traces"]["missing"] == ""
        assert traces[0]["pid"] == pids[0] == found["root"]["pid"]
        assert {one["pid"] for one in traces} == {pids[0], *found["victims"][:4]}
        for one in traces:
            assert eventually((directory / one["file"]).exists)
            assert f"pgtare trace kept {one['id']} --dsn … (process {one['pid']}," in shown
        done = in_process("trace", "kept", str(traces[0]["id"]), "--dsn", cluster.dsn(), "--json")
        kept = json.loads(done.stdout)
        assert kept["session"]["file"] == traces[0]["file"]
        assert kept["session"]["state"]["state"] == "idle in transaction"
        assert {other["pid"] for other in kept["others"]} == {one["pid"] for one in traces[1:]}
    finally:
        with session(cluster) as admin:
            admin.execute(GRANT.replace("GRANT", "REVOKE").replace(" TO ", " FROM ").encode())
