"""The module together with others: waits on the same time line, pg_stat_statements, pgtare."""

import struct
from collections.abc import Iterator

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.servers import tracing
from tests.sessions import Connection, one, rows, session
from tests.trace_records import trace_of, traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

WAIT = struct.Struct("<IHHIIqq")  # seq, kind, depth, event, calls, start_ns, value


def waits_of(onlooker: Connection, pid: int, least_ns: int) -> list[tuple[int, int]]:
    """Start and length of long waits, in the time of the wait ring."""
    data = one(onlooker, "SELECT records FROM wait_event_trace_drain(%s, 0)", pid)
    return [
        (start, value)
        for _, kind, _, event, _, start, value in WAIT.iter_unpack(data)
        if kind == 1 and value >= least_ns and event >> 24 == 9
    ]


@pytest.mark.parametrize("level", [8, 12])
def test_waits_lie_on_the_same_time_line(
    client: Connection, onlooker: Connection, level: int
) -> None:
    pid = client.info.backend_pid
    has_waits = "SELECT waits FROM pg_stat_sql_trace WHERE pid = %s"
    traced(onlooker, client, "SELECT 1", level=4)
    assert not trace_of(onlooker, pid).of("waitring")
    assert not one(onlooker, has_waits, pid)
    client.execute(f"SET sql_trace.level = {level}".encode())
    client.execute("SELECT pg_sleep(0.05)")
    client.execute("SELECT 1")
    trace = trace_of(onlooker, pid)
    ring = trace.of("waitring")[-1]
    assert ring.exact == 1
    ((start, length),) = waits_of(onlooker, pid, 40_000_000)
    call = trace.one("execute", "SELECT pg_sleep")
    # the wait is the sleep, and within the call to the nanosecond
    assert call.start <= ring.zero + start
    assert ring.zero + start + length <= call.time
    assert length >= 49_900_000
    row = rows(onlooker, "SELECT waits, level FROM pg_stat_sql_trace WHERE pid = %s", pid)
    assert row == [(True, level)]
    # and they are given back
    client.execute("SET sql_trace.level = 1")
    captured = "SELECT capture FROM pg_stat_wait_event_timing_sessions WHERE pid = %s"
    assert one(onlooker, captured, pid) == one(client, "SHOW wait_event_timing.capture")


def test_waits_have_no_statements_that_the_trace_has(
    client: Connection, onlooker: Connection
) -> None:
    """The ring of waits tells of statements if somebody wants that ring itself."""
    pid = client.info.backend_pid
    read = 0

    def kinds() -> set[int]:
        nonlocal read
        for sql in ("SELECT pg_sleep(0.01)", "BEGIN", "SELECT 1", "ROLLBACK"):
            client.execute(sql.encode())
        ((read, data),) = rows(
            onlooker, "SELECT next, records FROM wait_event_trace_drain(%s, %s)", pid, read
        )
        return {kind for _, kind, *_ in WAIT.iter_unpack(data)}

    asked = "SELECT wait_event_timing_set(%s, %s)"
    client.execute("SET sql_trace.level = 8")
    kinds()  # what was before is no matter
    assert kinds() == {1}
    # another session wants it, and no longer; then the setting is another trace of its own
    rows(onlooker, asked, pid, "trace")
    assert {1, 2, 3} < kinds()
    client.execute("SET wait_event_timing.capture = trace")
    client.execute("SELECT 1")
    assert {1, 2, 3} < kinds()
    client.execute("SET sql_trace.level = 0")
    client.execute("SET sql_trace.level = 12")
    client.execute("SELECT 1")
    assert {1, 2, 3} < kinds()
    client.execute("SET wait_event_timing.capture = off")
    client.execute("SET sql_trace.level = 0")
    client.execute("SET sql_trace.level = 8")
    kinds()
    assert kinds() == {1}


def test_waits_go_on_when_their_capture_is_set(client: Connection, onlooker: Connection) -> None:
    """As a reload does in all sessions, traced ones among them."""
    pid = client.info.backend_pid
    client.execute("SET wait_event_timing.capture = off")
    client.execute("SET sql_trace.level = 8")
    for number, capture in enumerate(("stats", "trace", "stats"), start=1):
        client.execute(f"SET wait_event_timing.capture = {capture}".encode())
        client.execute("SELECT pg_sleep(0.05)")
        client.execute("SELECT 1")
        assert len(waits_of(onlooker, pid, 40_000_000)) == number
    client.execute("SET sql_trace.level = 0")
    captured = "SELECT capture FROM pg_stat_wait_event_timing_sessions WHERE pid = %s"
    assert one(onlooker, captured, pid) == "stats"


def test_time_line_after_a_change_of_clock(client: Connection, onlooker: Connection) -> None:
    pid = client.info.backend_pid
    client.execute("SET sql_trace.level = 8")
    client.execute("SELECT 1")
    client.execute("SET wait_event_timing.clock = monotonic")
    client.execute("SELECT pg_sleep(0.05)")
    client.execute("SELECT 1")
    trace = trace_of(onlooker, pid)
    ring = trace.of("waitring")[-1]
    assert ring.exact == 0
    ((start, length),) = waits_of(onlooker, pid, 40_000_000)
    call = trace.one("execute", "SELECT pg_sleep")
    # two clocks: each reading of both is true to a microsecond, and their rates are alike
    assert call.start - 5_000 <= ring.zero + start
    assert ring.zero + start + length <= call.time + 5_000


@pytest.fixture(params=["before", "after"])
def crowded(binaries: Binaries, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """pg_stat_statements loaded before or after, and our two other modules."""
    modules = ("wait_event_timing", "pgtare")
    settings = {"pg_stat_statements.track": "all", "sql_trace.level": 12}
    before = ["pg_stat_statements"] if request.param == "before" else []
    with tracing(binaries, settings, before, modules) as cluster:
        if not before:
            library = one_setting(cluster, "shared_preload_libraries")
            with cluster.connect() as connection:
                connection.autocommit = True
                libraries = ", ".join("'" + n.strip().strip('"') + "'" for n in library.split(","))
                connection.execute(
                    "ALTER SYSTEM SET shared_preload_libraries = "
                    f"{libraries}, 'pg_stat_statements'".encode()
                )
            cluster.restart()
        yield cluster


def one_setting(cluster: Cluster, name: str) -> str:
    with cluster.connect() as connection:
        return str(one(connection, f"SHOW {name}"))


def test_beside_other_modules(crowded: Cluster) -> None:
    with session(crowded) as client, session(crowded) as onlooker:
        client.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA public")
        client.execute("SELECT pg_stat_statements_reset()")
        for value in range(10):
            client.execute("SELECT %s::int AS counted", (value,), prepare=True)
        for _ in range(3):
            client.execute("DO $$BEGIN PERFORM count(*) FROM pg_am; END$$")
        trace = trace_of(onlooker, client.info.backend_pid)
        executions = trace.calls("execute", "SELECT $1::int AS counted")
        assert len(executions) == 10
        assert len(trace.of("binds")) >= 10
        counted = dict(rows(onlooker, "SELECT queryid, calls FROM pg_stat_statements"))
        assert counted[executions[0].query_id] == 10
        nested = trace.calls("execute", "SELECT count(*) FROM pg_am")
        assert [n.depth for n in nested] == [1] * 3
        assert counted[nested[0].query_id] == 3
        assert trace.of("waitring")


def test_parallel_query(client: Connection, onlooker: Connection) -> None:
    client.execute(
        "CREATE TEMP TABLE x (); DROP TABLE x; CREATE TABLE IF NOT EXISTS wide AS "
        "SELECT g AS n, repeat('x', 100) AS filler FROM generate_series(1, 30000) g; "
        "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; "
        "SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2"
    )
    trace = traced(onlooker, client, "SELECT count(*) FROM wide WHERE n % 2 = 0")
    execute = trace.one("execute", "SELECT count(*) FROM wide")
    blocks = one(client, "SELECT pg_relation_size('wide') / 8192")
    # the workers' blocks are in it
    assert execute.hit + execute.read >= blocks
