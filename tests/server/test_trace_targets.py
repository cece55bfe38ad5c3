"""Whom `pgtare trace record` traces: a role, a database, a sample of sessions, a statement."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.profile import profile
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.records import CallKind
from pgtare.postgres.cluster import Cluster
from tests.commands import start_pgtare
from tests.sessions import Connection, eventually, executed_s, one, session
from tests.trace_recorder import level_of, recording, wait_until_traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture
def tracer(trace18: Cluster) -> Cluster:
    return trace18


@pytest.fixture
def sessions(tracer: Cluster, onlooker: Connection) -> Iterator[dict[str, Connection]]:
    """Of two roles, in two databases; what each runs names it."""
    onlooker.execute("CREATE ROLE clerk LOGIN")
    onlooker.execute("CREATE DATABASE branch")
    try:
        with contextlib.ExitStack() as stack:
            yield {
                "plain": stack.enter_context(session(tracer)),
                "of clerk": stack.enter_context(session(tracer, user="clerk")),
                "in branch": stack.enter_context(session(tracer, dbname="branch")),
            }
    finally:
        onlooker.execute("DROP DATABASE branch WITH (FORCE)")
        onlooker.execute("DROP ROLE clerk")


def executed(path: Path) -> set[str]:
    """The texts of all executions in a recording."""
    book = ledger(load(path))
    return {
        book.processes[process].stream.texts[int(call["text"])].text
        for process, call in zip(book.call_process, book.calls, strict=True)
        if call["kind"] == CallKind.EXECUTE
    }


@pytest.mark.parametrize(
    ("option", "value", "who"),
    [("--role", "clerk", "of clerk"), ("--database", "branch", "in branch")],
)
def test_sessions_of_a_role_or_in_a_database(
    tracer: Cluster,
    onlooker: Connection,
    sessions: dict[str, Connection],
    tmp_path: Path,
    option: str,
    value: str,
    who: str,
) -> None:
    with recording(tracer, tmp_path / "rec", option, value, "--level", "1"):
        wait_until_traced(onlooker, sessions[who], level=1)
        for name, client in sessions.items():
            client.execute(f"SELECT '{name}'".encode())
    assert executed(tmp_path / "rec") & {f"SELECT '{name}'" for name in sessions} == {
        f"SELECT '{who}'"
    }
    assert any(
        note.startswith("waits were not recorded") for note in load(tmp_path / "rec").notes()
    )
    pid = sessions[who].info.backend_pid
    sessions[who].execute("SELECT 1")
    assert level_of(onlooker, pid) == 0


@contextlib.contextmanager
def recording_of(
    cluster: Cluster, path: Path, onlooker: Connection, query_id: str
) -> Iterator[None]:
    """The recorder, while the server's configuration has a statement traced in all sessions."""
    with recording(cluster, path, "--armed"):
        eventually(path.exists, 30)
        onlooker.execute(f"ALTER SYSTEM SET sql_trace.query_ids = '{query_id}'".encode())
        onlooker.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            onlooker.execute("ALTER SYSTEM RESET sql_trace.query_ids")
            onlooker.execute("SELECT pg_reload_conf()")


def wait_until_set(client: Connection, query_id: str) -> None:
    eventually(lambda: one(client, "SHOW sql_trace.query_ids") == query_id)


def test_statement_by_its_identifier(
    tracer: Cluster, onlooker: Connection, sessions: dict[str, Connection], tmp_path: Path
) -> None:
    """Wherever it runs, and nothing else."""
    wanted = "SELECT 'wanted' FROM pg_am LIMIT 1"
    plan = one(onlooker, f"EXPLAIN (VERBOSE, FORMAT json) {wanted}")
    query_id = str(plan[0]["Query Identifier"])
    with recording_of(tracer, tmp_path / "rec", onlooker, query_id):
        for client in sessions.values():
            wait_until_set(client, query_id)
            client.execute("SELECT 'other'")
            client.execute(wanted.encode())
    assert executed(tmp_path / "rec") == {wanted}
    assert {ring.user for ring in load(tmp_path / "rec").rings.values()} >= {"clerk"}


def test_waits_of_other_statements_are_not_recorded(
    tracer: Cluster, onlooker: Connection, sessions: dict[str, Connection], tmp_path: Path
) -> None:
    """Their session's ring of waits has them: they are no time of the statement asked for."""
    wanted, client = "SELECT pg_sleep(0.02) FROM pg_am LIMIT 1", sessions["plain"]
    plan = one(onlooker, f"EXPLAIN (VERBOSE, FORMAT json) {wanted}")
    query_id = str(plan[0]["Query Identifier"])
    with recording_of(tracer, tmp_path / "rec", onlooker, query_id):
        wait_until_set(client, query_id)
        took_s = 0.0
        for _ in range(5):
            took_s += executed_s(client, wanted)
            client.execute("SELECT pg_sleep(0.05) /*other*/")
    book = ledger(load(tmp_path / "rec"))
    assert not any(note.startswith("waits were not recorded") for note in book.notes)
    found = {line.name: line.total_ns for line in profile(book).lines}
    assert 5 * 0.02 <= found["Timeout/PgSleep"] / 1e9 <= took_s + 0.01
    assert found["not recorded"] >= 4 * 0.05e9
    assert sum(found.values()) == pytest.approx(sum(p.end - p.begin for p in book.processes))


def test_requests_that_are_not_drawn_are_not_the_clients(
    tracer: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    """The share of requests is changed in mid-trace, and the trace says since when."""
    with (
        session(tracer, application_name="sampled") as client,
        recording(tracer, tmp_path / "rec", "--application", "sampled"),
    ):
        wait_until_traced(onlooker, client)
        traced = time.monotonic()
        client.execute("SET sql_trace.statement_rate = 0")
        asleep_s = executed_s(client, "SELECT pg_sleep(0.3)")
        client.execute("SET sql_trace.statement_rate = 1")
        client.execute("SELECT 1")
        time.sleep(0.2)
        client.execute("SELECT 1")
    # to the end of the recording, which a busy machine ends late
    others_s = time.monotonic() - traced - asleep_s
    found = {line.name: line.total_ns for line in profile(ledger(load(tmp_path / "rec"))).lines}
    assert found["not recorded"] >= 0.3e9
    assert "Timeout/PgSleep" not in found
    # it has been traced since a little before this test knew
    assert 0.2 <= found["client"] / 1e9 <= others_s + 0.2


@pytest.mark.parametrize("lost", ["EXECUTE", "EXECUTE, and a session comes", "pg_read_all_stats"])
def test_sessions_that_stay_traced_are_named(
    tracer: Cluster, onlooker: Connection, tmp_path: Path, lost: str
) -> None:
    """The right to give them back was revoked."""
    setter = one(onlooker, "SELECT oid::regprocedure FROM pg_proc WHERE proname = 'sql_trace_set'")
    onlooker.execute("CREATE ROLE watcher LOGIN")
    onlooker.execute("GRANT pg_read_all_stats TO watcher")
    onlooker.execute(f"GRANT EXECUTE ON FUNCTION {setter} TO watcher".encode())
    rec, document = tmp_path / "rec", tmp_path / "rec.json"
    right = f"EXECUTE ON FUNCTION {setter}" if lost.startswith("EXECUTE") else lost
    try:
        with session(tracer, application_name="app") as app:
            process = start_pgtare(
                *("trace", "record", rec, "--dsn", tracer.dsn(user="watcher"), "--reserve", "0"),
                *("--application", "app", "--output", document),
            )
            wait_until_traced(onlooker, app)
            app.execute("SELECT 1")
            time.sleep(0.3)  # three looks
            onlooker.execute(f"REVOKE {right} FROM watcher".encode())
            time.sleep(1)  # ten looks
            with contextlib.ExitStack() as stack:
                if lost.endswith("comes"):
                    stack.enter_context(session(tracer, application_name="app"))
                else:
                    process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
            pid = app.info.backend_pid
            assert process.returncode == 1, (out, err)
            assert f"may still be traced: session {pid}" in out.replace("sessions", "session"), out
            assert pid in json.loads(document.read_text())["still_traced"]
            app.execute("SELECT 1")  # it would have noticed by now
            assert level_of(onlooker, pid) > 0
            assert any("may still be traced" in note for note in load(rec).notes())
    finally:
        onlooker.execute("DROP OWNED BY watcher; DROP ROLE watcher")


def test_what_cannot_be_looked_at_does_not_keep_sessions_traced(
    tracer: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    """The right to the last look was revoked, but not that to give them back."""
    setter = one(onlooker, "SELECT oid::regprocedure FROM pg_proc WHERE proname = 'sql_trace_set'")
    view = one(
        onlooker,
        "SELECT oid::regclass FROM pg_class WHERE relname = 'pg_stat_wait_event_timing_current'",
    )
    onlooker.execute("CREATE ROLE watcher LOGIN")
    onlooker.execute("GRANT pg_read_all_stats TO watcher")
    onlooker.execute(f"GRANT EXECUTE ON FUNCTION {setter} TO watcher".encode())
    try:
        with session(tracer, application_name="app") as app:
            process = start_pgtare(
                *("trace", "record", tmp_path / "rec", "--dsn", tracer.dsn(user="watcher")),
                *("--reserve", "0", "--application", "app"),
            )
            wait_until_traced(onlooker, app)
            app.execute("SELECT 1")
            time.sleep(0.3)  # three looks
            onlooker.execute(f"REVOKE SELECT ON {view} FROM public".encode())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert "permission denied" in out, (out, err)
            assert "may still be traced" not in out
            app.execute("SELECT 1")
            assert level_of(onlooker, app.info.backend_pid) == 0
    finally:
        onlooker.execute(f"GRANT SELECT ON {view} TO public".encode())
        onlooker.execute("DROP OWNED BY watcher; DROP ROLE watcher")
