"""The doctor on real servers: evictions named first, and nothing found on a healthy server."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pgtare.kit import machine
from pgtare.observing.doctor import queries
from pgtare.observing.doctor.collect import read_facts
from pgtare.observing.doctor.examine import examine, watch
from pgtare.observing.doctor.model import Report
from pgtare.observing.doctor.session import connected
from pgtare.postgres import pooler
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench, initialise
from pgtare.postgres.load.spec import Builtin
from tests.commands import in_process, pgtare
from tests.doctor_servers import REPORTED_S, SCHEMA, doctor, evicting, storm
from tests.servers import SLOWLY_ON_15
from tests.sessions import eventually, one

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=SLOWLY_ON_15)
def stormy(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The server that evicts, under its load."""
    with evicting(request.getfixturevalue(request.param)) as cluster, storm(cluster):
        yield cluster


@pytest.fixture(scope="module", params=SLOWLY_ON_15)
def healthy(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server as it comes with pg_stat_statements, and pgbench's tables in it."""
    binaries: Binaries = request.getfixturevalue(request.param)
    with Cluster(
        binaries, {"max_prepared_transactions": 2}, preload=["pg_stat_statements"]
    ) as cluster:
        with cluster.connect() as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements")
        initialise(binaries, cluster.dsn(), 1, "load")
        yield cluster


def test_evictions_are_named_first_with_the_remedy(stormy: Cluster) -> None:
    with stormy.connect() as conn:
        query = f'SELECT dealloc, clock_timestamp() FROM "{SCHEMA}".pg_stat_statements_info'

        def looked() -> tuple[dict[str, Any], float] | None:
            """A report, and evictions a second as counted here around it, if they are alike.

            On a busy machine the load may stand still for a while, then or at other times.
            """
            ((before, began),) = conn.execute(query.encode()).fetchall()
            report = doctor(stormy.dsn())
            ((after, ended),) = conn.execute(query.encode()).fetchall()
            ours = (after - before) / (ended - began).total_seconds()
            theirs = report["statements"]["deallocations_per_s"] or 0.0
            return (report, ours) if ours / 3 < theirs < 3 * ours else None

        report, ours = eventually(looked)
    first = report["findings"][0]
    assert first["kind"] == "evictions"
    assert first["level"] == report["level"] != "ok"
    # critical by what was lost on another machine, unless the waits seen here suffice for it
    by_itself = report["level"] == "warning" or report["statements"]["lock_share"] >= 0.1
    assert first["sure"] == ("certain" if by_itself else "likely")
    larger, stop, again, reset = (remedy["command"] for remedy in first["remedy"])
    assert larger == "ALTER SYSTEM SET pg_stat_statements.max = 5000;"
    assert stop.startswith("ALTER SYSTEM SET pg_stat_statements.track = 'none';")
    assert again.startswith("ALTER SYSTEM SET pg_stat_statements.track = 'top';")
    assert reset.startswith(f'SELECT "{SCHEMA}".pg_stat_statements_reset();')
    found = report["statements"]
    assert found["schema_name"] == SCHEMA
    assert ours / 3 < found["deallocations_per_s"] < 3 * ours
    assert found["evicted_per_s"] == pytest.approx(10 * found["deallocations_per_s"])
    assert found["turnover_s"] == pytest.approx(100 / found["evicted_per_s"])
    assert found["occupancy"] == pytest.approx(
        found["deallocations_per_s"] * found["sweep_ms"] / 1000
    )
    # 128 statements and the transaction's two, or less, as some of them never leave
    assert 60 < found["distinct"] < 400


def test_where_waits_are_timed_the_lock_is_named_and_the_rest_is_computing(stormy: Cluster) -> None:
    """Held against the kernel's count of the processor time of all sessions."""
    pid = stormy.postmaster_pid
    began, before = time.monotonic(), machine.tree_ticks(pid)
    report = doctor(stormy.dsn(), interval_s=REPORTED_S)
    used = (machine.tree_ticks(pid) - before) * machine.tick_s() / (time.monotonic() - began)
    waits = report["waits"]
    assert waits["exact"]
    assert report["statements"]["lock_share"] > 0
    assert "LWLock/pg_stat_statements" in [w["event"] for w in waits["events"]]
    assert "LWLock/pg_stat_statements" in " ".join(report["findings"][0]["evidence"])
    # part of the processor time is that of going to wait for the client, which counts as waiting;
    # time without a processor counts as computing
    assert waits["on_cpu"] > used / 5
    assert waits["active"] == pytest.approx(
        waits["on_cpu"] + sum(w["active"] for w in waits["events"])
    )


@pytest.mark.slow
def test_a_version_that_does_not_count_evictions_is_to_be_updated(stormy: Cluster) -> None:
    report = doctor(stormy.dsn("old"))
    found = report["statements"]
    assert (found["version"], found["deallocations_per_s"]) == ("1.8", None)
    (unseen,) = [one for one in report["unseen"] if one["what"].startswith("evictions")]
    assert unseen["remedy"] == "ALTER EXTENSION pg_stat_statements UPDATE;"


@pytest.mark.parametrize(
    ("builtin", "clients"),
    [("tpcb-like", 1), pytest.param("select-only", 4, marks=pytest.mark.slow)],
)
def test_a_healthy_server_under_load_has_no_finding(
    healthy: Cluster, builtin: Builtin, clients: int
) -> None:
    spec = LoadSpec(builtin=builtin, clients=clients)
    with PgbenchLoad(find_pgbench(healthy.binaries), healthy.dsn("load"), spec) as load:
        load.wait_ready()
        options = "-c track_io_timing=on -c timezone=America/New_York"
        dsn = healthy.dsn(options=options)

        def looked() -> dict[str, Any] | None:
            report = doctor(dsn, status=0, interval_s=REPORTED_S)
            # a busy machine may leave few looks to an interval, or few transactions
            seen, done = report["waits"] or {"samples": 0}, report["transactions_per_s"] or 0.0
            return report if seen["samples"] > 5 and done > 1 else None

        report = eventually(looked)
    # a busy server is told what it is busy with, at most
    assert {one["level"] for one in report["findings"]} <= {"info"}
    assert report["level"] == "ok"
    assert report["statements"]["deallocations_per_s"] == 0
    assert report["statements"]["entries"] > 3
    assert report["transactions_per_s"] > 1
    assert report["waits"]["samples"] > 5
    assert not report["waits"]["exact"]
    # the difference of two loops, which others' computing can hide
    assert 0 <= report["clock"]["read_ns"] < 5000
    assert report["taken"].endswith("Z")
    assert report["server"]["started"].endswith("Z")
    assert "track_io_timing" in {one["name"] for one in report["observers"]}


@pytest.mark.parametrize("style", ["German", "SQL,DMY"])
def test_times_are_read_whatever_the_database_sets_for_them(healthy: Cluster, style: str) -> None:
    dsn = healthy.dsn(options=f"-c datestyle={style}")
    assert doctor(dsn, status=0, interval_s=1.0)["taken"].endswith("Z")


def test_a_superusers_own_queries_stay_out_of_the_table(healthy: Cluster) -> None:
    with healthy.connect() as conn:
        conn.execute("SELECT pg_stat_statements_reset()")
        assert in_process("module", "list", "--dsn", healthy.dsn()).returncode == 0
        found = conn.execute("SELECT query FROM pg_stat_statements").fetchall()
    kept = {text for (text,) in found if "pg_stat_statements_reset" not in text}
    # what begins a session, ahead of the first thing that keeps it out
    first = {pooler.BEGIN, pooler.BEGIN_READ_ONLY, pooler.PID, "COMMIT", *pooler.LIKE_OURS}
    first.add("SET search_path = $1, pg_temp")  # as 18 keeps it
    assert kept - first in (
        {"SET LOCAL pg_stat_statements.track = $1"},
        {f"SET LOCAL {pooler.UNTRACKED}"},  # 15
    )


def test_a_superuser_too_is_told_where_the_table_s_setting_is_from(healthy: Cluster) -> None:
    """Our own transactions set it as well."""
    name = "pg_stat_statements.track"
    with healthy.connect() as conn:
        places = (("database", f'DATABASE "{conn.info.dbname}"'), ("user", "ROLE CURRENT_USER"))
        try:
            for source, place in places:
                conn.execute(f"ALTER {place} SET {name} = 'all'".encode())
                with connected(healthy.dsn()) as session:
                    facts = read_facts(session)
                assert (facts.settings[name], facts.sources[name]) == ("all", source)
        finally:
            for _, place in places:
                conn.execute(f"ALTER {place} RESET {name}".encode())


def test_all_that_is_sent_is_listed(healthy: Cluster) -> None:
    listed = pgtare("doctor", "--show-queries")
    assert listed.returncode == 0
    settings = (*queries.set_up(), pooler.UNTRACKED)
    known = {_plain(q.text.replace("%s", "'{}'")) for q in queries.QUERIES} | {
        f"SET LOCAL {s}" for s in settings
    }
    known |= {pooler.BEGIN_READ_ONLY, *pooler.LIKE_OURS, "COMMIT"}
    assert known <= {_plain(part) for part in listed.stdout.split(";")}
    begin = healthy.log_path.stat().st_size
    doctor(healthy.dsn(options="-c log_statement=all -c log_duration=off"))
    log = healthy.log_path.read_bytes()[begin:].decode()
    # a statement's further lines begin with a tab
    sent = re.findall(r"LOG:  (?:statement|execute [^:]*): (.*(?:\n\t.*)*)", log)
    assert len(sent) > 10
    known |= {pooler.PID}
    for text in sent:
        for part in text.split(";"):
            assert _plain(part) in known, text


def _plain(text: str) -> str:
    """A query without comments, its layout, and the schema that it is asked in."""
    text = re.sub(r"--[^\n]*", "", text).replace('"public"', "{schema}")
    text = re.sub(r"\$\d\b", "'{}'", text)  # processes or statements
    return " ".join(text.split())


def test_logging_and_observers_are_reported(healthy: Cluster) -> None:
    options = (
        "-c log_min_duration_statement=0"
        " -c pg_stat_statements.track_planning=on -c log_executor_stats=on"
    )
    report = doctor(healthy.dsn(options=options), status=11)
    titles = " ".join(finding["title"] for finding in report["findings"])
    assert "log_min_duration_statement = 0" in titles
    assert "log_executor_stats" in titles
    assert "track_planning" in titles
    assert report["findings"][0]["level"] == "critical"
    assert {"name": "pg_stat_statements", "value": "top"} in report["observers"]


def test_sessions_that_wait_for_a_lock_are_reported(healthy: Cluster) -> None:
    spec = LoadSpec(builtin="tpcb-like", clients=6)
    with healthy.connect("load") as conn:
        with PgbenchLoad(find_pgbench(healthy.binaries), healthy.dsn("load"), spec) as load:
            load.wait_ready()
            conn.execute("BEGIN")
            began = time.monotonic()
            conn.execute("UPDATE pgbench_branches SET bbalance = 0")
            with healthy.connect() as onlooker:
                eventually(lambda: one(onlooker, LOCK_WAITERS) == 6)
            report = doctor(healthy.dsn("load"))
            soon = time.monotonic() - began < OUTAGE_S
        conn.execute("ROLLBACK")
        pid = conn.info.backend_pid
    finding = report["findings"][0]
    assert (finding["kind"], finding["root"]["pid"]) == ("lock", pid)
    assert (finding["class"], report["level"]) in AS_URGENT[soon]
    assert "is idle in transaction and holds rows of pgbench_branches" in finding["title"]
    assert finding["share"] > 0.5
    assert sum(one["share"] or 0.0 for one in report["findings"]) <= 1.0
    command = finding["remedy"][0]["command"]
    assert command.startswith(f"SELECT pg_terminate_backend({pid}) FROM pg_stat_activity WHERE pid")
    assert " AND backend_start = '2" in command
    assert " AND xact_start = '2" in command


def test_a_socket_alone_does_not_tell_that_the_server_is_here(
    healthy: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a proxy's, and what answers no process of this machine."""
    with connected(healthy.dsn()) as session:
        assert session.is_local
    monkeypatch.setattr(pooler, "backend_pid", lambda _: os.getpid())
    with connected(healthy.dsn()) as session:
        assert not session.is_local


LOCK_WAITERS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
#: Sessions that have waited for so long are an outage; on a busy machine looks may take as long.
OUTAGE_S = 5.0
#: By whether the waits were shorter in any case: class and level of what holds sessions up.
AS_URGENT = {True: [(1, "warning")], False: [(1, "warning"), (0, "critical")]}


@contextlib.contextmanager
def _waiting(cluster: Cluster, statement: str, sessions: int = 3) -> Iterator[None]:
    """Sessions that wait in a statement until what they wait for has ended."""
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(sessions))
        for _ in range(sessions):
            conn = stack.enter_context(cluster.connect())
            stack.callback(conn.cancel)
            pool.submit(conn.execute, statement.encode())
        with cluster.connect() as conn:
            eventually(lambda: one(conn, LOCK_WAITERS) == sessions)
        yield


def test_a_server_that_answers_slowly_is_asked_who_holds_what_others_wait_for(
    healthy: Cluster,
) -> None:
    """The interval is over after one look at the sessions, which asks for nobody's blockers."""
    with healthy.connect() as conn:
        conn.execute("CREATE TABLE held ()")
        conn.execute("BEGIN")
        conn.execute("LOCK TABLE held")
        with _waiting(healthy, "SELECT FROM held"), connected(healthy.dsn()) as session:
            report = examine(session, 0.01)
        conn.execute("ROLLBACK")
        conn.execute("DROP TABLE held")
        pid = conn.info.backend_pid
    (found,) = (one for one in report.findings if one.kind in ("lock", "hotlock"))
    assert found.root is not None, found.title
    assert found.root.pid == pid


@pytest.mark.slow
def test_an_alter_that_waits_for_three_readers_waits_for_the_oldest(healthy: Cluster) -> None:
    alter = "ALTER TABLE read_by_all ADD x int"
    with contextlib.ExitStack() as stack, connected(healthy.dsn()) as session:
        with healthy.connect() as conn:
            conn.execute("CREATE TABLE read_by_all ()")
        readers = [stack.enter_context(healthy.connect()) for _ in range(3)]
        for conn in readers:
            conn.execute("BEGIN")
            conn.execute("SELECT FROM read_by_all")
        pid = readers[0].info.backend_pid
        with _waiting(healthy, alter, 1):
            report = examine(session, 1.0)
        for conn in readers:
            conn.execute("ROLLBACK")
    (found,) = (one for one in report.findings if one.kind in ("lock", "hotlock"))
    assert found.root is not None
    assert found.root.pid == pid
    assert any("2 other sessions hold it as well" in one for one in found.evidence)
    with healthy.connect() as conn:
        conn.execute("DROP TABLE read_by_all")


def test_an_index_build_waits_until_an_older_transaction_has_ended(healthy: Cluster) -> None:
    with contextlib.ExitStack() as stack, connected(healthy.dsn()) as session:
        old = stack.enter_context(healthy.connect())
        old.execute("CREATE TABLE built (x int)")
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        pid = old.info.backend_pid
        build = "CREATE INDEX CONCURRENTLY ON built (x)"
        with _waiting(healthy, build, 1):
            report = examine(session, 1.0)
        old.execute("ROLLBACK")
        old.execute("DROP TABLE built")
    (found,) = (one for one in report.findings if one.kind in ("lock", "hotlock"))
    assert f"waits with «{build}» until the transaction of " in found.title
    assert f"(pid {pid}) has ended, which is idle in transaction" in found.title
    assert found.object is None


def test_a_statement_that_has_never_ended_has_its_text(healthy: Cluster) -> None:
    """pg_stat_statements does not know it yet."""
    statement = "SELECT count(*) AS all_of_them FROM generate_series(1, 1000000000)"
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2))
        for _ in range(2):
            conn = stack.enter_context(healthy.connect("load"))
            stack.callback(conn.cancel)
            pool.submit(conn.execute, statement.encode())
        with healthy.connect() as conn:
            at_work = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = %s"
            eventually(lambda: one(conn, at_work, statement) == 2)
        report = doctor(healthy.dsn("load"))
    (finding,) = [one for one in report["findings"] if one["kind"] == "statement"]
    assert "«SELECT count(*) AS all_of_them FROM generate_series(?, ?)»" in finding["title"]


def test_a_prepared_transaction_is_named_with_what_ends_it(healthy: Cluster) -> None:
    with healthy.connect() as conn:
        conn.execute("CREATE TABLE taken (id int)")
        conn.execute("BEGIN; LOCK TABLE taken; PREPARE TRANSACTION 'it''s'")
        began = time.monotonic()
        try:
            with _waiting(healthy, "SELECT * FROM taken"):
                (finding,) = doctor(healthy.dsn())["findings"]
                (elsewhere,) = doctor(healthy.dsn("load"))["findings"]
                soon = time.monotonic() - began < OUTAGE_S
        finally:
            conn.execute("ROLLBACK PREPARED 'it''s'")
            conn.execute("DROP TABLE taken")
    for each in (finding, elsewhere):
        assert (each["class"], each["level"]) in AS_URGENT[soon]
    assert finding["title"] == "the prepared transaction 'it''s' holds taken"
    # names of relations are known in their own database only
    assert elsewhere["object"].startswith("relation ")
    assert elsewhere["object"].endswith(" of database postgres")
    assert finding["evidence"][0].startswith("3 sessions wait at once (Lock/relation)")
    assert "of role postgres in database postgres, prepared " in finding["evidence"][1]
    (remedy,) = finding["remedy"]
    assert remedy["command"] == "ROLLBACK PREPARED 'it''s';"
    assert "in database postgres" in remedy["does"]


@pytest.mark.slow
def test_candidates_for_a_leader_are_no_queue_to_end(healthy: Cluster) -> None:
    with healthy.connect() as leader:
        leader.execute("SELECT pg_advisory_lock(7)")
        with _waiting(healthy, "SELECT pg_advisory_lock(7)"):
            (finding,) = doctor(healthy.dsn(), status=0)["findings"]
        pid = leader.info.backend_pid
    assert (finding["level"], finding["root"]["pid"]) == ("info", pid)
    assert "stand by" in finding["title"]
    assert all(not remedy["command"] for remedy in finding["remedy"])


def test_the_terminal_shows_it_in_words(stormy: Cluster) -> None:
    done = pgtare("doctor", "--dsn", stormy.dsn(), "--interval", "1s")
    assert done.returncode in (10, 11)
    assert "\n                -- then restart the server\n" in done.stdout
    words = ("pg_stat_statements evicts", "seen", "why", "remedy", "sure", "Waits")
    for word in words:
        assert word in done.stdout


def test_who_watches_sees_that_a_remedy_was_applied(healthy: Cluster) -> None:
    with healthy.connect() as conn, connected(healthy.dsn()) as session:
        conn.execute("ALTER SYSTEM SET log_duration = on")
        try:
            conn.execute("SELECT pg_reload_conf()")
            reports = watch(session, 0.3)
            eventually(lambda: _logs(next(reports)))
        finally:
            conn.execute("ALTER SYSTEM RESET log_duration")
            conn.execute("SELECT pg_reload_conf()")
        eventually(lambda: not _logs(next(reports)))  # once the session has heard of it


def _logs(report: Report) -> bool:
    return "logging" in [finding.kind for finding in report.findings]
