"""Traces that are kept since somebody asks for them: who may, how many, and what stays as it is."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.moment import moment
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests import trace_keeper
from tests.commands import in_process
from tests.servers import tracing
from tests.sessions import Connection, eventually, one, rows, session, until_it_waits
from tests.trace_keeper import KEEPING, configure, forget_all, server_that_keeps
from tests.trace_records import grant_usage

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

ASK = "SELECT pid, id, file, incident, missing FROM sql_trace_keep_for_finding(%s::int[], %s)"
GRANT = "GRANT EXECUTE ON FUNCTION sql_trace_keep_for_finding(integer[], text) TO asker"


@pytest.fixture(scope="module")
def filing(each_server: Binaries) -> Iterator[tuple[Cluster, Path]]:
    """A server that writes what it keeps, and where."""
    made = "CREATE TABLE hot AS SELECT 1 AS n; CREATE ROLE asker LOGIN"
    with server_that_keeps(each_server, made) as found:
        with session(found[0]) as admin:
            grant_usage(admin, "asker")
        yield found


@pytest.fixture
def admin(filing: tuple[Cluster, Path]) -> Iterator[Connection]:
    with session(filing[0]) as connection:
        forget_all(connection)
        yield connection


@contextlib.contextmanager
def traced(cluster: Cluster, **settings: object) -> Iterator[Connection]:
    """A session that has been traced already, with its waits."""
    with trace_keeper.traced(cluster, level=8, **settings) as client:
        client.execute("SELECT 1")
        yield client


def pid_of(client: Connection) -> int:
    return client.info.backend_pid


def ask(client: Connection, pids: Sequence[int | None], label: str = "lock:1") -> list[Any]:
    return rows(client, ASK, list(pids), label)


def files(directory: Path, words: str = "*") -> set[str]:
    return {path.name for path in directory.glob(f"kept-{words}.pgtrace")}


def written(admin: Connection, found: Sequence[Any]) -> bool:
    """Whether all that was asked for is in files."""
    ids = [row[1] for row in found]
    query = "SELECT count(file) FROM sql_trace_kept() WHERE id = ANY(%s)"
    return bool(one(admin, query, ids) == len(ids))


def test_who_was_granted_it_has_traces_kept_and_disturbs_nobody(
    filing: tuple[Cluster, Path], admin: Connection
) -> None:
    cluster, directory = filing
    with (
        traced(cluster) as holder,
        traced(cluster) as waiter,
        session(cluster) as untraced,
        session(cluster, user="asker") as asker,
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(asker, [pid_of(holder)])
        admin.execute(GRANT)
        holder.execute("BEGIN; UPDATE hot SET n = n")
        waits = threading.Thread(target=waiter.execute, args=(b"UPDATE hot SET n = n + 1",))
        waits.start()
        until_it_waits(admin, waiter, "Lock")
        # the record of a request follows its answer, and then the next is read
        reads = "SELECT wait_event = 'ClientRead' FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: one(admin, reads, pid_of(holder)))
        pids = [pid_of(holder), pid_of(waiter), pid_of(untraced), pid_of(holder), 1 << 30]
        before = rows(admin, "SELECT pid, records FROM pg_stat_sql_trace ORDER BY pid")
        began = time.monotonic()
        # as the agent asks
        asker.execute("BEGIN READ ONLY")
        held, waited, other, stranger = ask(asker, pids, "lock:4711@1764315426")
        asker.execute("COMMIT")
        assert time.monotonic() - began < 30  # for a lock it would wait for ever
        assert (held[0], waited[0]) == (pid_of(holder), pid_of(waiter))
        assert held[3] == waited[3] is not None
        assert held[4] is waited[4] is None
        for row in (other, stranger):
            assert row[1:] == (None, None, None, "the session is not traced")
        assert eventually(lambda: written(admin, [held, waited]))
        assert {held[2], waited[2]} <= files(directory, "*-findings")
        listed = "SELECT pid, cause, detail, file FROM sql_trace_kept() ORDER BY id"
        assert rows(admin, listed) == [
            (row[0], "finding", "lock:4711@1764315426", row[2]) for row in (held, waited)
        ]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(asker, "SELECT sql_trace_kept_file(%s)", held[1])
        shown = in_process("trace", "kept", str(held[1]), "--dsn", cluster.dsn()).stdout
        assert "it is in a finding (lock:4711@1764315426)" in shown
        assert f"in the same finding: session {pid_of(waiter)}" in shown
        for row, running, statement in (
            (held, False, "UPDATE hot SET n = n"),
            (waited, True, "UPDATE hot SET n = n + ?"),
        ):
            trace = load(directory / row[2])
            assert not trace.damages
            found = moment(ledger(trace))
            assert found is not None
            assert (found.goes_on, found.statement) == (running, statement)
        # their rings are as they were, and go on
        after = rows(admin, "SELECT pid, records FROM pg_stat_sql_trace ORDER BY pid")
        assert after == before
        holder.execute("COMMIT")
        waits.join()
        assert one(holder, "SELECT n FROM hot") == 2


@pytest.mark.parametrize(
    "label",
    ["", "a/b", "..", "a.b", "a\\b", 'a"b', "a b", "a\nb", "ä", "x" * 64, "db_password"],
)
def test_labels_that_are_refused(
    filing: tuple[Cluster, Path], admin: Connection, label: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as raised:
        ask(admin, [1], label)
    assert "label of a kept trace" in str(raised.value)
    assert "password" not in str(raised.value)


def test_sessions_that_are_refused(filing: tuple[Cluster, Path], admin: Connection) -> None:
    for pids in ([1, None], list(range(9))):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            ask(admin, pids)
    assert ask(admin, []) == []
    assert rows(admin, ASK, None, "lock:1") == []


def test_findings_have_a_number_of_their_own(
    filing: tuple[Cluster, Path], admin: Connection
) -> None:
    """What they use up is not what triggers may keep; what is given up makes room."""
    cluster, _ = filing
    configure(cluster, keep_findings=3, keep_most=2)
    try:
        with traced(cluster) as client, traced(cluster, keep_slower_than=200) as slow:
            assert eventually(lambda: one(admin, "SHOW sql_trace.keep_findings") == "3")
            found = [ask(admin, [pid_of(client)])[0] for _ in range(4)]
            assert [row[4] for row in found] == [
                *(None, None, None),
                "sql_trace.keep_findings allows no more in this hour",
            ]
            assert eventually(lambda: written(admin, found[:3]))
            slow.execute("SELECT pg_sleep(0.25)")
            slow.execute("SELECT 1")
            causes = "SELECT cause FROM sql_trace_kept() ORDER BY id"
            assert [cause for (cause,) in rows(admin, causes)] == [*3 * ["finding"], "request"]
            admin.execute("SELECT sql_trace_kept_forget(%s)", (found[0][1],))
            (again,) = ask(admin, [pid_of(client)])
            assert again[4] is None
            configure(cluster, keep_findings=0)
            assert eventually(lambda: ask(admin, [pid_of(client)])[0][4] is not None)
    finally:
        configure(cluster, keep_findings=15, keep_most=32)


def test_findings_push_no_other_files_out(filing: tuple[Cluster, Path], admin: Connection) -> None:
    """A quarter of the room is theirs, in addition, and nobody else's."""
    cluster, directory = filing
    for path in directory.glob("kept-*"):
        path.unlink()
    configure(cluster, keep_files=4)
    try:
        with traced(cluster) as client, traced(cluster, keep_slower_than=200) as slow:
            for n in range(6):
                slow.execute(f"SELECT pg_sleep(0.25), {n * 'x, '}1 FROM (SELECT 1 AS x) t".encode())
            assert eventually(lambda: len(rows(admin, "SELECT 1 FROM sql_trace_kept()")) == 6)
            in_files = "SELECT count(file) FROM sql_trace_kept()"
            assert eventually(lambda: one(admin, in_files) == 6)
            # an earlier test's finding may have been written since
            others = {name for name in files(directory) if "-findings" not in name}
            assert len(others) == 4
            found = []
            for _ in range(3):
                found += ask(admin, [pid_of(client)])
                assert eventually(functools.partial(written, admin, found))
            assert files(directory) == others | {found[-1][2]}
            slow.execute("SELECT pg_sleep(0.25), 'one more'")
            assert eventually(lambda: one(admin, in_files) == 10)
            left = files(directory)
            assert found[-1][2] in left
            assert len(left) == 5
    finally:
        configure(cluster, keep_files=100)


def test_a_session_that_has_gone_is_not_another(
    filing: tuple[Cluster, Path], admin: Connection
) -> None:
    with traced(filing[0]) as client:
        pid = pid_of(client)
    assert eventually(lambda: not rows(admin, "SELECT FROM pg_stat_activity WHERE pid = %s", pid))
    assert ask(admin, [pid])[0][4] == "the session is not traced"


def test_a_directory_that_is_moved_or_deleted_is_made_anew(
    filing: tuple[Cluster, Path], admin: Connection
) -> None:
    cluster, directory = filing
    moved = directory.with_name("moved")
    with traced(cluster) as client:
        for change in (lambda: directory.rename(moved), lambda: shutil.rmtree(directory)):
            change()
            found = ask(admin, [pid_of(client)])
            assert eventually(functools.partial(written, admin, found))
            assert files(directory) == {found[0][2]}
            assert one(admin, "SELECT length(sql_trace_kept_file(%s))", found[0][1]) > 0


def test_no_file_is_promised_that_cannot_be_written(
    filing: tuple[Cluster, Path], admin: Connection
) -> None:
    cluster, directory = filing
    with traced(cluster) as client:
        asked = functools.partial(ask, admin, [pid_of(client)])
        before = len(cluster.log_path.read_text())
        directory.chmod(0o777)
        try:
            cluster.reload()
            eventually(lambda: "writes no traces to" in cluster.log_path.read_text()[before:])
            cannot = "nothing can be written to sql_trace.keep_directory now"
            assert eventually(lambda: asked()[0][4] == cannot)
            unwritten = "SELECT FROM sql_trace_kept() WHERE file IS NULL"
            assert eventually(lambda: not rows(admin, unwritten))
        finally:
            directory.chmod(0o700)
            cluster.reload()
        found = eventually(lambda: [row for row in asked() if row[4] is None])
        assert eventually(functools.partial(written, admin, found))


def test_without_a_directory(wheel: Binaries) -> None:
    with tracing(wheel, KEEPING) as cluster, session(cluster) as admin, traced(cluster) as client:
        ((_, number, file, _, missing),) = ask(admin, [pid_of(client)])
        assert (number, file, missing) == (None, None, "sql_trace.keep_directory is not set")
