"""Requests of any shape: what one record tells of them is what their own records would."""

import contextlib
import random
import struct
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, bare_session, one, session
from tests.trace_decoders import check_reader, decoded_kinds
from tests.trace_records import (
    Record,
    Trace,
    check_whole,
    decode,
    drain,
    trace_of,
    tracing_session,
)
from tests.wire_protocol import Wire, message

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

PARSE_EMPTY = message(b"P", b"\0\0" + struct.pack("!h", 0))
BIND = message(b"B", b"\0\0" + struct.pack("!hhh", 0, 0, 0))
EXECUTE = message(b"E", b"\0" + struct.pack("!i", 0))
SYNC = message(b"S")
#: Requests of a run; each shape is drawn a few times.
REQUESTS = 60


def simple(client: Connection, key: int) -> None:
    client.execute(f"SELECT {key} AS literal")


def prepared(client: Connection, key: int) -> None:
    client.execute("SELECT g FROM generate_series(1, %s::int) g", (key % 5,), prepare=True)


def unprepared(client: Connection, key: int) -> None:
    client.execute("SELECT %s::text || 'x', NULL::int, %s::int8", (f"value {key}", key))


def pipeline(client: Connection, key: int) -> None:
    with client.pipeline():
        for i in range(key % 9):
            client.execute("SELECT %s::int AS piped", (i,), prepare=True)
        client.execute("SELECT 'other'")


def broken_pipeline(client: Connection, key: int) -> None:
    with client.pipeline():
        client.execute("SELECT 1")
        client.execute("SELECT 1 / %s::int", (0,))
        client.execute("SELECT 2")


def cursor(client: Connection, key: int) -> None:
    with client.transaction(), client.cursor(name="c") as c:
        c.execute("SELECT generate_series(1, 20)")
        c.fetchmany(3)
        c.fetchmany(4)


def several(client: Connection, key: int) -> None:
    client.execute(f"SELECT 1; SELECT {key}; SELECT generate_series(1, 3)")


def empty(client: Connection, key: int) -> None:
    client.execute(";")


def error(client: Connection, key: int) -> None:
    client.execute(f"SELECT {key} / 0")


def no_statement(client: Connection, key: int) -> None:
    client.execute("SELEC 1")


def late_error(client: Connection, key: int) -> None:
    client.execute("SELECT 10 / (3 - g) FROM generate_series(1, 5) g")


def nested(client: Connection, key: int) -> None:
    client.execute("DO $$BEGIN PERFORM 1; PERFORM count(*) FROM pg_am; END$$")


def caught(client: Connection, key: int) -> None:
    client.execute(
        "DO $$BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN PERFORM 2; END$$"
    )


def transaction(client: Connection, key: int) -> None:
    with client.transaction():
        client.execute("SELECT 'within'")
        client.execute("INSERT INTO shapes VALUES (%s)", (key,))


def undone(client: Connection, key: int) -> None:
    with contextlib.suppress(psycopg.Rollback), client.transaction():
        with client.transaction():
            client.execute("SELECT 'saved'")
        client.execute("INSERT INTO shapes VALUES (%s)", (key,))
        raise psycopg.Rollback


def written(client: Connection, key: int) -> None:
    client.execute("INSERT INTO shapes VALUES (%s), (%s)", (key, key + 1))


def cancelled(client: Connection, key: int) -> None:
    client.execute("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(20)")


def copied(client: Connection, key: int) -> None:
    with client.cursor().copy("COPY (SELECT generate_series(1, 4)) TO STDOUT") as copy:
        assert len(list(copy)) == 4


def many_values(client: Connection, key: int) -> None:
    client.execute("SELECT " + ", ".join(["%s::int8"] * 50), tuple(range(key, key + 50)))


SHAPES = (
    *(simple, prepared, unprepared, pipeline, broken_pipeline, cursor, several, empty, error),
    *(no_statement, late_error, nested, caught, transaction, undone, written, cancelled),
    *(copied, many_values),
)


def draws(seed: int) -> Iterator[tuple[Any, int]]:
    """Each shape, and more at random."""
    rng = random.Random(seed)
    shapes = list(SHAPES)
    shapes += rng.choices((simple, prepared, unprepared, *SHAPES), k=REQUESTS - len(shapes))
    rng.shuffle(shapes)
    for shape in shapes:
        yield shape, rng.randrange(1000)


def bytes_of(cluster: Cluster, onlooker: Connection, fused: bool, seed: int) -> bytes:
    """The stream of a session that sends all requests."""
    with bare_session(cluster) as client:
        pid = client.info.backend_pid
        client.execute(f"SET sql_trace.cpu_interval = {-1 if fused else 0}".encode())
        client.execute("SET sql_trace.bind_length = -1; SET sql_trace.level = 12")
        for shape, key in draws(seed):
            with contextlib.suppress(psycopg.Error):
                shape(client, key)
        data: bytes = one(onlooker, "SELECT data FROM sql_trace_drain(%s, 0)", pid)
        assert decoded_kinds(data) >= ({15} if fused else {3})
        return data


def fetches_joined(records: list[Record]) -> list[Record]:
    """Fetches in a row are joined for a millisecond only."""
    found: list[Record] = []
    for record in records:
        last = found[-1] if found else None
        if last and "fetch" == last.fields.get("call_kind") == record.fields.get("call_kind"):
            last.fields["rows"] += record.rows
        else:
            found.append(record)
    return found


def told(trace: Trace) -> list[tuple[Any, ...]]:
    """What does not depend on the time, nor on what caches hold."""
    texts = trace.texts()
    found: list[tuple[Any, ...]] = []
    for r in fetches_joined(trace.records):
        if r.kind == "call":
            names = "call_kind flags sqlstate parent execution rows fetches"
            flags = r.flags & ~0x4E  # groups of counters
            values = [r.fields[name] for name in names.split()]
            values[1], values[6] = flags, 0
            found.append((r.call, r.depth, *values, texts.get(r.text), r.plan != 0))
        elif r.kind == "binds":
            found.append(("binds", r.call, [(v["state"], v["bytes"]) for v in r.values]))
        elif r.kind == "transaction":
            found.append(("transaction", r.event, r.xid != 0))
        elif r.kind == "request":
            found.append(("request", r.status, r.messages))
        elif r.kind == "error":
            found.append(("error", r.call, r.depth, r.sqlstate, r.message, texts.get(r.text)))
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_requests_of_any_shape(tracer: Cluster, onlooker: Connection, seed: int) -> None:
    onlooker.execute("DROP TABLE IF EXISTS shapes; CREATE TABLE shapes (key int)")
    fused, own = (bytes_of(tracer, onlooker, kind, seed) for kind in (True, False))
    traces = [Trace(decode(data)) for data in (fused, own)]
    for trace in traces:
        check_whole(trace)
    ours, theirs = (told(trace) for trace in traces)
    for mine, other in zip(ours, theirs, strict=False):
        assert mine == other
    assert len(ours) == len(theirs)
    check_reader(fused, traces[0])


def test_an_open_request_is_seen(tracer: Cluster, onlooker: Connection) -> None:
    """While its statement runs, with what it has done so far; afterwards a record tells of it."""
    with session(tracer) as client:
        pid = client.info.backend_pid
        client.execute("SET sql_trace.level = 4")
        at = drain(onlooker, pid)[0]
        # it reads its own trace
        query = "SELECT data FROM sql_trace_drain(%s::int, %s::int8)"
        row = client.execute(query, (pid, at)).fetchone()
        assert row is not None
        (opened,) = [r for r in decode(row[0]) if r.kind == "open"]
        assert (opened.number, opened.flags, opened.messages) == (0, 1, 0)
        kinds = [item.get("kind", "binds") for item in opened.items]
        assert kinds == [1, 3, "binds", 2]  # up to the bind, which has ended
        answered = drain(onlooker, pid, at)[3]
        assert not any(r.kind == "open" for r in answered)
        (execution,) = [r for r in answered if r.fields.get("call_kind") == "execute"]
        assert execution.call == opened.call + opened.items[2]["number"]


LOOP = """CREATE OR REPLACE FUNCTION caught_in_a_loop() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE one record; none int; BEGIN
        FOR one IN SELECT g FROM generate_series(1, 300) g LOOP
            BEGIN
                IF one.g = 100 THEN none := 1 / (one.g - one.g); END IF;
            EXCEPTION WHEN division_by_zero THEN none := 0;
            END;
        END LOOP;
    END$$"""


def test_fetches_come_after_what_was_kept_back(tracer: Cluster, onlooker: Connection) -> None:
    """A subtransaction ends between fetches, so that the request makes records of its own."""
    onlooker.execute(LOOP.encode())
    with session(tracer) as client, tracing_session(onlooker, client, 12) as trace:
        for _ in range(3):  # from the second time on its plans are kept
            client.execute("SELECT caught_in_a_loop()")
    times = [record.time for record in trace.records if record.number]
    assert times == sorted(times)
    assert any(record.fields.get("fetches", 0) > 1 for record in trace.records)


def test_more_messages_than_one_record_can_count(tracer: Cluster, onlooker: Connection) -> None:
    executes = 66_000
    with (
        session(tracer) as client,
        tracing_session(onlooker, client) as trace,
        Wire(client) as wire,
    ):
        reader = threading.Thread(target=wire.read_until_ready)
        reader.start()
        wire.send(PARSE_EMPTY, BIND, EXECUTE * executes, SYNC)
        reader.join()
    assert [record.messages for record in trace.of("request")] == [executes]


def test_the_coarse_clock_does_not_keep_readings_of_cpu_time(
    tracer: Cluster, onlooker: Connection
) -> None:
    with session(tracer) as client:
        client.execute("SET sql_trace.clock = monotonic_coarse")
        client.execute("SET sql_trace.cpu_interval = 0")
        with tracing_session(onlooker, client) as trace:
            for _ in range(100):
                client.execute("SELECT count(*) FROM generate_series(1, 300)")
        found = trace.of("request")
    assert len({record.cpu for record in found}) == len(found) >= 100


def test_a_portal_that_the_next_request_closes(tracer: Cluster, onlooker: Connection) -> None:
    """Its end is noticed first, but what the request records as it begins comes before."""
    some = message(b"E", b"\0" + struct.pack("!i", 5))
    parse = message(b"P", b"\0SELECT generate_series(1, 100)\0" + struct.pack("!h", 0))
    with bare_session(tracer) as client:
        pid = client.info.backend_pid
        client.execute("SET sql_trace.level = 1")
        client.execute("BEGIN")
        with Wire(client) as wire:
            wire.send(parse, BIND, some, SYNC)
            wire.read_until_ready()
            one(onlooker, "SELECT sql_trace_set(%s, 4)", pid)
            wire.send(BIND, some, SYNC)
            wire.read_until_ready()
        trace = trace_of(onlooker, pid)
    assert [level.level for level in trace.of("level")] == [1, 4]
    check_whole(trace)


def test_a_request_that_only_goes_on_with_a_portal(tracer: Cluster, onlooker: Connection) -> None:
    """It begins when its message arrives, at the first run of the portal and at later ones."""
    sql = b"SELECT pg_sleep(0.05) FROM generate_series(1, 9)"
    one_row = message(b"E", b"p\0" + struct.pack("!i", 1))
    bind = message(b"B", b"p\0\0" + struct.pack("!hhh", 0, 0, 0))
    with bare_session(tracer) as client:
        client.execute("SET sql_trace.level = 1")
        client.execute("BEGIN")
        with Wire(client) as wire:
            wire.send(message(b"P", b"\0" + sql + b"\0" + struct.pack("!h", 0)), bind, SYNC)
            wire.read_until_ready()
            for _ in range(3):
                wire.send(one_row, SYNC)
                wire.read_until_ready()
        trace = trace_of(onlooker, client.info.backend_pid)
    check_whole(trace)
    times = [request.time - request.start for request in trace.of("request")]
    assert all(time >= 50_000_000 for time in times[-3:]), times


def test_level_and_application_outlast_a_request_that_overruns_the_ring(
    tracer: Cluster, onlooker: Connection
) -> None:
    with session(tracer, application_name="first") as client:
        pid = client.info.backend_pid
        client.execute("SET sql_trace.ring_size = '64kB'")
        client.execute("SET sql_trace.level = 1")
        client.execute("SET application_name = 'second'")
        client.execute(
            "DO $$BEGIN FOR i IN 1..3000 LOOP EXECUTE 'SELECT 1 /* '||i||'*/'; END LOOP; END$$"
        )
        trace = trace_of(onlooker, pid)
    assert [record.application for record in trace.of("application")] == ["second"]
    assert [record.level for record in trace.of("level")] == [1]
