"""The recorder: sessions keep what they did last in small rings of one area, for nobody."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtare.observing.trace.analysis.ledger import Ledger, ledger
from pgtare.observing.trace.analysis.profile import profile
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from tests.commands import in_process, words
from tests.preloaded import preloaded
from tests.servers import tracing
from tests.sessions import Connection, eventually, executed_s, one, rows, session
from tests.trace_records import check_whole, drain, grant_usage, trace_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: A piece of the area: 16 kB of records, and the header of a ring. A session has two at first.
PIECE_KB, PIECES = 18, 64
#: A ring that was written within this time is not taken from its owner.
REST_S = 2.2


def memory_for(pieces: int) -> str:
    """A setting with which rings have so many pieces: an eighth or 64 kB is the dictionary."""
    rings_kb = PIECE_KB * pieces
    return f"{max(rings_kb * 8 // 7, rings_kb + 64) + 1}kB"


SETTINGS: dict[str, Value] = {"sql_trace.recorder_memory": memory_for(PIECES)}
ON = "-c sql_trace.recorder=on"


@pytest.fixture(scope="module")
def server(each_server: Binaries) -> Iterator[Cluster]:
    """A server that records the sessions that want it."""
    with tracing(each_server, SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def onlooker(server: Cluster) -> Iterator[Connection]:
    """A session that is not recorded, on a server on which nothing is."""
    with session(server) as connection:
        eventually(lambda: freed(connection) == PIECES * PIECE_KB * 1024)
        yield connection


def use(onlooker: Connection, column: str) -> int:
    return int(one(onlooker, f"SELECT {column} FROM pg_stat_sql_trace_recorder"))


def freed(onlooker: Connection) -> int:
    """What is free without the rings of sessions that have ended."""
    onlooker.execute("SELECT sql_trace_reset(), wait_event_timing_reset()")
    return use(onlooker, "free_bytes")


def entry(onlooker: Connection, client: Connection, columns: str) -> tuple[Any, ...]:
    (found,) = rows(
        onlooker,
        f"SELECT {columns} FROM pg_stat_sql_trace WHERE pid = %s",
        client.info.backend_pid,
    )
    return found


def segments(client: Connection) -> set[str]:
    """Dynamic segments that a session has mapped."""
    lines = Path(f"/proc/{client.info.backend_pid}/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if "/dev/shm/PostgreSQL." in line}  # noqa: S108


def said(onlooker: Connection, client: Connection) -> set[str]:
    """The texts of a session's calls."""
    return set(trace_of(onlooker, client.info.backend_pid).texts().values())


def test_what_nobody_asked_for_can_be_grabbed_with_its_waits(
    server: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    with session(server, application_name="shop", options=ON) as client:
        slept_s = executed_s(client, "SELECT pg_sleep(0.2)")
        assert segments(client) == segments(onlooker)
        line = "trace grab {} --dsn {} --application shop --reserve 0"
        done = in_process(*words(line, tmp_path / "g", server.dsn()))
        assert done.returncode == 0, done.stderr
        assert segments(client) == segments(onlooker)
    found = profile(ledger(load(tmp_path / "g")))
    asleep = sum(line.total_ns for line in found.lines if "PgSleep" in line.name)
    assert 0.2 <= asleep / 1e9 <= slept_s + 0.01


def test_a_ring_grows_with_all_that_is_in_it(server: Cluster, onlooker: Connection) -> None:
    with session(server, options=ON) as client:
        pid = client.info.backend_pid
        client.execute("SELECT 0")
        began, size = entry(onlooker, client, "started, ring_bytes")
        assert size == 16 * 1024
        position, _, _, records = drain(onlooker, pid)
        sizes = set()
        while size < 256 * 1024:
            for i in range(30):
                client.execute("SELECT %s::int", (i,), prepare=True)
            position, lost, _, more = drain(onlooker, pid, position)
            assert lost == 0
            records += more
            size = entry(onlooker, client, "ring_bytes")[0]
            sizes.add(size)
        assert sizes >= {32 * 1024, 64 * 1024, 128 * 1024, 256 * 1024}
        numbers = {record.number for record in records if record.number}
        assert numbers == set(range(1, len(numbers) + 1))
        # what is in the ring now is all of it, too
        everything = trace_of(onlooker, pid)
        assert {record.number for record in everything.records if record.number} == numbers
        check_whole(everything)
        assert entry(onlooker, client, "started, ring_bytes") == (began, 256 * 1024)
        wait_ring = "SELECT records FROM wait_event_timing_rings() WHERE pid = %s"
        while one(onlooker, wait_ring, pid) == 512:
            for _ in range(100):
                client.execute("SELECT pg_sleep(0)")
        waits = rows(onlooker, "SELECT number FROM wait_event_trace(%s)", pid)
        assert [number for (number,) in waits] == list(range(len(waits)))


@pytest.mark.slow
def test_rings_that_grow_leave_room_for_those_that_begin(
    server: Cluster, onlooker: Connection
) -> None:
    before = use(onlooker, "refused"), use(onlooker, "gave_way")
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(session(server, options=ON)) for _ in range(3)]
        for client in busy:
            client.execute("SET sql_trace.recorder_ring = '1MB'")
            client.execute("BEGIN")  # what an open transaction did is not taken
            for i in range(4000):
                client.execute("SELECT %s::int", (i,), prepare=True)
        assert use(onlooker, "free_bytes") <= PIECE_KB * 1024 * PIECES // 4
        for _ in range(PIECES // 8 // 2):
            late = stack.enter_context(session(server, options=ON))
            late.execute("SELECT 'it is late'")
            assert "SELECT 'it is late'" in said(onlooker, late)
    assert (use(onlooker, "refused"), use(onlooker, "gave_way")) == before


def test_texts_of_usual_length_are_whole_in_a_ring_that_begins(
    server: Cluster, onlooker: Connection
) -> None:
    long = "SELECT '" + "x" * 3900 + "'"
    with session(server, options=ON) as client:
        client.execute(long.encode())
        assert entry(onlooker, client, "ring_bytes") == (16 * 1024,)
        assert long in said(onlooker, client)


def test_what_is_overwritten_is_no_loss(server: Cluster, onlooker: Connection) -> None:
    with session(server, options=f"{ON} -c sql_trace.recorder_ring=64kB") as client:
        for i in range(2000):
            client.execute("SELECT %s::int", (i,), prepare=True)
        written, lost, size = entry(onlooker, client, "bytes, lost_bytes, ring_bytes")
        assert written > 2 * size
        assert (lost, size) == (0, 64 * 1024)
        pid = client.info.backend_pid
    unread = "SELECT unread_sessions FROM pg_stat_sql_trace_info"
    before = one(onlooker, unread)
    ended = "SELECT ended IS NOT NULL FROM pg_stat_sql_trace WHERE pid = %s"
    eventually(lambda: one(onlooker, ended, pid))
    assert drain(onlooker, pid)[2]  # it can be read
    onlooker.execute("SELECT sql_trace_reset()")
    assert one(onlooker, unread) == before


def test_parallel_workers_have_rings_in_the_area_too(server: Cluster, onlooker: Connection) -> None:
    onlooker.execute("CREATE TABLE wide AS SELECT n, 'x' || n AS x FROM generate_series(1, 9999) n")
    try:
        with session(server, options=ON) as client:
            client.execute("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0")
            client.execute("SET min_parallel_table_scan_size = 0")
            client.execute("SELECT count(*) FROM wide WHERE x LIKE '%7'")
            of_workers = "SELECT count(*) FROM wait_event_timing_rings() WHERE leader_pid = %s"
            workers = eventually(lambda: one(onlooker, of_workers, client.info.backend_pid))
            assert use(onlooker, "rings") == 2 + workers
    finally:
        onlooker.execute("DROP TABLE wide")


@contextlib.contextmanager
def crowd(server: Cluster, n: int) -> Iterator[list[Connection]]:
    """Recorded sessions, which have said who they are, one after the other."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(session(server, options=ON)) for _ in range(n)]
        for i, client in enumerate(found):
            client.execute(f"SELECT 'it is {i}'".encode())
        yield found


@pytest.mark.slow
def test_rings_give_way_after_the_clock_was_set_back(wheel: Binaries) -> None:
    """When they were written lies two hours ahead then, which is not a moment ago."""
    settings: dict[str, Value] = {"sql_trace.recorder_memory": memory_for(4)}
    with (
        preloaded(wheel, "step_clock.c", "PGTARE_CLOCK_STEP", 8) as (binaries, step),
        tracing(wheel, settings, run=binaries) as cluster,
        session(cluster) as watching,
        crowd(cluster, 2),
    ):
        assert use(watching, "free_bytes") == 0
        step[:] = struct.pack("q", -7_200_000_000)
        with session(cluster, options=ON) as late:
            late.execute("SELECT 'it is late'")
            assert use(watching, "gave_way") == 2
            assert "SELECT 'it is late'" in said(watching, late)


@pytest.mark.slow
def test_a_client_that_thought_for_a_while_keeps_what_it_did_just_now(wheel: Binaries) -> None:
    """The last wait that is recorded began long ago; its ring was written at its end."""
    settings: dict[str, Value] = {"sql_trace.recorder_memory": memory_for(2)}
    with (
        tracing(wheel, settings) as cluster,
        session(cluster) as watching,
        crowd(cluster, 1) as (client,),
        session(cluster, options=ON) as late,
    ):
        assert use(watching, "free_bytes") == 0
        refused = use(watching, "refused")
        time.sleep(REST_S)
        client.execute("SELECT 'still there'")
        late.execute("SELECT 'too late'")
        assert use(watching, "gave_way") == 0
        assert use(watching, "refused") > refused
        assert "SELECT 'still there'" in said(watching, client)
        time.sleep(REST_S)
        late.execute("SELECT 'it is late'")
        assert use(watching, "gave_way") == 2


def test_the_quietest_sessions_give_way(server: Cluster, onlooker: Connection) -> None:
    gave_way, refused = use(onlooker, "gave_way"), use(onlooker, "refused")
    room = PIECES // 2
    with crowd(server, room) as clients, contextlib.ExitStack() as stack:
        for client in clients:
            client.execute("BEGIN")
        assert use(onlooker, "free_bytes") == 0
        # not before: a busy machine may take so long for the others that the first have rested
        late = stack.enter_context(session(server, options=ON))
        time.sleep(REST_S)
        late.execute("SELECT 'too late'")  # what open transactions do is not taken
        assert use(onlooker, "gave_way") == gave_way
        assert use(onlooker, "refused") > refused
        for client in clients[1:]:
            client.execute("COMMIT")
        time.sleep(REST_S)
        for client in clients[2:]:
            client.execute("SELECT 'still there'")
        late.execute("SELECT 'it is late'")
        assert use(onlooker, "gave_way") - gave_way == 2  # calls and waits
        assert "SELECT 'it is late'" in said(onlooker, late)
        assert "SELECT 'it is 0'" in said(onlooker, clients[0])
        with pytest.raises(psycopg.errors.UndefinedObject):
            said(onlooker, clients[1])
        for i, client in enumerate(clients[2:], 2):
            assert f"SELECT 'it is {i}'" in said(onlooker, client)
        # whoever gave way begins anew as soon as there is room
        clients[2].close()
        eventually(lambda: freed(onlooker) == 2 * PIECE_KB * 1024)
        clients[1].execute("SELECT 'back again'")
        assert "SELECT 'back again'" in said(onlooker, clients[1])
        assert "SELECT 'it is 1'" not in said(onlooker, clients[1])
        # its time begins anew as well
        check_whole(trace_of(onlooker, clients[1].info.backend_pid))


def test_nobody_reads_another_sessions_records(server: Cluster, onlooker: Connection) -> None:
    """Rings go from hand to hand while all of them are read."""
    stop, wrong, read = threading.Event(), [], 0

    def work(i: int) -> None:
        while not stop.is_set():
            with session(server, options=ON) as client:
                for _ in range(3):
                    client.execute(f"SELECT 'it is {i} of {client.info.backend_pid}'".encode())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        begun = time.monotonic()
        while read < 50 or time.monotonic() - begun < 2:
            for (pid,) in rows(onlooker, "SELECT DISTINCT pid FROM pg_stat_sql_trace"):
                with contextlib.suppress(psycopg.errors.UndefinedObject):
                    found = " ".join(trace_of(onlooker, pid).texts().values())
                    wrong += [p for p in re.findall(r"it is \d of (\d+)", found) if int(p) != pid]
                    read += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_role_and_an_application_can_be_recorded(server: Cluster, onlooker: Connection) -> None:
    onlooker.execute("CREATE ROLE cashier LOGIN SUPERUSER")
    onlooker.execute("ALTER ROLE cashier SET sql_trace.recorder = on")
    server.configure({"sql_trace.application": "shop*=recorder"})
    server.reload()
    try:
        with session(server, user="cashier") as client, session(server) as other:
            client.execute("SELECT 1")
            other.execute("SELECT 1")
            assert entry(onlooker, client, "level, reason") == (8, "recorder")
            listed = "SELECT count(*) FROM pg_stat_sql_trace WHERE pid = %s"
            assert one(onlooker, listed, other.info.backend_pid) == 0
        # behind a pooler one session serves applications in turn
        with session(server, application_name="shop 1") as client:
            client.execute("SELECT 'for the first'")
            began = entry(onlooker, client, "started")
            client.execute("SET application_name = 'shop 2'")
            client.execute("SELECT 'for the second'")
            client.execute("SET application_name = 'office'")
            client.execute("SELECT 'for the office'")
            client.execute("SET application_name = 'shop 3'")
            client.execute("SELECT 'for the third'")
            found = trace_of(onlooker, client.info.backend_pid)
            assert "SELECT 'for the office'" not in found.texts().values()
            assert {"SELECT 'for the first'", "SELECT 'for the third'"} <= set(
                found.texts().values()
            )
            names = [r.fields["application"] for r in found.records if r.kind == "application"]
            assert names == ["shop 2", "shop 3"]
            assert entry(onlooker, client, "started") == began
    finally:
        server.configure({"sql_trace.application": None})
        server.reload()
        onlooker.execute("DROP ROLE cashier")


def test_a_trace_that_somebody_asks_for_goes_before_the_recorder(
    server: Cluster, onlooker: Connection
) -> None:
    with session(server, options=ON) as client:
        pid = client.info.backend_pid
        client.execute("SELECT 'before'")
        began = entry(onlooker, client, "started")
        onlooker.execute("SELECT sql_trace_set(%s, 4)", (pid,))
        client.execute("SELECT 'meanwhile'")
        assert entry(onlooker, client, "level, reason, started") == (4, "sql_trace_set", *began)
        # it goes on, however long the session is quiet
        time.sleep(REST_S)
        with crowd(server, PIECES // 2):
            assert {"SELECT 'before'", "SELECT 'meanwhile'"} <= said(onlooker, client)
        onlooker.execute("SELECT sql_trace_set(%s, NULL)", (pid,))
        client.execute("SELECT 'after'")
        assert entry(onlooker, client, "level, reason, started") == (8, "recorder", *began)
        onlooker.execute("SELECT sql_trace_set(%s, 0)", (pid,))
        client.execute("SELECT 'not for you'")
        assert "SELECT 'not for you'" not in said(onlooker, client)


def test_a_recording_reads_the_rings_that_are_there(
    server: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            client.execute("SELECT 'meanwhile'")
            time.sleep(0.02)

    with session(server, options=ON) as client:
        client.execute("SELECT 'before'")
        thread = threading.Thread(target=work)
        thread.start()
        try:
            line = "trace record {} --dsn {} --pid {} --level 4 --duration 1s --reserve 0"
            done = in_process(*words(line, tmp_path / "r", server.dsn(), client.info.backend_pid))
        finally:
            stop.set()
            thread.join()
        assert done.returncode == 0, done.stderr
        assert segments(client) == segments(onlooker)
        client.execute("SELECT 'after'")
        assert entry(onlooker, client, "level, reason") == (8, "recorder")
    book = ledger(load(tmp_path / "r"))
    (process,) = [p for p in book.processes if p.leader_pid is None]
    texts = process.stream.texts
    found = {texts[int(c["text"])].text for c in book.calls if int(c["text"]) in texts}
    assert "SELECT 'meanwhile'" in found
    assert not {"SELECT 'before'", "SELECT 'after'"} & found


@pytest.mark.slow
def test_many_sessions_share_the_memory(wheel: Binaries) -> None:
    sessions, pieces = 500, 240
    settings: dict[str, Value] = {
        "sql_trace.recorder_memory": memory_for(pieces),
        "sql_trace.recorder": True,
        "max_connections": sessions + 10,
    }
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(tracing(wheel, settings))
        onlooker = stack.enter_context(session(server, options="-c sql_trace.recorder=off"))
        clients = [stack.enter_context(session(server)) for _ in range(sessions)]
        for turn in range(3):
            for i, client in enumerate(clients):
                client.execute(f"SELECT 'it is {i}, {turn}'".encode())
            time.sleep(REST_S)
        assert use(onlooker, "bytes") == PIECE_KB * pieces * 1024
        assert use(onlooker, "rings") <= pieces
        assert use(onlooker, "gave_way") > 0
        assert use(onlooker, "refused") > 0
        # the server has some of its own, for its statistics
        assert len(set().union(*map(segments, clients))) < 20
        listed = rows(onlooker, "SELECT pid FROM pg_stat_sql_trace")
        assert pieces // 4 < len(listed) <= pieces
        numbers = {client.info.backend_pid: i for i, client in enumerate(clients)}
        for (pid,) in listed:
            texts = trace_of(onlooker, pid).texts().values()
            assert {t for t in texts if "it is" in t} <= {
                f"SELECT 'it is {numbers[pid]}, {turn}'" for turn in range(3)
            }


def test_others_see_nothing_of_it(server: Cluster, onlooker: Connection) -> None:
    onlooker.execute("CREATE ROLE visitor LOGIN")
    grant_usage(onlooker, "visitor")
    try:
        with session(server, options=ON) as client, session(server, user="visitor") as visitor:
            client.execute("SELECT 'mine'")
            pid = client.info.backend_pid
            assert rows(visitor, "SELECT pid FROM pg_stat_sql_trace") == []
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                drain(visitor, pid)
    finally:
        onlooker.execute("DROP OWNED BY visitor")
        onlooker.execute("DROP ROLE visitor")


def test_without_memory_there_is_one_warning(tracer: Cluster) -> None:
    with session(tracer) as client:
        notices: list[str] = []
        client.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        refused = "SELECT refused FROM pg_stat_sql_trace_info"
        before = one(client, refused)
        client.execute("SET sql_trace.recorder = on")
        for _ in range(3):
            client.execute("SELECT 1")
        assert len([n for n in notices if "sql_trace cannot record this session" in n]) == 1
        assert one(client, refused) == before + 1
        assert rows(client, "SELECT bytes, rings FROM sql_trace_recorder()") == [(0, 0)]


def test_the_recorder_outlives_a_crash(server: Cluster) -> None:
    with session(server, options=ON) as client:
        client.execute("SELECT 1")
        os.kill(client.info.backend_pid, signal.SIGKILL)

    def restarted() -> bool:
        with contextlib.suppress(psycopg.OperationalError), session(server) as connection:
            return use(connection, "rings") == 0
        return False

    eventually(restarted, 60)
    with session(server) as onlooker, session(server, options=ON) as client:
        client.execute("SELECT 'after the crash'")
        assert said(onlooker, client) >= {"SELECT 'after the crash'"}
        assert use(onlooker, "rings") == 2


def taken(server: Cluster, number: int, to: Path) -> tuple[Ledger, set[str]]:
    """A kept trace, and its texts."""
    done = in_process("trace", "kept", str(number), "--dsn", server.dsn(), "--out", str(to))
    assert done.returncode == 0, done.stderr
    book = ledger(load(to))
    return book, {text.text for p in book.processes for text in p.stream.texts.values()}


def test_a_trigger_keeps_what_the_recorder_has(
    server: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    """The ring rests when its session has answered, and is copied nevertheless."""
    with session(server, options=f"{ON} -c sql_trace.keep_slower_than=1000") as client:
        client.execute("SELECT 'before'")
        slept_s = executed_s(client, "SELECT pg_sleep(1.2)")
        every = "SELECT id, cause FROM sql_trace_kept()"
        ((number, cause),) = eventually(lambda: rows(onlooker, every))
        assert cause == "request"
        client.execute("SELECT 'after'")
        book, texts = taken(server, number, tmp_path / "k.pgtrace")
        assert {"SELECT 'before'", "SELECT pg_sleep(1.2)"} <= texts
        asleep = [line.total_ns for line in profile(book).lines if "PgSleep" in line.name]
        assert 1.2 <= sum(asleep) / 1e9 <= slept_s + 0.01
        # and the recorder goes on
        assert "SELECT 'after'" in said(onlooker, client)
        assert entry(onlooker, client, "ring_bytes") == (16 * 1024,)
    onlooker.execute("SELECT sql_trace_kept_forget(%s)", (number,))


@pytest.mark.slow
def test_a_ring_that_is_kept_of_an_ended_session_is_not_taken(
    server: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    options = f"{ON} -c sql_trace.keep_sqlstates=57P01"
    with session(server, options=options) as client:
        client.execute("SELECT 'its last words'")
        onlooker.execute("SELECT pg_terminate_backend(%s)", (client.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    ((number,),) = eventually(lambda: rows(onlooker, "SELECT id FROM sql_trace_kept()"))
    time.sleep(REST_S)
    with contextlib.ExitStack() as stack:
        for _ in range(PIECES + 4):
            other = stack.enter_context(session(server, options=ON))
            other.execute("SELECT 'somebody else'")
    time.sleep(REST_S)
    _, texts = taken(server, number, tmp_path / "k.pgtrace")
    assert "SELECT 'its last words'" in texts
    assert "SELECT 'somebody else'" not in texts
    onlooker.execute("SELECT sql_trace_kept_forget(%s)", (number,))
