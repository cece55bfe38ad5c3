"""The doctor where things are missing, forbidden, reset or gone."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import IO, Any

import pytest

from pgtare.observing.doctor.checks import server_kind
from pgtare.observing.doctor.collect import read_facts
from pgtare.observing.doctor.examine import watch
from pgtare.observing.doctor.queries import Query
from pgtare.observing.doctor.session import connected
from pgtare.observing.findings.collector import FindingInputs
from pgtare.observing.findings.read import Unreadable
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import failed, pgtare, start_pgtare
from tests.doctor_servers import (
    PLAIN,
    SCHEMA,
    checks,
    doctor,
    evicting,
    storm,
)
from tests.sessions import Connection, eventually, one

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster(wheel: Binaries) -> Iterator[Cluster]:
    with evicting(wheel) as found:
        yield found


def unseen(report: dict[str, object]) -> dict[str, str]:
    """What was not looked at, with reason and remedy."""
    rows: list[dict[str, str]] = report["unseen"]  # type: ignore[assignment]
    return {row["what"]: f"{row['why']}; {row['remedy']}" for row in rows}


@pytest.mark.slow
def test_no_extension_in_the_database(cluster: Cluster) -> None:
    report = doctor(cluster.dsn("without"), status=0)
    assert "CREATE EXTENSION pg_stat_statements" in unseen(report)["pg_stat_statements"]
    assert report["statements"] is None


def test_not_loaded_at_all(server: Cluster) -> None:
    report = doctor(server.dsn(), status=0)
    remedy = unseen(report)["pg_stat_statements"].partition("; ")[2]
    with server.connect() as conn:
        query = (
            "SELECT setting FROM pg_file_settings WHERE name = 'shared_preload_libraries'"
            " ORDER BY seqno DESC"
        )
        ((loaded,),) = conn.execute("SHOW shared_preload_libraries").fetchall()
        try:
            conn.execute(remedy.partition(";")[0].encode())
            (wanted, *_) = conn.execute(query).fetchone() or ("",)
        finally:
            conn.execute("ALTER SYSTEM RESET shared_preload_libraries")
    (names,) = csv.reader([wanted], skipinitialspace=True)  # 'a, b' as one name stays one
    assert names == [*loaded.replace('"', "").split(", "), "pg_stat_statements"]


def test_created_but_not_loaded(server: Cluster) -> None:
    with server.connect() as conn:
        conn.execute("CREATE SCHEMA idle_statements")
        conn.execute("CREATE EXTENSION pg_stat_statements SCHEMA idle_statements")
        try:
            report = doctor(server.dsn(), status=0)
        finally:
            conn.execute("DROP SCHEMA idle_statements CASCADE")
    assert "must be loaded" in unseen(report)["pg_stat_statements"]
    assert "shared_preload_libraries" in unseen(report)["pg_stat_statements"]


def test_without_privilege_evictions_are_still_counted(cluster: Cluster) -> None:

    def looked() -> dict[str, Any] | None:
        """On a busy machine the load may stand still for a while."""
        report = doctor(cluster.dsn(user=PLAIN))
        return report if "evictions" in checks(report) else None

    with storm(cluster):
        report = eventually(looked)
    assert checks(report)[0] == "evictions"
    missing = unseen(report)["other roles' sessions and statements"]
    assert f"GRANT pg_read_all_stats TO {PLAIN}" in missing
    assert report["waits"] is None
    assert report["statements"]["distinct"] is None  # others' entries have no identifier
    assert report["statements"]["text_file_bytes"] is None


def test_where_the_position_of_the_wal_is_refused_the_other_counters_are_read(
    cluster: Cluster,
) -> None:
    function = "FUNCTION pg_current_wal_lsn()"
    with cluster.connect() as conn:
        conn.execute("CREATE ROLE monitor LOGIN IN ROLE pg_monitor")
        conn.execute(f"REVOKE EXECUTE ON {function} FROM PUBLIC".encode())
        try:
            with connected(cluster.dsn(user="monitor")) as session:
                inputs = FindingInputs(session, server_kind(read_facts(session), local=True))
                counters = inputs.totals().counters
        finally:
            conn.execute(f"GRANT EXECUTE ON {function} TO PUBLIC".encode())
            conn.execute("DROP ROLE monitor")
    assert inputs.unseen.keys() == {"WAL", "slots"}
    assert counters is not None
    assert counters.wal_bytes is None
    assert counters.commits > 0
    assert counters.xid_age > 0


def only_sessions(conn: Connection, number: int) -> None:
    """Wait until there are no more: those that were closed may take a while to end."""
    clients = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    eventually(lambda: one(conn, clients) == number)


def test_sessions_that_do_not_say_what_they_do_cannot_be_seen(cluster: Cluster) -> None:
    with cluster.connect("old") as conn:
        conn.execute("SET track_activities = off")
        only_sessions(conn, 1)
        report = doctor(cluster.dsn("without"), status=1)  # one of two
        said = unseen(report)["sessions"]
        assert said.startswith("1 of 2 do not say what they do (track_activities = off); ")
        assert "ALTER SYSTEM SET track_activities = on" in said
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(cluster.connect())
            only_sessions(conn, 5)
            report = doctor(cluster.dsn("without"), status=0)
        assert unseen(report)["some sessions"].startswith("1 of 6 do not say")
    report = doctor(cluster.dsn("without", options="-c track_activities=off"), status=1)
    assert "sessions" in unseen(report)


def test_remedies_quote_names(cluster: Cluster) -> None:
    """A name could else end the remedy's statement and begin another."""
    name = 'x" TO public; DROP TABLE "y'
    quoted = '"x"" TO public; DROP TABLE ""y"'
    with cluster.connect() as conn:
        conn.execute(f"CREATE ROLE {quoted} LOGIN")
        try:
            reasons = unseen(doctor(cluster.dsn(user=name)))
            assert f'GRANT USAGE ON SCHEMA "{SCHEMA}" TO {quoted};' in reasons["pg_stat_statements"]
            missing = reasons["other roles' sessions and statements"]
            assert f"GRANT pg_read_all_stats TO {quoted};" in missing
        finally:
            conn.execute(f"DROP ROLE {quoted}")


@pytest.mark.slow
def test_databases_of_other_encodings(cluster: Cluster) -> None:
    """SQL_ASCII says nothing of its texts; LATIN1 lacks characters that other databases have."""
    with cluster.connect() as conn:
        for encoding in ("SQL_ASCII", "LATIN1"):
            conn.execute(
                f"CREATE DATABASE {encoding} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
                " TEMPLATE template0".encode()
            )
        try:
            conn.execute(f'SELECT "{SCHEMA}".pg_stat_statements_reset()'.encode())
            for _ in range(20):  # so that it is not evicted
                conn.execute('SELECT 1 AS "Ω"'.encode())
            for encoding in ("sql_ascii", "latin1"):
                with cluster.connect(encoding) as other:
                    other.execute("CREATE EXTENSION pg_stat_statements")
                report = doctor(cluster.dsn(encoding))
                assert report["server"]["database"] == encoding
                assert report["statements"]["entries"] > 0
            assert "has no equivalent" in unseen(report)["texts of pg_stat_statements"]
        finally:
            for encoding in ("sql_ascii", "latin1"):
                conn.execute(f"DROP DATABASE {encoding} WITH (FORCE)")


@pytest.mark.slow
def test_a_reset_in_mid_watch(cluster: Cluster) -> None:
    looks = iter(())

    def tick(seconds: float) -> None:
        if next(looks, None) is not None:
            with cluster.connect() as conn:
                conn.execute(f'SELECT "{SCHEMA}".pg_stat_statements_reset()'.encode())

    with storm(cluster), connected(cluster.dsn()) as session:
        reports = watch(session, 0.6, tick)
        first = next(reports)
        looks = iter([1])
        second = next(reports)
        third = next(reports)
    assert first.statements is not None
    assert first.statements.evicted_per_s
    assert third.statements is not None
    assert third.statements.evicted_per_s
    assert "was reset" in second.notes[0]
    assert second.statements is not None
    assert second.statements.deallocations_per_s is None


@pytest.mark.slow
def test_a_watch_without_end_outlasts_a_restart(cluster: Cluster) -> None:
    with an_endless_watch(cluster) as (watching, lines):
        before = json.loads(lines.readline())
        cluster.stop()
        time.sleep(2)
        cluster.start()
        after = json.loads(lines.readline())
        while after["taken"] < cluster_started(cluster):
            after = json.loads(lines.readline())
        watching.send_signal(signal.SIGINT)
        _, output = watching.communicate(timeout=30)
    assert watching.returncode == 130
    assert before["taken"] < after["taken"]
    went, back = output.splitlines()
    assert went.startswith("pgtare: the server went away while it was looked at")
    assert went.endswith("; trying again every 1 s")
    assert back == "pgtare: the server is back"


@contextlib.contextmanager
def an_endless_watch(cluster: Cluster) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """`doctor --watch` and its output; it would wait for the server when the test is over."""
    watching = start_pgtare(
        "doctor", "--dsn", cluster.dsn(), "--watch", "--interval", "1s", "--json"
    )
    assert watching.stdout is not None
    try:
        yield watching, watching.stdout
    finally:
        watching.kill()
        watching.wait()


def cluster_started(cluster: Cluster) -> str:
    """When the server started, as reports tell times."""
    with cluster.connect() as conn:
        (started,) = conn.execute(
            "SELECT to_char(pg_postmaster_start_time() AT TIME ZONE 'UTC',"
            " 'YYYY-MM-DD\"T\"HH24:MI:SS')"
        ).fetchone()  # type: ignore[misc]
    return str(started)


def test_a_hot_standby(cluster: Cluster) -> None:
    cluster.stop()
    signal_file = cluster.data_directory / "standby.signal"
    signal_file.touch()
    try:
        cluster.start()
        report = doctor(cluster.dsn(), status=0)
        reasons = unseen(doctor(cluster.dsn("without", user=PLAIN)))
    finally:
        cluster.stop()
        signal_file.unlink()
        cluster.start()
    assert report["server"]["standby"]
    assert "EXTENSION pg_stat_statements;  -- on the primary, or" in reasons["pg_stat_statements"]
    grant = "GRANT pg_read_all_stats TO plain;  -- on the primary"
    assert grant in reasons["other roles' sessions and statements"]
    assert report["statements"]["deallocations_per_s"] == 0
    assert report["findings"] == []


def test_nothing_can_be_changed_through_its_session(cluster: Cluster) -> None:
    change = Query("a change", "nothing", "CREATE TABLE made_by_the_doctor ()")
    with connected(cluster.dsn()) as session, pytest.raises(Unreadable, match="read-only"):
        session.rows(change)


def test_wrong_arguments_and_servers(tmp_path: object) -> None:
    assert "--dsn is missing" in failed(pgtare("doctor"), 2)
    assert "1s or more" in failed(pgtare("doctor", "--dsn", "host=x", "--interval", "0.1s"), 2)
    assert "cannot connect" in failed(pgtare("doctor", "--dsn", f"host={tmp_path}"), 1)
    assert "cannot read" in failed(pgtare("doctor", "--dsn", "no such=thing"), 2)
