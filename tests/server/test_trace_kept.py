"""Traces that are kept because a trigger fires: what fires, what is kept of it, and who sees it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest

from pgtare.keeping.agent.server_looks import ServerLooks
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.moment import moment
from pgtare.observing.trace.analysis.profile import profile
from pgtare.observing.trace.file.reader import Trace, load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import failed, in_process
from tests.json_documents import documents
from tests.loads import during
from tests.preloaded import preloaded
from tests.servers import tracing
from tests.sessions import Connection, eventually, executed_s, one, rows, session, until_it_waits
from tests.trace_keeper import forget_all, place, traced
from tests.trace_records import call_texts, grant_usage

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Every trigger counts, so that one test does not keep another's from firing.
SETTINGS = {"sql_trace.keep_interval": 0, "sql_trace.keep_most": 32, "deadlock_timeout": "50ms"}


@pytest.fixture(scope="module")
def keeping(each_server: Binaries) -> Iterator[Cluster]:
    """A server that keeps traces in memory alone."""
    with tracing(each_server, SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def filing(each_server: Binaries) -> Iterator[tuple[Cluster, Path]]:
    """A server that writes what it keeps, and where."""
    with place() as path:
        settings = SETTINGS | {"sql_trace.keep_directory": str(path / "kept")}
        with tracing(each_server, settings) as cluster:
            yield cluster, path / "kept"


@pytest.fixture
def admin(keeping: Cluster) -> Iterator[Connection]:
    with session(keeping) as connection:
        forget_all(connection)
        yield connection


def kept(cluster: Cluster, *options: str) -> list[dict[str, Any]]:
    """What the command lists."""
    done = in_process("trace", "kept", *(options or ("--dsn", cluster.dsn())), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, documents()["pgtare.trace.kept/1"].schema)
    found: list[dict[str, Any]] = document["traces"]
    return found


def take(cluster: Cluster, number: int, path: Path) -> Trace:
    where = ("--dsn", cluster.dsn(), "--out", path)
    done = in_process("trace", "kept", str(number), *where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"kept trace {number}, ")
    return load(path)


def provoke(client: Connection, query: str) -> None:
    with pytest.raises(psycopg.Error):
        client.execute(query.encode())


def test_the_agent_lists_what_was_kept_once(keeping: Cluster, admin: Connection) -> None:
    with traced(keeping, keep_slower_than=300) as client:
        client.execute("SELECT pg_sleep(0.35), 'a secret'")
        pid = client.info.backend_pid
    for role, member in (("kept_watcher", " IN ROLE pg_monitor"), ("kept_stranger", "")):
        admin.execute(f"CREATE ROLE {role} LOGIN{member}".encode())
        grant_usage(admin, role)
    looks = ServerLooks("shop", "agent", lambda part: None, 10)
    dsn = psycopg.conninfo.make_conninfo(keeping.dsn(), user="kept_watcher")
    try:
        with ServerSession(dsn) as opened:
            looks.begin(opened)
            batches = [looks.activity(opened, 60) for _ in range(2)]
        (row,) = [
            row
            for batch in batches
            for table in batch.rows.get("recordings", [])
            for row in table.to_pylist()
        ]
        assert (row["pid"], row["cause"], row["application"]) == (pid, "request", "shop")
        assert row["database"] == "postgres"
        assert "secret" not in str(row)
        stranger = psycopg.conninfo.make_conninfo(keeping.dsn(), user="kept_stranger")
        with ServerSession(stranger) as opened:
            assert opened.offer.trace is None
            assert not any("sql_trace" in note for note in opened.offer.unseen)
    finally:
        for role in ("kept_watcher", "kept_stranger"):
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_one_slow_statement_among_many(keeping: Cluster, admin: Connection, tmp_path: Path) -> None:
    with traced(keeping) as client:
        for i in range(1500):
            client.execute("SELECT 'no ' || %s::int", (i,), prepare=True)
        # set only now: on a busy machine any statement before may be slow, too
        client.execute("SET sql_trace.keep_slower_than = 200")
        took_s = executed_s(client, "SELECT pg_sleep(0.25)")
        client.execute("SELECT 'what came after'")
        (found,) = kept(keeping)
        assert found["pid"] == client.info.backend_pid
    assert (found["cause"], found["application"], found["file"]) == ("request", "shop", None)
    # the session may be late to look at the clock when it has answered
    assert 250 <= milliseconds(found) <= 1000 * took_s + 500
    assert found["query_id"] is not None
    # the session has ended, and what it did before is still there
    trace = take(keeping, found["id"], tmp_path / "slow.pgtrace")
    assert not trace.damages
    assert any("kept because of request" in note for note in trace.notes())
    book = ledger(trace)
    assert call_texts(book)[-1] == "SELECT pg_sleep(0.25)"
    assert call_texts(book).count("SELECT 'no ' || $1::int") > 100
    slept = sum(line.total_ns for line in profile(book, "event").lines if "PgSleep" in line.name)
    assert 0.25 <= slept / 1e9 <= took_s + 0.01
    for command in ("profile", "statements", "report"):
        done = in_process("trace", command, tmp_path / "slow.pgtrace")
        assert done.returncode == 0, done.stderr
    mode = (tmp_path / "slow.pgtrace").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_a_kept_trace_is_shown(keeping: Cluster, admin: Connection) -> None:
    with traced(keeping, keep_slower_than=200) as client:
        client.execute("SELECT 'what came before'")
        took_s = executed_s(client, "SELECT 'x', pg_sleep(0.25)")
        (found,) = kept(keeping)
        where = ("trace", "kept", str(found["id"]), "--dsn", keeping.dsn())
        shown = in_process(*where).stdout
    assert f"a slow request ({found['detail']})" in shown
    assert "SELECT ?, pg_sleep(?)" in shown
    assert "Timeout/PgSleep" in shown
    assert "what came before" not in shown
    document = json.loads(in_process(*where, "--json").stdout)
    jsonschema.validate(document, documents()["pgtare.trace.incident/1"].schema)
    (first, *_) = document["session"]["time"]
    assert first["name"] == "Timeout/PgSleep"
    assert 0.25 <= first["total_ns"] / 1e9 <= took_s + 0.01
    assert document["others"] == []


def test_waits_while_a_statement_is_parsed(keeping: Cluster, admin: Connection) -> None:
    """The lock of a table is waited for before the server tells us of the request."""
    admin.execute("CREATE TABLE queue (n int)")
    try:
        with traced(keeping, keep_lock_wait=100) as client, session(keeping) as holder:
            client.execute("SELECT pg_sleep(0.2)")  # not a wait for a lock
            holder.execute("BEGIN; LOCK TABLE queue")
            waiter = threading.Thread(target=client.execute, args=("SELECT * FROM queue",))
            began = time.monotonic()
            waiter.start()
            until_it_waits(admin, client, "Lock")
            time.sleep(0.3)
            holder.execute("ROLLBACK")
            waiter.join()
            waited_s = time.monotonic() - began
            client.execute("SELECT 1")
            (found,) = kept(keeping)
        assert found["cause"] == "lock_wait"
        assert 150 <= milliseconds(found) <= 1000 * waited_s + 100
    finally:
        admin.execute("DROP TABLE queue")


@pytest.mark.slow
def test_waits_of_sessions_one_after_the_other(each_server: Binaries) -> None:
    """What a process waited for that had the same place in shared memory before does not count."""
    sessions = 12
    settings = SETTINGS | {"max_connections": 8}
    with (
        tracing(each_server, settings) as cluster,
        session(cluster) as admin,
        session(cluster) as holder,
    ):
        admin.execute("CREATE TABLE queue (n int)")
        for _ in range(sessions):
            holder.execute("BEGIN; LOCK TABLE queue")
            with traced(cluster, keep_lock_wait=50) as client:
                waiter = threading.Thread(target=client.execute, args=("SELECT * FROM queue",))
                waiter.start()
                until_it_waits(admin, client, "Lock")
                time.sleep(0.15)
                holder.execute("ROLLBACK")
                waiter.join()
                client.execute("SELECT 1")
        query = "SELECT count(*) FROM sql_trace_kept() WHERE cause = 'lock_wait'"
        assert one(admin, query) == sessions


def test_classes_of_errors(keeping: Cluster, admin: Connection) -> None:
    with traced(keeping, keep_sqlstates="22,57014") as client:
        provoke(client, "SELECT 1/0")  # 22012
        provoke(client, "SELECT * FROM nowhere")  # 42P01
        client.execute("BEGIN; SET LOCAL statement_timeout = '50ms'")
        provoke(client, "SELECT pg_sleep(5)")
        client.execute("ROLLBACK")
        client.execute("SELECT 'it goes on'")
    assert [one["detail"] for one in kept(keeping)] == ["22012", "57014"]


def test_slow_transactions(keeping: Cluster, admin: Connection) -> None:
    """After one whose end is not traced, one that fails at once does not last since then."""
    with traced(keeping, keep_transaction_slower_than=200) as client:
        client.execute("BEGIN")
        client.execute("SELECT 1")
        client.execute("SET sql_trace.statement_rate = 0")
        client.execute("COMMIT")
        client.execute("SET sql_trace.statement_rate = 1")
        time.sleep(0.25)
        provoke(client, "no statement")
        client.execute("SELECT 1")
        assert kept(keeping) == []
        client.execute("BEGIN")
        client.execute("SELECT 1")
        time.sleep(0.25)
        client.execute("COMMIT")
    (found,) = kept(keeping)
    assert found["cause"] == "transaction"
    assert milliseconds(found) >= 250


def milliseconds(found: dict[str, Any]) -> float:
    return float(found["detail"].partition(" ms")[0])


@pytest.mark.slow
def test_slower_than_usual(keeping: Cluster, admin: Connection) -> None:
    """What is usual is known after 32 requests; slow ones are usual when there are some."""
    sleep = "SELECT pg_sleep(%s)"
    with traced(keeping, keep_slower_than_usual=10) as client:
        for _ in range(31):
            client.execute(sleep, (0.002,))
        client.execute(sleep, (0.5,))  # the 32nd
        assert kept(keeping) == []
        for i in range(1, 200):  # statements that come once
            client.execute(f"SELECT {', '.join('1' * i)}".encode())
        client.execute("SELECT pg_sleep(0.5), 1")  # another statement
        for _ in range(5):
            client.execute(sleep, (0.5,))
        found = [one for one in kept(keeping) if milliseconds(one) >= 500]
        number = str(found[0]["id"])
        shown = in_process("trace", "kept", number, "--dsn", keeping.dsn()).stdout
    assert {one["cause"] for one in found} == {"slower_than_usual"}
    assert len(found) == 3
    assert len({one["query_id"] for one in found}) == 1
    usual = float(found[0]["detail"].partition("usually ")[2].removesuffix(" ms"))
    assert 2 <= usual < 50
    assert "slower than is usual for its statement" in shown


@pytest.mark.parametrize("prepare", [False, True])
def test_a_few_milliseconds_are_not_unusual(
    keeping: Cluster, admin: Connection, prepare: bool
) -> None:
    """Of statements of the extended protocol, prepared ones too."""
    with traced(keeping, keep_slower_than_usual=10) as client:
        for pause in [0.0] * 32 + [0.004] * 3:
            client.execute("SELECT pg_sleep(%s)", (pause,), prepare=prepare)
        assert all(milliseconds(found) >= 10 for found in kept(keeping))
        client.execute("SELECT pg_sleep(%s)", (0.3,), prepare=prepare)
        client.execute("SELECT 1")
        assert milliseconds(kept(keeping)[-1]) >= 300


def test_statements_in_turn_are_all_remembered(keeping: Cluster, admin: Connection) -> None:
    """What is usual for one does not push out what is usual for another."""
    shapes = [f"SELECT pg_sleep({{}}){', 1' * i}" for i in range(16)]
    with traced(keeping, keep_slower_than_usual=10) as client:
        for pause in [0.0] * 32 + [0.1]:
            if pause:  # what the machine held up is not to take the places of these
                client.execute("SELECT 1")
                forget_all(admin)
            for shape in shapes:
                client.execute(shape.format(pause).encode())
        client.execute("SELECT 1")
        found = [one for one in kept(keeping) if milliseconds(one) >= 100]
    assert {one["cause"] for one in found} == {"slower_than_usual"}
    assert len({one["query_id"] for one in found}) == len(shapes)


@pytest.mark.slow
def test_who_was_in_the_same_wait(keeping: Cluster, admin: Connection, tmp_path: Path) -> None:
    """Who commits holds the lock of the WAL for 0.1 s, and all others wait for that."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(traced(keeping, keep_slower_than=50)) for _ in range(4)]
        for client in clients:
            client.execute("SET commit_delay = 100000; SET commit_siblings = 0")

        def commit(client: Connection) -> None:
            for _ in range(8):
                client.execute("SELECT pg_logical_emit_message(true, 'pgtare', 'x')")

        threads = [threading.Thread(target=commit, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pids = {client.info.backend_pid for client in clients}
    seen = None
    for found in kept(keeping):
        where = ("trace", "kept", str(found["id"]), "--dsn", keeping.dsn())
        document = json.loads(in_process(*where, "--json").stdout)
        jsonschema.validate(document, documents()["pgtare.trace.incident/1"].schema)
        waited = document["session"]["same_wait"]
        if waited is None or waited["event"] != "LWLock/WALWrite" or waited["sessions"] == 0:
            continue
        seen = found["id"]
        # the WAL writer may be in it too
        others = set(waited["pids"])
        assert found["pid"] not in others
        assert others & pids
        assert len(others) == waited["sessions"] <= 4
        assert waited["waited_ns"] >= 10e6
        shown = in_process(*where).stdout
        break
    assert seen is not None
    assert "in the same wait, LWLock/WALWrite" in shown
    assert "who held the lock is not known" in shown
    trace = take(keeping, seen, tmp_path / "same.pgtrace")
    assert any("in the same wait, LWLock/WALWrite" in note for note in trace.notes())


def test_storm_keeps_few(keeping: Cluster, admin: Connection) -> None:
    """The first of a storm; then one of a cause and role in an interval."""
    before = rows(admin, "SELECT kept, skipped FROM sql_trace_kept_info()")[0]
    keeping.configure({"sql_trace.keep_most": 3})
    keeping.reload()
    try:
        with traced(keeping, keep_sqlstates="22012") as client:
            eventually(lambda: one(client, "SHOW sql_trace.keep_most") == "3")
            for _ in range(20):
                provoke(client, "SELECT 1/0")
        found = kept(keeping)
        assert len(found) == 2  # half of three, at most
        after = rows(admin, "SELECT kept, skipped FROM sql_trace_kept_info()")[0]
        assert (after[0] - before[0], after[1] - before[1]) == (2, 18)
        assert "18 triggers fired in vain" in in_process(
            "trace", "kept", "--dsn", keeping.dsn()
        ).stdout.replace(f"{after[1]} triggers", "18 triggers")
        forget_all(admin)
        keeping.configure({"sql_trace.keep_most": 32, "sql_trace.keep_interval": 60})
        keeping.reload()
        with traced(keeping, keep_sqlstates="22012") as client:
            eventually(lambda: one(client, "SHOW sql_trace.keep_interval") == "1min")
            for _ in range(3):
                provoke(client, "SELECT 1/0")
        assert [one["cause"] for one in kept(keeping)] == ["sqlstate"]
    finally:
        keeping.configure(SETTINGS)
        keeping.reload()


@pytest.mark.slow
def test_clock_that_is_set_back(wheel: Binaries) -> None:
    """What fired in the future, as it seems, is not a moment ago."""
    settings = {"sql_trace.keep_interval": 60}
    with (
        preloaded(wheel, "step_clock.c", "PGTARE_CLOCK_STEP", 8) as (binaries, step),
        tracing(wheel, settings, run=binaries) as cluster,
        traced(cluster, keep_sqlstates="22012") as client,
    ):
        for microseconds in (0, -7_200_000_000):
            step[:] = struct.pack("q", microseconds)
            provoke(client, "SELECT 1/0")
            provoke(client, "SELECT 1/0")
        assert rows(client, "SELECT kept, skipped FROM sql_trace_kept_info()") == [(2, 2)]


def test_one_role_does_not_use_up_what_others_may_keep(keeping: Cluster, admin: Connection) -> None:
    """Whatever else it thinks of: it has half, and a role of which nothing was kept has one."""
    admin.execute("CREATE ROLE quiet LOGIN SUPERUSER; CREATE ROLE late LOGIN SUPERUSER")
    keeping.configure({"sql_trace.keep_most": 4, "sql_trace.keep_interval": "1h"})
    keeping.reload()
    options = "-c sql_trace.level=1 -c sql_trace.ring_size=256kB -c sql_trace.keep_sqlstates=22"
    try:
        with contextlib.ExitStack() as stack:
            stormy, quiet, late = (
                stack.enter_context(session(keeping, user=user, options=options))
                for user in ("postgres", "quiet", "late")
            )
            for each in (stormy, quiet, late):  # each reads the configuration by itself
                eventually(lambda each=each: one(each, "SHOW sql_trace.keep_most") == "4")
            for i in range(8):  # each of them is a cause of its own
                provoke(stormy, f"SELECT 1/0{', 1' * i}")
            for _ in range(2):  # the second is a repeat
                provoke(quiet, "SELECT 1/0")
            provoke(quiet, "SELECT 99999 * 99999")
            quiet.execute("SELECT 1")  # a trace is kept only after the answer has left
            for i in range(2):
                provoke(late, f"SELECT 1/0, {i}, 'x'::text")
        users = [found["user"] for found in kept(keeping)]
        info = rows(admin, "SELECT * FROM sql_trace_kept_info()")  # says what was refused, and why
        assert users == ["postgres", "postgres", "quiet", "quiet", "late"], info
    finally:
        keeping.configure(SETTINGS)
        keeping.reload()
        admin.execute("DROP ROLE quiet; DROP ROLE late")


@pytest.mark.slow
def test_what_fired_first_may_be_kept_last(keeping: Cluster, admin: Connection) -> None:
    """Without an interval both are: a cause counts from when it fired, not from the answer."""
    with (
        traced(keeping, keep_transaction_slower_than=50) as first,
        traced(keeping, keep_transaction_slower_than=50) as second,
    ):
        slow = "BEGIN; SELECT pg_sleep(0.1); COMMIT;"
        waiter = threading.Thread(target=first.execute, args=(f"{slow} SELECT pg_sleep(2)",))
        waiter.start()
        time.sleep(0.5)
        second.execute(slow.encode())
        second.execute("SELECT 1")  # a trace is kept when the answer has left
        assert [found["pid"] for found in kept(keeping)] == [second.info.backend_pid]
        waiter.join()
        first.execute("SELECT 1")
        assert {found["pid"] for found in kept(keeping)} == {
            first.info.backend_pid,
            second.info.backend_pid,
        }


def test_session_that_is_terminated(keeping: Cluster, admin: Connection, tmp_path: Path) -> None:
    """What it held stays when all that is left of sessions that ended is given up."""
    with traced(keeping, keep_sqlstates="57P01") as client:
        client.execute("SELECT 'the last but one'")
        pid = client.info.backend_pid

        def end() -> None:
            until_it_waits(admin, client, "Timeout")
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))

        with during(end), pytest.raises(psycopg.errors.AdminShutdown):
            client.execute("SELECT pg_sleep(60)")
    (found,) = eventually(lambda: kept(keeping))
    assert (found["pid"], found["detail"]) == (pid, "57P01")
    held = "SELECT count(*) FROM sql_trace_sessions() WHERE ended IS NOT NULL AND pid = %s"
    admin.execute("SELECT sql_trace_reset()")
    assert one(admin, held, pid) == 1
    trace = take(keeping, found["id"], tmp_path / "ended.pgtrace")
    assert "SELECT 'the last but one'" in call_texts(ledger(trace))
    assert {ring.kind for ring in trace.rings.values()} == {"sql", "waits"}
    assert one(admin, "SELECT sql_trace_kept_forget(%s)", found["id"])
    assert not one(admin, "SELECT sql_trace_kept_forget(%s)", found["id"])
    admin.execute("SELECT sql_trace_reset()")
    assert one(admin, held, pid) == 0


def test_who_sees_what_is_kept(keeping: Cluster, admin: Connection, tmp_path: Path) -> None:
    with traced(keeping, keep_slower_than=0) as client:
        client.execute("SELECT 1")
    number = kept(keeping)[0]["id"]
    path = tmp_path / "not.pgtrace"
    for role in ("passer_by", "looker_on"):
        admin.execute(f"CREATE ROLE {role} LOGIN".encode())
    admin.execute("GRANT pg_read_all_stats TO looker_on")
    grant_usage(admin, "passer_by", "looker_on")
    try:
        theirs = keeping.dsn(user="passer_by")
        listed = in_process("trace", "kept", "--dsn", theirs)
        taken = in_process("trace", "kept", str(number), "--dsn", theirs, "--out", path)
        for done in (listed, taken):
            assert "GRANT pg_read_all_stats TO passer_by" in failed(done, 2)
        assert not path.exists()
        with session(keeping, user="looker_on") as watcher:
            assert number in [
                found for (found,) in rows(watcher, "SELECT id FROM sql_trace_kept()")
            ]
            assert len(one(watcher, "SELECT sql_trace_kept_file(%s)", number)) > 1000
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                watcher.execute("SELECT sql_trace_kept_forget(%s)", (number,))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                watcher.execute("SET sql_trace.keep_slower_than = 0")
    finally:
        for role in ("passer_by", "looker_on"):
            admin.execute(f"DROP OWNED BY {role}".encode())
            admin.execute(f"DROP ROLE {role}".encode())


def test_secrets_stay_hidden(keeping: Cluster, admin: Connection, tmp_path: Path) -> None:
    with traced(keeping, keep_sqlstates="42704") as client:
        provoke(client, "ALTER ROLE nobody_there PASSWORD 'hush-hush'")
        (found,) = kept(keeping)
    assert found["query_id"] is None
    take(keeping, found["id"], tmp_path / "secret.pgtrace")
    assert b"hush-hush" not in (tmp_path / "secret.pgtrace").read_bytes()
    assert "hush-hush" not in json.dumps(found)


def test_bad_lists_and_requests_are_refused(
    keeping: Cluster, admin: Connection, tmp_path: Path
) -> None:
    for bad in ("4", "40P0", "40-01", "40P01, , 53"):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            admin.execute("SELECT set_config('sql_trace.keep_sqlstates', %s, false)", (bad,))
    where = ("--dsn", keeping.dsn())
    assert "there is no kept trace 999" in failed(in_process("trace", "kept", "999", *where), 1)
    assert "leave out --out" in failed(
        in_process("trace", "kept", "3", "--directory", tmp_path, "--out", tmp_path / "x.pgtrace"),
        2,
    )
    path = tmp_path / "one.pgtrace"
    none = in_process("trace", "kept", "999", *where, "--out", path)
    assert "there is no kept trace 999" in failed(none, 1)
    assert not list(tmp_path.iterdir())
    assert "--directory" in failed(in_process("trace", "kept"), 2)


def test_kept_traces_are_written(filing: tuple[Cluster, Path], tmp_path: Path) -> None:
    cluster, directory = filing
    with traced(cluster, keep_slower_than=500) as client:
        client.execute("SELECT pg_sleep(0.6)")
    path = eventually(lambda: next(directory.glob("kept-*.pgtrace"), None))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    eventually(lambda: kept(cluster)[-1]["file"] == path.name)
    (found,) = kept(cluster)
    assert found["bytes"] == 0  # its memory has been given back
    (listed,) = kept(cluster, "--directory", str(directory))
    for name in ("id", "pid", "cause", "detail", "query_id", "user", "database", "application"):
        assert listed[name] == found[name]
    assert listed["bytes"] == path.stat().st_size
    trace = load(path)
    assert not trace.damages
    assert call_texts(ledger(trace))[-1] == "SELECT pg_sleep(0.6)"
    take(cluster, found["id"], tmp_path / "one.pgtrace")
    assert (tmp_path / "one.pgtrace").read_bytes() == path.read_bytes()


def test_blockers_are_kept_with_who_waits(filing: tuple[Cluster, Path]) -> None:
    """Found during the wait; those that only queue for another lock are not."""
    cluster, directory = filing
    with (
        traced(cluster) as blocker,
        traced(cluster) as bystander,
        traced(cluster, keep_lock_wait=100) as victim,
    ):
        bystander.execute("SELECT pg_advisory_lock(8)")
        blocker.execute("BEGIN")
        blocker.execute("SELECT pg_advisory_xact_lock(7)")
        waiter = threading.Thread(target=victim.execute, args=("SELECT pg_advisory_lock(7)",))
        waiter.start()
        eventually(lambda: [k for k in kept(cluster) if k["cause"] == "blocker"])
        blocker.execute("COMMIT")
        waiter.join()
        eventually(lambda: kept(cluster)[-1]["cause"] == "lock_wait")
        eventually(lambda: kept(cluster)[-2]["file"])
        held, waited = kept(cluster)[-2:]
        assert (held["pid"], waited["pid"]) == (
            blocker.info.backend_pid,
            victim.info.backend_pid,
        )
        assert held["detail"] == f"of process {waited['pid']}"
        assert held["incident"] == waited["incident"] is not None
        trace = load(directory / held["file"])
        assert not trace.damages
        assert call_texts(ledger(trace))[-1] == "SELECT pg_advisory_xact_lock(7)"
        assert {ring.kind for ring in trace.rings.values()} == {"sql", "waits"}
        victim.execute("SELECT pg_advisory_unlock(7)")
        victim.execute("SET sql_trace.keep_sqlstates = '22012'")
        provoke(victim, "SELECT 1/0")  # it waits for nobody
        assert eventually(lambda: kept(cluster)[-1]["cause"] == "sqlstate")
        assert kept(cluster)[-1]["incident"] is None


@pytest.mark.slow
def test_a_blocker_in_the_middle_of_a_statement_is_not_called_idle(
    filing: tuple[Cluster, Path],
) -> None:
    cluster, directory = filing
    before = {found["id"] for found in kept(cluster)}
    with traced(cluster) as blocker, traced(cluster, keep_lock_wait=100) as victim:
        blocker.execute("BEGIN")
        blocker.execute("SELECT pg_advisory_xact_lock(7)")
        time.sleep(0.1)
        works = threading.Thread(target=blocker.execute, args=("SELECT pg_sleep(3)",))
        works.start()
        with session(cluster) as onlooker:
            until_it_waits(onlooker, blocker, "Timeout")
        waiter = threading.Thread(target=victim.execute, args=("SELECT pg_advisory_lock(7)",))
        waiter.start()
        eventually(lambda: [k for k in kept(cluster) if k["id"] not in before])
        works.join()
        blocker.execute("COMMIT")
        waiter.join()
    (held,) = [k for k in kept(cluster) if k["id"] not in before and k["cause"] == "blocker"]
    found = moment(ledger(load(directory / held["file"])))
    assert found is not None
    assert (found.goes_on, found.idle_ns) == (True, 0)
    assert found.statement == "SELECT pg_sleep(?)"


@pytest.mark.slow
def test_an_incident_ends_with_its_session(filing: tuple[Cluster, Path]) -> None:
    """Who comes next into its place was not in it."""
    cluster, directory = filing
    before = {found["id"] for found in kept(cluster)}
    own = "SELECT incident FROM sql_trace_kept() WHERE pid = pg_backend_pid()"
    with session(cluster) as admin, traced(cluster) as blocker:
        blocker.execute("SELECT pg_advisory_lock(7)")
        with traced(cluster, keep_lock_wait=100) as victim:
            pid = victim.info.backend_pid
            waiter = threading.Thread(target=provoke, args=(victim, "SELECT pg_advisory_lock(7)"))
            waiter.start()
            found = "SELECT id FROM sql_trace_kept() WHERE cause = 'blocker'"
            eventually(lambda: {number for (number,) in rows(admin, found)} - before)
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
            waiter.join()
        for _ in range(int(one(admin, "SHOW max_connections"))):
            with traced(cluster, keep_sqlstates="22012") as client:
                provoke(client, "SELECT 1/0")
                assert rows(client, own) == [(None,)]
            forget_all(admin)
            for path in directory.glob("kept-*"):  # else sql_trace.keep_files is soon reached
                path.unlink()


def test_all_that_wait_for_one_session_are_one_incident(filing: tuple[Cluster, Path]) -> None:
    """Also who queues behind another that waits; the holder's trace is kept once."""
    cluster, _ = filing
    before = {found["id"] for found in kept(cluster)}
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(traced(cluster))
        holder.execute("CREATE TABLE queue AS SELECT 1 AS n")
        stack.callback(holder.execute, "DROP TABLE queue")
        clients = [stack.enter_context(traced(cluster, keep_lock_wait=100)) for _ in range(3)]
        holder.execute("BEGIN; UPDATE queue SET n = 2")
        threads = [
            threading.Thread(target=client.execute, args=("UPDATE queue SET n = 3",))
            for client in clients
        ]
        for thread in threads:
            thread.start()

        def found() -> list[dict[str, Any]]:
            return [k for k in kept(cluster) if k["id"] not in before]

        eventually(lambda: any(k["cause"] == "blocker" for k in found()))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with session(cluster) as looker:
            eventually(lambda: one(looker, waiting) == 3)
        time.sleep(3)  # the keeper's next look, which may be late
        holder.execute("COMMIT")
        for thread in threads:
            thread.join()
        eventually(lambda: sum(k["cause"] == "lock_wait" for k in found()) == 3)
        incident = found()
        (blocker,) = [k for k in incident if k["cause"] == "blocker"]
        assert blocker["pid"] == holder.info.backend_pid
        assert {k["incident"] for k in incident} == {blocker["incident"]}


def test_who_else_was_in_a_deadlock_is_kept(filing: tuple[Cluster, Path], tmp_path: Path) -> None:
    cluster, directory = filing
    with (
        traced(cluster, keep_sqlstates="40P01") as first,
        traced(cluster, keep_sqlstates="40P01") as second,
    ):
        for client, number in ((first, 1), (second, 2)):
            client.execute("BEGIN")
            client.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
        failed_in: list[Connection] = []

        def cross(client: Connection, number: int) -> None:
            try:
                client.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
            except psycopg.errors.DeadlockDetected:
                failed_in.append(client)
            client.execute("ROLLBACK")

        thread = threading.Thread(target=cross, args=(second, 1))
        thread.start()
        cross(first, 2)
        thread.join()
        (victim,) = failed_in
        other = second if victim is first else first
        causes = {"sqlstate", "deadlock"}
        eventually(lambda: {k["cause"] for k in kept(cluster)[-2:]} == causes)
        by_cause = {k["cause"]: k for k in kept(cluster)[-2:]}
        assert by_cause["sqlstate"]["pid"] == victim.info.backend_pid
        assert by_cause["sqlstate"]["detail"] == "40P01"
        assert by_cause["deadlock"]["pid"] == other.info.backend_pid
        assert by_cause["deadlock"]["detail"] == f"of process {victim.info.backend_pid}"
        assert by_cause["deadlock"]["incident"] == by_cause["sqlstate"]["incident"] is not None
        eventually(lambda: all(k["file"] for k in kept(cluster)))
        number = str(by_cause["sqlstate"]["id"])
        for where in (("--dsn", cluster.dsn()), ("--directory", str(directory))):
            shown = in_process("trace", "kept", number, *where)
            assert shown.returncode == 0, shown.stderr
            assert f"in a deadlock with: session {other.info.backend_pid}" in shown.stdout
            assert "Lock/advisory" in shown.stdout
        # on one time line
        page = tmp_path / "incident.html"
        done = in_process(
            "trace", "report", directory / by_cause["sqlstate"]["file"], "--html", page
        )
        assert done.returncode == 0, done.stderr
        opened = page.read_text().partition('id="h-moment"')[2].partition("</section>")[0]
        assert f"sqlstate, 40P01: session {victim.info.backend_pid}" in opened
        assert f"deadlock, of process {victim.info.backend_pid}: session" in opened
        assert "Lock/advisory" in opened  # of the victim; the wait of the other goes on
        victim.execute("SET sql_trace.keep_sqlstates = '22012'")
        provoke(victim, "SELECT 1/0")  # the incident was the deadlock's
        assert eventually(lambda: kept(cluster)[-1]["detail"] == "22012")
        assert kept(cluster)[-1]["incident"] is None


@pytest.mark.slow
def test_a_deadlock_that_is_made_up_names_nobody(filing: tuple[Cluster, Path]) -> None:
    """Whoever raises an error chooses its SQLSTATE and its detail."""
    cluster, _ = filing
    with traced(cluster) as bystander, traced(cluster, keep_sqlstates="40P01") as client:
        bystander.execute("SELECT 1")
        pid = bystander.info.backend_pid
        client.execute("SELECT 1")
        with pytest.raises(psycopg.errors.DeadlockDetected):
            client.execute(
                "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01', DETAIL = "
                f"'Process {pid} waits for ShareLock on x; blocked by process 1.' "
                "|| chr(10) || 'Process 1 waits.'; END $$"
            )
        eventually(lambda: kept(cluster)[-1]["cause"] == "sqlstate" and kept(cluster)[-1]["file"])
        time.sleep(1.5)  # the keeper looks once a second
        assert pid not in [found["pid"] for found in kept(cluster)]


@pytest.mark.slow
def test_directory_that_is_full(filing: tuple[Cluster, Path]) -> None:
    """The oldest of the commonest cause of the role that has most makes way."""
    cluster, directory = filing
    for path in directory.glob("kept-*"):
        path.unlink()
    cluster.configure({"sql_trace.keep_files": 4})
    cluster.reload()

    def files() -> dict[int, str]:
        """Those that are there, by what fired and in what order."""
        there = {path.name for path in directory.glob("kept-*")}
        return {found["id"]: found["detail"] for found in kept(cluster) if found["file"] in there}

    with session(cluster) as admin:
        forget_all(admin)
        admin.execute("CREATE ROLE rare LOGIN SUPERUSER")
        eventually(lambda: one(admin, "SHOW sql_trace.keep_files") == "4")
    options = "-c sql_trace.level=1 -c sql_trace.ring_size=256kB -c sql_trace.keep_sqlstates=22"
    try:
        with (
            session(cluster, user="rare", options=options) as rare,
            session(cluster, options=options) as client,
        ):
            fired = [(rare, "1/0"), (client, "99999 * 99999")] + [(client, "1/0")] * 5
            for n, (who, what) in enumerate(fired, 1):
                provoke(who, f"SELECT {what}")
                eventually(lambda n=n: len(kept(cluster)) == n and kept(cluster)[-1]["file"])
        assert list(files().values()) == ["22012", "22003", "22012", "22012"]
        assert len({found["user"] for found in kept(cluster) if found["id"] in files()}) == 2
        assert list(files())[-1] - list(files())[-2] == 1
    finally:
        cluster.configure({"sql_trace.keep_files": 100})
        cluster.reload()
        with session(cluster) as admin:
            admin.execute("DROP ROLE rare")


def keeper(cluster: Cluster) -> int:
    """The process that writes; 0: there is none."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            parent = path.with_name("stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == cluster.postmaster_pid and b"sql_trace keeper" in path.read_bytes():
                return int(path.parent.name)
    return 0


def test_keeper_that_is_killed_leaves_no_torn_file(filing: tuple[Cluster, Path]) -> None:
    """By kill -9 while it writes: a part has another name, and goes when the server is back."""
    cluster, directory = filing
    worker = eventually(lambda: keeper(cluster))
    options = "-c sql_trace.level=1 -c sql_trace.ring_size=4MB -c sql_trace.keep_slower_than=0"
    seen: list[Path] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set() and not seen:
            if found := [n for n in os.listdir(directory) if n.endswith(".partial")]:
                os.kill(worker, signal.SIGKILL)
                seen.append(directory / found[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with contextlib.suppress(psycopg.Error), session(cluster, options=options) as client:
            client.execute(
                "DO $$BEGIN FOR i IN 1..30000 LOOP EXECUTE 'SELECT ' || i || repeat(' ', 100); "
                "END LOOP; END$$"
            )
            for _ in range(20):  # each is kept, and one is met while it is written
                with contextlib.suppress(TimeoutError):
                    eventually(lambda: seen, 0.5)
                    break
                client.execute("SELECT 1")
    finally:
        stop.set()
        watcher.join()
    assert seen
    eventually(lambda: answers(cluster))
    eventually(lambda: not seen[0].exists())
    for path in directory.glob("kept-*.pgtrace"):
        trace = load(path)
        assert not trace.damages
        assert trace.end is not None
    assert eventually(lambda: keeper(cluster)) != worker


def answers(cluster: Cluster) -> bool:
    try:
        with session(cluster):
            return True
    except psycopg.Error:
        return False
