"""Who is traced, when it begins and stops, and what becomes of a trace's memory."""

import contextlib
import itertools
import threading
import time
from typing import Any

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.loads import during
from tests.process_limits import limit_files, limit_memory
from tests.servers import crash, tracing
from tests.sessions import Connection, eventually, one, rows, session, until_it_waits
from tests.trace_records import ABORTED, FAILED, Trace, drain, trace_of, traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def seen(onlooker: Connection, pid: int) -> dict[str, Any]:
    """The row of the view."""
    cursor = onlooker.execute("SELECT * FROM pg_stat_sql_trace WHERE pid = %s", (pid,))
    assert cursor.description
    (row,) = cursor.fetchall()
    return dict(zip([d.name for d in cursor.description], row, strict=True))


def is_traced(onlooker: Connection, client: Connection) -> bool:
    """Whether the next statement is traced."""
    pid = client.info.backend_pid
    client.execute("SELECT 'traced?'")
    try:
        return bool(trace_of(onlooker, pid).calls("execute", "SELECT 'traced?'"))
    except psycopg.errors.UndefinedObject:
        return False


def test_session_describes_itself(client: Connection, onlooker: Connection) -> None:
    client.execute("SET application_name = 'describes'")
    trace = traced(onlooker, client, "SELECT 1")
    pid = client.info.backend_pid
    (described,) = trace_of(onlooker, pid).of("session")
    assert (described.version, described.pid, described.number) == (2, pid, 0)
    assert (described.application, described.database_name) == ("describes", "postgres")
    assert described.server_version_num // 10000 == client.info.server_version // 10000
    assert described.encoding == "UTF8"
    assert described.ring_bytes == 1 << 20
    assert (time.time() - 946684800) - described.started / 1e6 < 60
    (level,) = trace_of(onlooker, pid).of("level")
    assert (level.level, level.reason, level.statement_rate) == (1, "setting", 1.0)
    row = seen(onlooker, pid)
    assert (row["level"], row["reason"], row["application_name"]) == (1, "setting", "describes")
    records = [r for r in trace.records if r.number]
    assert row["records"] >= records[-1].number
    assert row["bytes"] > 0
    assert (row["lost_records"], row["ended"]) == (0, None)


@pytest.mark.parametrize("level", ["2", "13", "x", "-1"])
def test_levels_that_do_not_exist(client: Connection, level: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        client.execute(f"SET sql_trace.level = '{level}'".encode())


def test_level_from_another_session(client: Connection, onlooker: Connection) -> None:
    pid = client.info.backend_pid
    assert not is_traced(onlooker, client)
    assert one(onlooker, "SELECT sql_trace_set(%s, 1)", pid)
    # it begins with the very next statement
    assert is_traced(onlooker, client)
    assert seen(onlooker, pid)["reason"] == "sql_trace_set"
    assert one(onlooker, "SELECT sql_trace_set(%s, 0)", pid)
    before = seen(onlooker, pid)["records"]
    client.execute("SELECT 1")
    assert seen(onlooker, pid)["level"] == 0
    client.execute("SELECT 1")
    assert seen(onlooker, pid)["records"] <= before + 1
    client.execute("SET sql_trace.level = 1")
    client.execute("SELECT 1")
    assert seen(onlooker, pid)["reason"] == "setting"
    one(onlooker, "SELECT sql_trace_set(%s, 4)", pid)
    client.execute("SELECT 1")
    one(onlooker, "SELECT sql_trace_set(%s, NULL)", pid)
    client.execute("SELECT 1")
    assert (seen(onlooker, pid)["level"], seen(onlooker, pid)["reason"]) == (1, "setting")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        one(onlooker, "SELECT sql_trace_set(%s, 7)", pid)
    assert not one(onlooker, "SELECT sql_trace_set(0, 1)")


def configure(cluster: Cluster, onlooker: Connection, **settings: Any) -> None:
    """Settings of the configuration file, in force in a session that was there."""
    cluster.configure({f"sql_trace.{name}": value for name, value in settings.items()})
    cluster.reload()
    for name, value in settings.items():
        eventually(
            lambda name=name, value=value: one(onlooker, f"SHOW sql_trace.{name}") == str(value)  # type: ignore[misc]
        )


def test_sessions_to_come_by_application(tracer: Cluster, onlooker: Connection) -> None:
    configure(tracer, onlooker, application="etl*=4, web=1")
    try:
        with session(tracer, application_name="etl-7") as etl, session(tracer) as other:
            etl.execute("SELECT 1")
            row = seen(onlooker, etl.info.backend_pid)
            assert (row["level"], row["reason"]) == (4, "application")
            assert not is_traced(onlooker, other)
            other.execute("SET application_name = 'web'")
            assert is_traced(onlooker, other)
    finally:
        configure(tracer, onlooker, application="")


def test_sample_of_statements(client: Connection, onlooker: Connection) -> None:
    client.execute("SET sql_trace.statement_rate = 0.3")
    trace = traced(onlooker, client, *["SELECT 'maybe'"] * 300)
    # binomial: outside of this once in 10^6 runs
    assert 52 <= len(trace.calls("execute", "SELECT 'maybe'")) <= 131
    assert len(trace.of("request")) == len(trace.calls("commit"))
    # the request that set the level can be of the sample, too, but its execution began before
    assert len(trace.of("request")) - len(trace.calls("execute")) in (0, 1)


def test_by_query_identifier(client: Connection, onlooker: Connection) -> None:
    wanted = "SELECT 'wanted' FROM pg_am LIMIT 1"
    query_id = one(client, f"EXPLAIN (VERBOSE, FORMAT json) {wanted}")[0]["Query Identifier"]
    client.execute(f"SET sql_trace.query_ids = '1, {query_id}'".encode())
    client.execute("SELECT 'other'")
    assert (
        rows(onlooker, "SELECT FROM pg_stat_sql_trace WHERE pid = %s", client.info.backend_pid)
        == []
    )
    client.execute(wanted.encode())
    client.execute("SELECT 'other'")
    client.execute(f"DO $$BEGIN PERFORM 'other'; PERFORM {wanted[7:]}; END$$".encode())
    trace = trace_of(onlooker, client.info.backend_pid)
    assert len(trace.calls("execute", "SELECT 'wanted'")) == 2
    assert not trace.calls("execute", "SELECT 'other'")
    assert [r.reason for r in trace.of("level")] == ["query"]
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        client.execute("SET sql_trace.query_ids = '12a'")


def test_waits_of_a_statement_found_by_its_identifier(
    client: Connection, onlooker: Connection
) -> None:
    nap = "SELECT pg_sleep(0.02), count(*) FROM pg_am"
    query_id = one(client, f"EXPLAIN (VERBOSE, FORMAT json) {nap}")[0]["Query Identifier"]
    client.execute(f"SET sql_trace.query_ids = '{query_id}'".encode())
    for _ in range(3):
        client.execute(nap.encode())
    pid = client.info.backend_pid
    assert trace_of(onlooker, pid).of("waitring")
    assert seen(onlooker, pid)["waits"]
    naps = rows(
        onlooker,
        "SELECT count(*) FROM pg_stat_wait_event_timing WHERE pid = %s"
        " AND wait_event = 'PgSleep' AND calls = 3",
        pid,
    )
    assert naps == [(1,)]
    client.execute("SET sql_trace.query_level = 4")
    client.execute("SET sql_trace.query_ids = ''")
    client.execute("SELECT 1")
    assert (seen(onlooker, pid)["level"], seen(onlooker, pid)["reason"]) == (0, "setting")
    assert rows(onlooker, "SELECT sql_trace_set(%s, 1)", pid)
    client.execute("SELECT 1")
    client.execute("SELECT 'again'")
    assert seen(onlooker, pid)["reason"] == "sql_trace_set"
    assert trace_of(onlooker, pid).calls("execute", "SELECT 'again'")


def test_a_ring_always_tells_its_level_and_the_time_line_of_waits(
    client: Connection, onlooker: Connection
) -> None:
    pid = client.info.backend_pid
    client.execute("SET sql_trace.ring_size = '64kB'")
    client.execute("SET sql_trace.level = 12")
    for _ in range(500):
        client.execute("SELECT 'over and over'")
    trace = trace_of(onlooker, pid)
    assert [r.kind for r in trace.records[:2]] == ["session", "lost"]
    assert [r.level for r in trace.of("level")] == [12]
    assert len(trace.of("waitring")) == 1


def test_kill_switch(tracer: Cluster, client: Connection, onlooker: Connection) -> None:
    client.execute("SET sql_trace.level = 1")
    assert is_traced(onlooker, client)
    configure(tracer, onlooker, enabled="off")
    try:
        start = drain(onlooker, client.info.backend_pid)[0]
        client.execute("SELECT 1")
        client.execute("SELECT 1")
        after = drain(onlooker, client.info.backend_pid, start)[3]
        assert not [r for r in after if r.kind == "request"][1:]
        assert seen(onlooker, client.info.backend_pid)["level"] == 0
    finally:
        configure(tracer, onlooker, enabled="on")


def test_overwritten_records_are_counted(client: Connection, onlooker: Connection) -> None:
    client.execute("SET sql_trace.ring_size = '64kB'")
    pid = client.info.backend_pid
    traced(onlooker, client, "SELECT 1")
    position, _, _, first = drain(onlooker, pid)
    for i in range(600):
        client.execute(f"SELECT 'unread {i}'".encode())
    _, lost, _, records = drain(onlooker, pid, position)
    assert (records[0].kind, records[0].bytes) == ("lost", lost)
    # a record can hold several
    numbers = list(dict.fromkeys(r.number for r in records if r.number))
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    row = seen(onlooker, pid)
    # nobody had read them: all that is between is lost
    assert row["lost_records"] == numbers[0] - first[-1].number - 1
    assert row["lost_bytes"] == lost
    # statements whose text was overwritten are recorded anew
    client.execute("SELECT 1")
    texts = Trace(drain(onlooker, pid, position)[3])
    assert texts.calls("execute", "SELECT 1")
    from_start = drain(onlooker, pid, 0)[3]
    assert [r.kind for r in from_start[:2]] == ["session", "lost"]


def test_application_that_a_pool_changes(client: Connection, onlooker: Connection) -> None:
    """Told when it has changed, and anew when that has been overwritten."""
    client.execute("SET sql_trace.ring_size = '64kB'")
    client.execute("SET sql_trace.level = 1")
    pid = client.info.backend_pid
    assert not trace_of(onlooker, pid).of("application")
    client.execute("SET application_name = 'web'")
    client.execute("SELECT 'in web'")
    with contextlib.suppress(psycopg.Error), client.transaction():
        client.execute("SET LOCAL application_name = 'batch'")
        client.execute("SELECT 1/0")
    client.execute("SELECT 'in web'")
    records = trace_of(onlooker, pid).records
    names = [(r.number, r.application) for r in records if r.kind == "application"]
    assert [name for _, name in names] == ["web", "batch", "web"]
    trace = Trace(records)
    first, last = trace.calls("execute", "SELECT 'in web'")
    assert names[0][0] < first.number < names[1][0]
    assert names[2][0] < last.number
    for i in range(600):
        client.execute(f"SELECT 'unread {i}'".encode())
    assert trace_of(onlooker, pid).of("application")[-1].application == "web"


def test_nothing_is_torn_while_it_is_written(tracer: Cluster, onlooker: Connection) -> None:
    """A small ring, overwritten all the time, read all the time."""
    enough = threading.Event()
    with session(tracer) as client:
        client.execute("SET sql_trace.ring_size = '64kB'")
        client.execute("SET sql_trace.level = 4")
        pid = client.info.backend_pid
        client.execute("SELECT 1")

        def work() -> None:
            numbers = itertools.count()
            while not enough.is_set():
                client.execute(
                    "DO $$BEGIN FOR i IN 1..300 LOOP EXECUTE 'SELECT $1 '"
                    " || repeat('x', i % 60 + 1) USING i; END LOOP; END$$ -- %i".replace(
                        "%i", str(next(numbers))
                    ).encode()
                )

        worker = threading.Thread(target=work)
        worker.start()
        position, last, drains = 0, 0, 0
        try:
            while worker.is_alive() and (last <= 10_000 or drains <= 100):
                position, lost, _, records = drain(onlooker, pid, position)
                for record in records:
                    if record.number:
                        assert record.number in (last, last + 1) or lost
                        last, lost = record.number, 0
                drains += 1
        finally:
            enough.set()
            worker.join()
    assert last > 10_000
    assert drains > 100


def test_positions_that_nobody_gave(client: Connection, onlooker: Connection) -> None:
    traced(onlooker, client, "SELECT 1")
    pid = client.info.backend_pid
    for position in (-1, 1 << 40, 4, 7):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            drain(onlooker, pid, position)
    with pytest.raises(psycopg.errors.UndefinedObject):
        drain(onlooker, 1)


def test_terminated_session_can_be_read(tracer: Cluster, onlooker: Connection) -> None:
    with session(tracer) as client:
        pid = client.info.backend_pid
        traced(onlooker, client, "SELECT 'last words'")
        one(onlooker, "SELECT pg_terminate_backend(%s)", pid)
        with pytest.raises(psycopg.Error):
            client.execute("SELECT 1")
    eventually(lambda: seen(onlooker, pid)["ended"])
    position, _, ended, records = drain(onlooker, pid)
    assert ended
    assert Trace(records).calls("execute", "SELECT 'last words'")
    (error,) = [r for r in records if r.kind == "error"]
    assert (error.sqlstate, error.severity) == ("57P01", 2)
    assert records[-1].kind == "end"
    assert drain(onlooker, pid, position)[1:] == (0, True, [])
    assert one(onlooker, "SELECT sql_trace_reset()") >= 1
    with pytest.raises(psycopg.errors.UndefinedObject):
        drain(onlooker, pid)


def test_temporary_tables_of_a_terminated_session(tracer: Cluster, onlooker: Connection) -> None:
    """A process that ends removes them in a transaction of its own: no commit of what it ran."""
    with session(tracer) as client:
        pid = client.info.backend_pid
        client.execute("CREATE TEMP TABLE mine (x int)")
        traced(onlooker, client, "SELECT 1")

        def kill() -> None:
            until_it_waits(onlooker, client, "Timeout")
            time.sleep(0.3)
            one(onlooker, "SELECT pg_terminate_backend(%s)", pid)

        with during(kill), pytest.raises(psycopg.Error):
            client.execute("SELECT 'killed', pg_sleep(60)")
    eventually(lambda: seen(onlooker, pid)["ended"])
    trace = trace_of(onlooker, pid)
    killed = trace.one("execute", "SELECT 'killed'")
    assert killed.flags & (FAILED | ABORTED)
    assert killed.busy > 200_000_000
    assert len(trace.calls("rollback", "SELECT 'killed'")) == 1
    assert not trace.calls("commit", "SELECT 'killed'")
    assert not [r for r in trace.of("transaction") if r.event == "commit" and r.xid]


def test_kill_9_of_a_traced_session(binaries: Binaries) -> None:
    """The server restarts, as after any such death, and traces anew."""
    with tracing(binaries, others=()) as cluster:
        with session(cluster) as onlooker, session(cluster) as client:
            traced(onlooker, client, "SELECT 1", level=4)
            crash(cluster, client.info.backend_pid)
            with pytest.raises(psycopg.Error):
                client.execute("SELECT 1")
        with session(cluster) as onlooker, session(cluster) as client:
            assert not rows(onlooker, "SELECT * FROM pg_stat_sql_trace")
            assert traced(onlooker, client, "SELECT 'again'").calls("execute", "SELECT 'again'")


def test_no_memory_for_a_trace(tracer: Cluster, onlooker: Connection) -> None:
    """The session gets a warning, and goes on."""
    notices: list[str] = []
    with session(tracer) as client:
        client.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        limit_files(tracer, client.info.backend_pid, 1)
        client.execute("SET sql_trace.ring_size = '16MB'")
        client.execute("SET sql_trace.level = 4")
        for _ in range(3):
            assert one(client, "SELECT 1") == 1
        assert [
            t for t in notices if t.startswith("sql_trace cannot trace this session")
        ] == notices
        assert len(notices) == 1
        assert not rows(
            onlooker, "SELECT FROM pg_stat_sql_trace WHERE pid = %s", client.info.backend_pid
        )


def test_no_memory_at_all(tracer: Cluster, onlooker: Connection) -> None:
    """Not even for the report of that: the session goes on, and is traced when there is some."""
    with session(tracer) as client:
        pid = client.info.backend_pid
        one(client, "SELECT 1")
        limit_memory(tracer, pid, 0)
        one(onlooker, "SELECT sql_trace_set(%s, 4)", pid)
        for _ in range(3):
            assert one(client, "SELECT 1") == 1
        assert one(onlooker, "SELECT refused FROM pg_stat_sql_trace_info") > 0
        limit_memory(tracer, pid, None)
        assert one(client, "SELECT count(*) FROM generate_series(1, 100000)") == 100000


@pytest.mark.slow
def test_memory_does_not_grow(client: Connection, onlooker: Connection) -> None:
    """Over executions of every kind, errors and aborted cursors among them."""
    step = """DO $$BEGIN
        FOR i IN 1..4000 LOOP
            EXECUTE 'SELECT $1 + ' || i % 50 USING i;
            BEGIN PERFORM 1/(i - i) FROM pg_am; EXCEPTION WHEN OTHERS THEN NULL; END;
        END LOOP; END$$"""
    client.execute("SET sql_trace.level = 4")
    used = "SELECT sum(used_bytes) FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'"

    def work() -> int:
        client.execute(step.encode())
        for _ in range(20):
            client.execute("BEGIN; DECLARE c CURSOR FOR SELECT 1; FETCH c; ROLLBACK")
        return int(one(client, used))

    work()
    before = work()
    for _ in range(2):
        after = work()
    assert after - before < 2000, (before, after)
    assert drain(onlooker, client.info.backend_pid)[3]


@pytest.mark.slow
def test_memory_does_not_grow_over_100_000_statements(client: Connection) -> None:
    client.execute("SET sql_trace.level = 4")

    def memory() -> int:
        return int(one(client, "SELECT sum(total_bytes) FROM pg_backend_memory_contexts"))

    def work(n: int) -> None:
        for i in range(n):
            client.execute("SELECT %s::int + relnatts FROM pg_class LIMIT 1", (i,))

    work(2000)
    before = memory()
    work(100_000)
    assert memory() - before < 64 * 1024


def test_clock_can_be_chosen(client: Connection, onlooker: Connection) -> None:
    for clock in ("monotonic", "syscall", "monotonic_coarse"):
        client.execute(f"SET sql_trace.clock = {clock}".encode())
        trace = traced(onlooker, client, "SELECT pg_sleep(0.2)")
        execute = trace.one("execute", "SELECT pg_sleep")
        # the coarse clock stands still while a busy host keeps back the timer's interrupts
        assert execute.busy > (100e6 if clock == "monotonic_coarse" else 199e6)


def test_cpu_time(client: Connection, onlooker: Connection) -> None:
    client.execute("SET sql_trace.cpu_interval = 0")
    trace = traced(
        onlooker,
        client,
        "SELECT 1",
        "SELECT count(*) FROM generate_series(1, 300000)",
        "SELECT pg_sleep(0.1)",
    )
    read = [(r.time, r.cpu) for r in trace.records if r.kind in ("call", "request")]
    readings = [cpu for _, cpu in read if cpu >= 0]
    assert readings == sorted(readings)
    assert len(readings) >= 9
    busy = trace.one("execute", "SELECT count(*)")
    sleeping = trace.one("execute", "SELECT pg_sleep")
    before = max(cpu for at, cpu in read if at < busy.start and cpu >= 0)
    assert 5e6 < busy.cpu - before < busy.busy + 2e6
    before = max(cpu for at, cpu in read if at < sleeping.start and cpu >= 0)
    assert sleeping.cpu - before < 20e6
    client.execute("SET sql_trace.cpu_interval = -1")
    assert {c.cpu for c in traced(onlooker, client, "SELECT 2").of("call")} == {-1}
