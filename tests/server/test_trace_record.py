"""`pgtare trace` as a user runs it: recorded from real sessions, read back, reported."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
import pytest

from pgtare.kit import machine
from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis import statements
from pgtare.observing.trace.analysis.profile import GROUPINGS, Scope, profile
from pgtare.observing.trace.analysis.texts import statement_labels
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.records import CallKind
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process, pgtare, refused, start_pgtare
from tests.loads import during, traffic
from tests.sample_trace import by
from tests.servers import binaries_slowly_on_15, tracing
from tests.sessions import Connection, eventually, one, session
from tests.trace_recorder import (
    KNOWN,
    call_bytes,
    known,
    level_of,
    recording,
    slowly_on_15,
    wait_until_traced,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def trace(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = pgtare("trace", *arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def tracer(request: pytest.FixtureRequest) -> Cluster:
    """PostgreSQL 18, where a test does not ask for another."""
    found: Cluster = request.getfixturevalue(getattr(request, "param", "trace18"))
    return found


both = pytest.mark.parametrize(
    "tracer", ["trace18", pytest.param("trace15", marks=pytest.mark.debian)], indirect=True
)


@both
def test_a_statement_in_which_its_session_was_ended_is_in_the_trace(
    tracer: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    """The server writes no call of it, only the error."""
    with (
        session(tracer, application_name="traced-ended") as app,
        recording(tracer, tmp_path / "rec", "--application", "traced-*"),
    ):
        wait_until_traced(onlooker, app)
        pid = app.info.backend_pid

        def end() -> None:
            sleeps = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s"
            eventually(lambda: one(onlooker, sleeps, pid))
            time.sleep(0.3)
            onlooker.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))

        with during(end), pytest.raises(psycopg.errors.AdminShutdown):
            app.execute("SELECT pg_sleep(600)")
    book = ledgers.ledger(load(tmp_path / "rec"))
    (found,) = [each for each in statements.report(book) if "57P01" in each.errors]
    assert found.calls["execute"].max_ns > 0.3e9


@both
def test_profile_of_known_waits_and_work(
    tracer: Cluster, app: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    """Sleeps, busy loops and a lock wait of known lengths, found again within 2 %."""
    onlooker.execute(KNOWN.encode())
    began = time.monotonic()
    with recording(tracer, tmp_path / "rec", "--application", "traced-*"):
        wait_until_traced(onlooker, app)
        # planning them is not what they are to take
        app.execute("SELECT nap(0), spin(1), wait_for_lock()")
        before = machine.usage()
        first = time.time_ns()
        for _ in range(4):
            with app.transaction():
                app.execute("INSERT INTO truth (what, s) SELECT 'nap', nap(60)")
                app.execute("INSERT INTO truth (what, s) SELECT 'spin', spin(100)")
        onlooker.execute(b"BEGIN; LOCK locked")

        def release() -> None:
            waits = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
            eventually(lambda: one(onlooker, waits, app.info.backend_pid))
            time.sleep(0.4)
            onlooker.execute(b"COMMIT")

        with during(release):
            app.execute("INSERT INTO truth (what, s) SELECT 'lock', wait_for_lock()")
        last = time.time_ns()
        after = machine.usage()
    app.execute("SELECT 1")  # a session hears of it with its next request
    assert level_of(onlooker, app.info.backend_pid) == 0
    assert time.monotonic() - began < 120
    book = ledgers.ledger(load(tmp_path / "rec"))
    assert book.trace.end is not None
    assert book.trace.end["stopped_by"] == "interrupt"
    found = profile(book)
    for grouping in GROUPINGS:
        grouped = profile(book, grouping)
        assert sum(line.total_ns for line in grouped.lines) == pytest.approx(
            found.total_ns, rel=1e-6
        )
        assert grouped.total_ns == pytest.approx(found.total_ns, rel=1e-6)
    (process,) = [p for p in book.processes if p.leader_pid is None]
    assert found.total_ns == pytest.approx(process.end - process.begin, rel=1e-9)
    assert process.begin <= first + 1e8
    assert process.end >= last - 1e8
    other = [ledgers.NAMES[c] for c in (ledgers.CPU, ledgers.QUEUE, ledgers.UNACCOUNTED)]
    for what, call, event in (
        ("nap", "nap(60)", "Timeout/PgSleep"),
        ("lock", "wait_for_lock()", "Lock/relation"),
    ):
        parts = by(
            book, scope=Scope(statement=f"INSERT INTO truth (what, s) SELECT '{what}', {call}")
        )
        # what the function took is the wait, and the way from its end to a processor
        assert 0.5 * known(tracer, what) < parts[event] < 1.02 * known(tracer, what)
        assert parts[event] + sum(parts.get(name, 0.0) for name in other) > 0.98 * known(
            tracer, what
        )
    spun = by(book, scope=Scope(statement="INSERT INTO truth (what, s) SELECT 'spin', spin(100)"))
    work = sum(spun.get(name, 0.0) for name in (*other, ledgers.NAMES[ledgers.OWN]))
    assert work == pytest.approx(known(tracer, "spin"), rel=0.02)
    # nothing of it in the same statement's waits
    assert sum(spun.values()) - work < 0.02 * work
    # mostly CPU, or the kernel said that it waited for a processor, or other guests took that
    assert before is not None
    assert after is not None
    taken = (after.steal - before.steal) * 1e9 / os.sysconf("SC_CLK_TCK")
    assert spun.get(ledgers.NAMES[ledgers.UNACCOUNTED], 0.0) < 0.5 * work + taken


def test_what_a_trace_tells(
    tracer: Cluster, app: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    """Statements, errors, binds, nested statements, clients, exports and the page."""
    onlooker.execute(
        b"CREATE OR REPLACE FUNCTION outer_calls() RETURNS bigint LANGUAGE plpgsql AS "
        b"$$ BEGIN RETURN (SELECT count(*) FROM pg_class AS nested); END $$"
    )
    rec = tmp_path / "rec"
    hostile = 'SELECT 1, 2, 3 AS "</script><script>alert(1)</script>"'
    huge = "SELECT '" + "x" * 2_000_000 + "'"
    with recording(tracer, rec, "--pid", str(app.info.backend_pid)):
        wait_until_traced(onlooker, app)
        for _ in range(3):
            app.execute(
                "SELECT outer_calls() /*traceparent='00-"
                "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'*/"
            )
        app.execute("SELECT %s::int + 41", (1,))
        app.execute(hostile.encode())
        app.execute(huge.encode())
        with pytest.raises(psycopg.errors.DivisionByZero):
            app.execute("SELECT 1/0 AS fails")
        with app.transaction(), app.cursor("c") as cursor:
            cursor.execute("SELECT * FROM generate_series(1, 1000)")
            cursor.fetchmany(10)
            time.sleep(0.1)
            cursor.fetchmany(10)
    assert stat.S_IMODE(rec.stat().st_mode) == 0o600
    found = json.loads(trace("statements", rec, "--json").stdout)["statements"]
    outer = next(s for s in found if s["text"].startswith("SELECT outer_calls()"))
    assert outer["calls"]["execute"]["count"] == 3
    assert not outer["recursive"]
    nested = next(s for s in found if "AS nested" in s["text"] and s["recursive"])
    assert nested["calls"]["execute"]["count"] == 3
    bad = next(s for s in found if "AS fails" in s["text"])
    assert bad["errors"] == {"22012": 1}
    text = trace("statements", rec).stdout
    assert "Statements within others" in text
    clients = json.loads(trace("clients", rec, "--merge-by", "trace", "--json").stdout)["clients"]
    (client,) = [c for c in clients if c["name"] == "0af7651916cd43dd8448eb211c80319c"]
    assert client["calls"] >= 3
    only = trace("profile", rec, "--merge-by", "trace", "--client", client["name"], "--json")
    assert json.loads(only.stdout)["total_ns"] == pytest.approx(client["busy_ns"], rel=1e-6)
    assert "total" in trace("profile", rec, "--by", "statement").stdout
    trace("report", rec)
    page = rec.with_name("rec.html").read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;/script&gt;" in page
    assert "<svg" in page
    _exported(rec, tmp_path)


@pytest.mark.slow
def test_a_statement_is_not_named_after_a_functions_expression(
    tracer: Cluster, app: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    onlooker.execute(
        b"CREATE OR REPLACE FUNCTION declares() RETURNS int LANGUAGE plpgsql AS $$ DECLARE "
        b"a int := 0; b int := 2; c int := 3; d int := 4; BEGIN RETURN a + b + c + d; END $$"
    )
    rec = tmp_path / "rec"
    with recording(tracer, rec, "--pid", str(app.info.backend_pid)):
        wait_until_traced(onlooker, app)
        for sql in ("SELECT declares()", "SELECT 1", "SELECT 1/1"):
            app.execute(sql.encode())
    found = json.loads(trace("statements", rec, "--json").stdout)["statements"]
    assert {s["text"] for s in found if not s["recursive"]} >= {"SELECT ?", "SELECT ?/?"}
    for wanted, taken in (("SELECT 1", "SELECT ?"), ("1/", "SELECT ?/?")):
        document = json.loads(trace("profile", rec, "--statement", wanted, "--json").stdout)
        assert document["scope"] == f"statement {taken}"


def _exported(rec: Path, tmp_path: Path) -> None:
    import duckdb

    def table(name: str) -> dict[str, Any]:
        path = str(tmp_path / "parquet" / f"{name}.parquet")
        return duckdb.read_parquet(path).fetchnumpy()

    trace("export", rec, tmp_path / "parquet")
    trace("export", rec, tmp_path / "jsonl", "--format", "jsonl")
    calls = table("calls")
    rows = [json.loads(line) for line in (tmp_path / "jsonl" / "calls.jsonl").open()]
    assert len(rows) == len(calls["call"])
    assert [r["start"] for r in rows] == calls["start"].tolist()
    assert {"parse", "plan", "execute", "fetch"} <= {r["kind"] for r in rows}
    book = ledgers.ledger(load(rec))
    bookings = table("bookings")
    assert bookings["ns"].sum() == pytest.approx(profile(book).total_ns)
    binds = [json.loads(line) for line in (tmp_path / "jsonl" / "binds.jsonl").open()]
    assert any(b["state"] == "whole" for b in binds)
    plans = table("plans")
    assert plans["plan"].dtype == calls["plan"].dtype == np.uint64
    scanned = plans["plan"][(plans["kind"] == "Function Scan") & (plans["node"] == 0)]
    (cursor,) = set(calls["plan"][calls["kind"] == "fetch"].tolist())
    assert cursor in scanned
    events = table("transactions")
    assert {"begin", "commit", "abort"} == set(events["event"].tolist())


@slowly_on_15
def test_parallel_workers_are_in_their_clients_times(
    tracer: Cluster, app: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    name = "0af7651916cd43dd8448eb211c80319c"
    onlooker.execute(
        b"CREATE TABLE IF NOT EXISTS shared AS SELECT g FROM generate_series(1, 2e5) g"
    )
    app.execute(
        b"SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;"
        b"SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2"
    )
    rec = tmp_path / "rec"
    with recording(tracer, rec, "--pid", str(app.info.backend_pid)):
        wait_until_traced(onlooker, app)
        for _ in range(3):
            app.execute(
                f"SELECT count(*) FROM shared WHERE g % 7 = 3 /*traceparent='00-{name}-"
                "b7ad6b7169203331-01'*/".encode()
            )
    by_trace = ("--merge-by", "trace")
    clients = json.loads(trace("clients", rec, *by_trace, "--json").stdout)["clients"]
    busy = {client["name"]: client["busy_ns"] for client in clients}
    book = ledgers.ledger(load(rec))
    pid = app.info.backend_pid
    workers = sum(p.end - p.begin for p in book.processes if p.leader_pid == pid)
    assert workers
    of_workers = by(book, scope=Scope(workers=True))
    assert sum(of_workers.values()) == pytest.approx(workers, rel=1e-6)
    assert of_workers["CPU outside waits"] > 0
    (own,) = [p for p in book.processes if p.leader_pid is None]
    assert profile(book).total_ns == pytest.approx(own.end - own.begin, rel=1e-9)
    only = (*by_trace, "--client", name, "--busy", "--json")
    found = [
        json.loads(trace("profile", rec, *only, *which).stdout)["total_ns"]
        for which in ((), ("--workers",))
    ]
    assert found[1] == pytest.approx(workers, rel=1e-6)
    assert busy[name] == pytest.approx(sum(found), rel=1e-6)


@pytest.mark.slow
@both
def test_calls_that_were_overwritten_are_not_recorded(
    tracer: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    """Their time is in no other line; what a ring forgot before the recording is no loss of it."""
    many = b"DO $$ BEGIN FOR i IN 1..6000 LOOP PERFORM i + 1; END LOOP; END $$"
    small = "-c sql_trace.ring_size=256kB"
    with session(tracer, application_name="armed", options=small) as armed:
        armed.execute("SET sql_trace.level = 1")
        armed.execute(many)
        pid = armed.info.backend_pid
        time.sleep(1.5)  # that it was before the recording is to be plain
        with session(tracer, application_name="asked", options=small) as asked:
            with recording(tracer, tmp_path / "rec"):
                wait_until_traced(onlooker, asked)
                armed.execute("SELECT 1")
                began = time.perf_counter_ns()
                asked.execute(many)
                took = time.perf_counter_ns() - began
            missed = asked.info.backend_pid
    book = ledgers.ledger(load(tmp_path / "rec"))
    notes = " ".join(book.notes)
    assert f"process {missed}" in notes
    assert f"process {pid}" not in notes
    lost = by(book, scope=Scope(frozenset([missed])))[ledgers.NAMES[ledgers.MISSING]]
    assert lost > 0.1 * took
    assert ledgers.NAMES[ledgers.MISSING] not in by(book, scope=Scope(frozenset([pid])))


@pytest.mark.slow
def test_size_and_reserve_are_kept(
    tracer: Cluster, app: Connection, onlooker: Connection, tmp_path: Path
) -> None:
    message = refused(
        "trace", "record", tmp_path / "r", "--dsn", tracer.dsn(), "--reserve", "1000000G"
    )
    assert "reserve" in message
    rec = tmp_path / "rec"
    recorder = start_pgtare(
        "trace record {} --dsn {} --reserve 0 --max-size 100k --pid {} --json",
        rec,
        tracer.dsn(),
        app.info.backend_pid,
    )
    wait_until_traced(onlooker, app)
    while recorder.poll() is None:
        app.execute(f"SELECT '{os.urandom(500).hex()}'".encode())
    out, err = recorder.communicate(timeout=60)
    assert json.loads(out)["stopped_by"] == "size", err
    assert rec.stat().st_size < 110_000
    book = ledgers.ledger(load(rec))
    assert any("ended early" in note for note in book.notes)


def test_places_that_cannot_be_used(tracer: Cluster, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    message = refused("trace", "record", taken, "--dsn", tracer.dsn())
    assert "exists already" in message
    message = refused("trace", "record", "/proc/nowhere/x", "--dsn", tracer.dsn())
    assert "there is no directory /proc/nowhere" in message
    with session(tracer) as connection:
        data = Path(one(connection, "SHOW data_directory"))
    message = refused("trace", "record", data / "x", "--dsn", tracer.dsn())
    assert "data directory" in message


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--pid", "-1", "--role", "nix", "--database", "nix"), "session -1, role nix, database"),
        (("--max-size", "0"), "nothing was begun"),
        (("--reserve", "1000000G"), "nothing was begun"),
        (("--armed", "--application", "x*", "--role", "app"), "leave out --role, --application"),
        (("--armed", "--level", "12"), "leave out --level"),
        (("--duration", ""), "--duration"),
    ],
)
def test_what_cannot_be_recorded_is_refused_at_once(
    tracer: Cluster, tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    rec = tmp_path / "rec"
    assert why in refused("trace", "record", rec, "--dsn", tracer.dsn(), "-d", "1", *options)
    assert not rec.exists()


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--application=nobody", "no matching session answered"),
        ("--armed", "`pgtare trace status` shows what is armed"),
    ],
)
def test_nobody_was_there(tracer: Cluster, tmp_path: Path, option: str, why: str) -> None:
    done = in_process(
        "trace record {} --dsn {} -d 0.2s --reserve 0 {}", tmp_path / "rec", tracer.dsn(), option
    )
    assert (done.returncode, why in done.stdout) == (1, True), (done.stdout, done.stderr)
    assert not (tmp_path / "rec").exists()


@both
def test_without_privilege(tracer: Cluster, onlooker: Connection, tmp_path: Path) -> None:
    onlooker.execute(b"DROP ROLE IF EXISTS nobody_much; CREATE ROLE nobody_much LOGIN")
    dsn = tracer.dsn(user="nobody_much")
    functions = "proname IN ('sql_trace_drain', 'wait_event_trace_drain')"
    schemas = one(
        onlooker,
        "SELECT string_agg(DISTINCT pronamespace::regnamespace::text, ', ') "
        f"FROM pg_proc WHERE {functions}",
    )
    onlooker.execute(f"REVOKE USAGE ON SCHEMA {schemas} FROM public".encode())
    message = refused("trace", "record", tmp_path / "x", "--dsn", dsn)
    onlooker.execute(f"GRANT USAGE ON SCHEMA {schemas} TO public".encode())
    for schema in schemas.split(", "):
        assert f"GRANT USAGE ON SCHEMA {schema} TO nobody_much" in message
    message = refused("trace", "record", tmp_path / "x", "--dsn", dsn)
    assert "GRANT pg_read_all_stats" in message
    assert "sql_trace_set" in message
    assert not (tmp_path / "x").exists()
    grants = message.partition("has to run: ")[2]
    onlooker.execute(grants.encode())
    done = in_process("trace record {} --dsn {} -d 0.1s", tmp_path / "x", dsn)
    assert "none was traced" in done.stdout
    onlooker.execute(f"{grants.replace('GRANT', 'REVOKE').replace(' TO ', ' FROM ')}".encode())


@pytest.mark.parametrize("title", ["postgres: somebody", "sshd: somebody"])
def test_times_of_the_kernel_only_of_a_server_that_is_here(
    tracer: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str
) -> None:
    """Through a tunnel, the process of that number here is another one."""
    monkeypatch.setattr(psutil.Process, "cmdline", lambda process: [title])
    path = tmp_path / "rec"
    with traffic(tracer.dsn(), 1, "SELECT 1"):
        done = in_process("trace record {} --duration 1s --reserve 0 --dsn {}", path, tracer.dsn())
    assert done.returncode == 0, done.stderr
    assert bool(load(path).processor) == title.startswith("postgres:")


def test_without_the_extension_and_the_module(
    tracer: Cluster, server18: Cluster, tmp_path: Path
) -> None:
    dsn = tracer.dsn(dbname="template1")
    message = refused("trace", "record", tmp_path / "x", "--dsn", dsn)
    assert message == (
        "pgtare: database template1 has no extension sql_trace: run CREATE EXTENSION "
        "wait_event_timing; CREATE EXTENSION sql_trace; in database template1, or connect to the "
        "database that has it\n"
    )
    message = refused("trace", "record", tmp_path / "x", "--dsn", server18.dsn())
    assert "'wait_event_timing', 'sql_trace'; and restart the server; " in message
    assert "CREATE EXTENSION wait_event_timing; CREATE EXTENSION sql_trace;" in message


@pytest.mark.slow
@binaries_slowly_on_15
def test_a_crash_of_the_server_in_mid_trace(binaries: Binaries, tmp_path: Path) -> None:
    rec = tmp_path / "rec"
    with tracing(binaries) as cluster, session(cluster) as app, session(cluster) as onlooker:
        recorder = start_pgtare("trace", "record", rec, "--dsn", cluster.dsn(), "--reserve", "0")
        wait_until_traced(onlooker, app)
        app.execute("SELECT 'before the crash'")
        eventually(lambda: rec.exists() and b"before the crash" in call_bytes(rec))
        os.kill(app.info.backend_pid, signal.SIGKILL)
        _, err = recorder.communicate(timeout=60)
        assert recorder.returncode == 1
        assert "Traceback" not in err
        assert "holds what came before" in err
        book = ledgers.ledger(load(rec))
        assert any(
            "before the crash" in t.text for p in book.processes for t in p.stream.texts.values()
        )
        assert any("ended early" in note for note in book.notes)


@pytest.mark.slow
def test_profile_of_pgbench_with_known_waits(
    tracer: Cluster, wheel: Binaries, onlooker: Connection, tmp_path: Path
) -> None:
    """tpcb-like transactions with a sleep and a busy loop of known length in each."""
    onlooker.execute(KNOWN.encode())
    script = tmp_path / "script.sql"
    script.write_text(
        "\\set aid random(1, 100000)\nBEGIN;\n"
        "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
        "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
        "UPDATE pgbench_tellers SET tbalance = tbalance + 1 WHERE tid = 1;\n"
        "UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\nEND;\n"
        "INSERT INTO truth (what, s) SELECT 'nap', nap(20);\n"
        "INSERT INTO truth (what, s) SELECT 'spin', spin(50);\n"
    )
    pgbench = str(wheel.program("pgbench"))
    env = {**os.environ, "PGOPTIONS": ""}
    dsn = tracer.dsn(application_name="bench")
    subprocess.run([pgbench, "-i", "-q", dsn], check=True, capture_output=True, env=env)
    rec = tmp_path / "rec"
    with recording(tracer, rec, "--application", "bench"):
        time.sleep(1.5)
        subprocess.run(
            [pgbench, "-n", "-c", "2", "-T", "10", "-f", str(script), dsn],
            check=True,
            capture_output=True,
            env=env,
        )
    book = ledgers.ledger(load(rec))
    found = profile(book)
    assert sum(line.total_ns for line in found.lines) == pytest.approx(found.total_ns, rel=1e-9)
    # from when on both clients were traced, and had planned all they do
    since = max(p.begin for p in book.processes) + 500_000_000
    took = "SELECT sum(s) FROM truth WHERE what = %s AND extract(epoch FROM at) - s >= %s"
    truth = {what: 1e9 * float(one(onlooker, took, what, since / 1e9)) for what in ("nap", "spin")}
    (sleep,) = [e for e, event in book.trace.events.items() if event.name == "PgSleep"]
    slept = sum(
        int(p.waits.length[(p.waits.event == sleep) & (p.waits.start >= since)].sum())
        for p in book.processes
    )
    assert slept == pytest.approx(truth["nap"], rel=0.02)
    labels = statement_labels(book)
    chosen = [
        i
        for i, call in enumerate(book.calls)
        if call["kind"] == CallKind.EXECUTE
        and call["start"] >= since
        and any("SELECT 'spin'" in text for text in labels.texts[labels.of_call[i]])
    ]
    of = np.isin(book.entries.top, chosen) & np.isin(
        book.entries.component, [ledgers.CPU, ledgers.QUEUE, ledgers.UNACCOUNTED, ledgers.OWN]
    )
    assert book.entries.ns[of].sum() == pytest.approx(truth["spin"], rel=0.02)
    sys.stdout.write(pgtare("trace", "profile", rec).stdout)
