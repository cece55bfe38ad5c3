"""`pgtare trace status` and `stop`: asked for, by role, by pattern; kept, without privilege."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pgtare.observing.trace.capture import server_state
from pgtare.observing.trace.capture.server import open_server
from pgtare.observing.trace.capture.server_state import TracedSession, TraceSetting, TraceStatus
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process, refused
from tests.sessions import Connection, eventually, rows, session
from tests.trace_recorder import has_streams, level_of, recording, wait_until_traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def status(tracer: Cluster) -> TraceStatus:
    with open_server(tracer.dsn()) as server:
        return server_state.status(server)


def of(sessions: list[TracedSession], client: Connection) -> TracedSession | None:
    return next((s for s in sessions if s.pid == client.info.backend_pid), None)


def test_a_session_that_was_asked_for(
    tracer: Cluster, client: Connection, onlooker: Connection
) -> None:
    pid = client.info.backend_pid
    assert of(status(tracer).sessions, client) is None
    onlooker.execute("SELECT sql_trace_set(%s, 4)", (pid,))
    client.execute("SET application_name = 'shop'; SELECT 1")
    state = of(status(tracer).sessions, client)
    assert state is not None
    assert (state.level, state.reason, state.waits) == (4, "sql_trace_set", False)
    assert (state.application, state.database) == ("shop", "postgres")
    assert state.records > 0
    table = in_process("trace", "status", "--dsn", tracer.dsn()).stdout
    (line,) = [line for line in table.splitlines() if line.startswith(str(pid))]
    assert line.split()[3:6] == ["shop", "4", "asked"]

    done = in_process("trace", "stop", "--dsn", tracer.dsn(), "--pid", str(pid))
    assert (done.returncode, str(pid) in done.stdout) == (0, True)
    client.execute("SELECT 1")
    assert level_of(onlooker, pid) == 0
    found = status(tracer)
    assert of(found.sessions, client) is None
    assert of(found.kept, client) is not None
    done = in_process("trace", "stop", "--dsn", tracer.dsn())
    assert "no session is traced because" in done.stdout
    done = in_process("trace", "stop", "--dsn", tracer.dsn(), "--pid", str(pid))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"session {pid}: not traced because somebody asked for it\n"
    # also if nothing shows that it was asked, as it idles
    onlooker.execute("SELECT sql_trace_set(%s, 12)", (pid,))
    assert in_process("trace", "stop", "--dsn", tracer.dsn()).returncode == 0
    client.execute("SELECT 1")
    assert level_of(onlooker, pid) == 0


@pytest.mark.slow
def test_a_recording_that_asks_again_is_reported(
    tracer: Cluster, client: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    pid = client.info.backend_pid
    rec = tmp_path / "rec"
    with recording(tracer, rec, "--pid", str(pid)):
        wait_until_traced(onlooker, client)
        # the recorder has seen it, too: of one that it has not, it cannot tell that it was stopped
        eventually(lambda: has_streams(rec), 30)
        time.sleep(0.3)
        done = in_process("trace", "stop", "--dsn", tracer.dsn(), "--pid", str(pid))
        assert done.stdout == f"given back to their settings, from their next request on: {pid}\n"
        assert "a recording that runs asks for 1 of them again" in done.stderr
        listed = done.stderr.strip().partition("processes: ")[2]
        assert rows(onlooker, listed)
        wait_until_traced(onlooker, client)


def test_what_settings_have_traced_is_reported(tracer: Cluster, onlooker: Connection) -> None:
    onlooker.execute('CREATE ROLE "night clerk" LOGIN')
    try:
        onlooker.execute('ALTER ROLE "night clerk" SET sql_trace.level = 1')
        with session(tracer, user="night clerk") as clerk:
            clerk.execute("SELECT 1")
            state = of(status(tracer).sessions, clerk)
            assert state is not None
            assert state.reason == "setting"
            level = TraceSetting("night clerk", None, "sql_trace.level", "1")
            assert level in status(tracer).settings
            pid = str(clerk.info.backend_pid)
            assert 'ALTER ROLE "night clerk" RESET sql_trace.level;' in (
                in_process("trace", "stop", "--dsn", tracer.dsn()).stdout
            )
            done = in_process("trace", "stop", "--dsn", tracer.dsn(), "--pid", pid)
            assert (done.returncode, done.stderr) == (
                1,
                "pgtare: what was named goes on being traced\n",
            )
            remedy = done.stdout.partition("by: ")[2].strip()
            assert remedy.endswith(f"sql_trace_set({pid}, 0);")
            assert level_of(onlooker, clerk.info.backend_pid) == 1
            onlooker.execute(remedy.encode())
            clerk.execute("SELECT 1")
            assert level_of(onlooker, clerk.info.backend_pid) == 0
            # nor does another stop begin it anew
            in_process("trace", "stop", "--dsn", tracer.dsn())
            clerk.execute("SELECT 1")
            assert level_of(onlooker, clerk.info.backend_pid) == 0
    finally:
        onlooker.execute('DROP ROLE "night clerk"')


def test_patterns_and_levels_of_the_configuration(tracer: Cluster, onlooker: Connection) -> None:
    try:
        onlooker.execute("ALTER SYSTEM SET sql_trace.application = 'shop*=12'")
        onlooker.execute("ALTER SYSTEM SET sql_trace.level = 1")
        onlooker.execute("SELECT pg_reload_conf()")
        want = {("sql_trace.application", "shop*=12"), ("sql_trace.level", "1")}
        eventually(lambda: want <= {(s.name, s.value) for s in status(tracer).settings})
        done = in_process("trace", "stop", "--dsn", tracer.dsn())
        assert "ALTER SYSTEM SET sql_trace.application = '';" in done.stdout
        assert "ALTER SYSTEM SET sql_trace.level = 0; SELECT pg_reload_conf();" in done.stdout
    finally:
        onlooker.execute("ALTER SYSTEM RESET sql_trace.application")
        onlooker.execute("ALTER SYSTEM RESET sql_trace.level")
        onlooker.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("tracer", ["trace18"], indirect=True)
def test_without_privilege_and_without_a_session(tracer: Cluster, onlooker: Connection) -> None:
    onlooker.execute("CREATE ROLE nobody LOGIN")
    try:
        dsn = tracer.dsn(user="nobody")
        assert "GRANT pg_read_all_stats TO nobody;" in refused("trace", "status", "--dsn", dsn)
        onlooker.execute("GRANT pg_read_all_stats TO nobody")
        done = in_process("trace", "status", "--dsn", dsn)
        assert done.returncode == 0
        assert "a superuser's to see" in done.stdout
        assert "GRANT EXECUTE ON FUNCTION" in refused("trace", "stop", "--dsn", dsn)
    finally:
        onlooker.execute("DROP ROLE nobody")
    assert "no client session 1:" in refused("trace", "stop", "--dsn", tracer.dsn(), "--pid", "1")
