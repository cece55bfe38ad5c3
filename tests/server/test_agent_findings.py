"""What an agent finds of a server without any module, and that a kill of it loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtare.keeping.agent import server_findings
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.observing.findings import queries
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.agent_rows import Watching, new_looks, role_dsn, rows_of
from tests.commands import failed, in_process, refused
from tests.servers import SLOWLY_ON_15
from tests.sessions import eventually, one

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(params=SLOWLY_ON_15)
def plain(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server as it comes, and a role in pg_monitor."""
    binaries: Binaries = request.getfixturevalue(request.param)
    with Cluster(binaries, tcp=True) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
            connection.execute("CREATE TABLE hot AS SELECT 1 AS id, 'secret' AS word")
        yield cluster


@contextlib.contextmanager
def held_up(cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    """A session that keeps a row, and three that want it."""
    with contextlib.ExitStack() as stack:
        holder = psycopg.connect(cluster.dsn(tcp=True), autocommit=True)
        stack.enter_context(holder)
        holder.execute("SET application_name = 'cron <b>'")
        holder.execute("BEGIN")
        holder.execute("UPDATE hot SET word = 'secret'")
        pool = stack.enter_context(ThreadPoolExecutor(3))
        for _ in range(3):
            waiter = stack.enter_context(cluster.connect())
            stack.callback(waiter.cancel)
            pool.submit(waiter.execute, b"UPDATE hot SET word = 'secret' WHERE id = 1")
        yield holder


def findings(spool: Path, *words: str) -> list[dict[str, Any]]:
    done = in_process("findings", "--spool", spool, "--json", *words)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


@pytest.mark.slow
def test_who_holds_up_others_is_found_once_though_the_agent_is_killed(
    plain: Cluster, started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    assert "no spool" in refused("findings", "--spool", spool)
    words = ("agent", "--dsn", role_dsn(plain), "--spool", spool)
    with held_up(plain) as holder:
        pid = holder.info.backend_pid
        agent = started(*words)
        eventually(lambda: (spool / "spool.json").exists() and bool(findings(spool, "--open")), 90)
        os.kill(agent.pid, signal.SIGKILL)
        agent.communicate()
        started(*words)
        eventually(lambda: findings(spool)[0]["class"] == 0, 90)
        (found,) = findings(spool, "--open", "--since", "1h")
        assert (found["kind"], found["level"], found["root"]["pid"]) == ("lock", "critical", pid)
        assert (
            found["title"] == f"cron <b> (pid {pid}) is idle in transaction and holds rows of hot"
        )
        assert found["root"]["client"] == "127.0.0.1"
        assert any(", client 127.0.0.1, idle in trans" in line for line in found["evidence"])
        assert found["share"] == 1.0
        assert len(found["victims"]) == 3
        assert found["episodes"] == 1
        shown = in_process("findings", "--spool", spool)
        assert "CRITICAL  cron <b>" in shown.stdout
        assert "secret" not in shown.stdout + json.dumps(found)
        # the command ends this session in this transaction, and no other one
        command = found["remedy"][0]["command"]
        with plain.connect() as admin:
            other = command.replace(" AND xact_start = '2", " AND xact_start = '1")
            assert admin.execute(other.encode()).fetchall() == []
            assert one(admin, command) is True
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")


def test_what_cannot_be_shown_says_why(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    for words, said in (
        ((), "--spool DIR or --store"),
        (("--spool", spool, "--to", "2026-01-01"), "--to goes with --from"),
        (("--spool", spool, "--since", "500d"), "at most 400d"),
        (("--spool", spool, "--follow", "--json"), "--follow goes with"),
        (("--spool", spool, "--follow", "--open"), "--follow goes with"),
        (("--spool", spool, "--follow", "--since", "2h"), "--follow goes with"),
        (("--spool", spool, "--against", "7d", "--json"), "--against prints all findings"),
        (("--spool", spool, "--against", "7d", "--open"), "--against prints all findings"),
        (("--spool", spool, "--from", "yesterday"), "write a time as in"),
        (("--spool", spool, "--from", "2026-01-02", "--to", "2026-01-01"), "not before --to"),
    ):
        assert said in refused("findings", *words)
    assert failed(in_process("findings", "--spool", spool), 2)


#: Of those that an evaluation sends.
SLOW = ("COUNTERS", "COUNTERS_BEFORE_17", "TABLES", "ROLE_SETTINGS", "HORIZON", "LOCK_TABLE")


@pytest.fixture
def slow_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them takes until the server gives it up, which it does after 2 s."""
    for name in SLOW:
        query = replace(getattr(queries, name), text="SELECT pg_sleep(60)")
        monkeypatch.setattr(queries, name, query)


@pytest.mark.slow
@pytest.mark.usefixtures("slow_queries")
def test_a_query_that_the_server_gave_up_is_not_sent_again_for_a_while(
    waits18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, clock = new_looks(), time.monotonic

    def evaluation_s() -> float:
        began = time.monotonic()
        looks.evaluate(session)
        return time.monotonic() - began

    with ServerSession(waits18.dsn()) as session:
        looks.check(session)
        assert evaluation_s() > 5 * 2
        assert evaluation_s() < 2
        monkeypatch.setattr(time, "monotonic", lambda: clock() + server_findings._FIRST_PAUSE_S)
        assert evaluation_s() > 2 * 2  # tables and the table of locks are read less often


@pytest.mark.usefixtures("slow_queries")
@pytest.mark.slow
def test_slow_queries_for_findings_do_not_hold_up_other_looks(waits18: Cluster) -> None:
    def look_s() -> float:
        figures = rows_of(watching.batches, "agent")
        return float(sum(row["value"] for row in figures if row["kind"] == "look_findings"))

    with Watching(waits18.dsn()) as watching:
        eventually(lambda: look_s() > 5 * 2)
    for source in ("waits", "sessions"):
        ticks = [row for row in rows_of(watching.batches, "ticks") if row["source"] == source]
        assert max(row["covered_ns"] for row in ticks) < 4 * 2 * 10**9  # all queries take 16 s
