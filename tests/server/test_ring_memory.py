"""Rings leave room for everybody's queries, while sessions are traced and afterwards."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import Loadable, loadable
from tests.servers import tracing
from tests.sessions import Connection, eventually, one, rows, session
from tests.shorter_modules import KEEP_ENDED_S, shorter
from tests.small_shared_memory import Volume, hash_join, hash_table, small_shm
from tests.trace_records import drain
from tests.trace_rings import since, unread

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MB = 1 << 20
#: What rings may take of 64 MB, and how much of that those of sessions that have ended.
BUDGET, KEPT_BUDGET = 8 * MB, 4 * MB
#: The size of rings as installed.
USUAL = {"sql_trace.ring_size": "4MB", "max_connections": 60}

Server = tuple[Cluster, Volume]


@contextlib.contextmanager
def small_server(
    binaries: Binaries,
    mebibytes: int,
    load: Callable[[Binaries, str], Loadable] = loadable,
    **others: str,
) -> Iterator[Server]:
    """A server with both modules on a small /dev/shm."""
    settings = {**USUAL, **others}
    with small_shm(mebibytes) as volume, tracing(binaries, settings, load=load) as cluster:
        hash_table(cluster)
        yield cluster, volume


@pytest.fixture(scope="module")
def shared_server(each_server: Binaries) -> Iterator[Server]:
    with small_server(each_server, 64) as server:
        yield server


@pytest.fixture
def small(shared_server: Server) -> Iterator[Server]:
    """With the 64 MB that a container has, and no trace."""
    cluster, _ = shared_server
    yield shared_server
    configure(cluster, None)
    forget(cluster)


@pytest.fixture(scope="module")
def hasty_server(each_server: Binaries) -> Iterator[Server]:
    """It gives up the ring of an ended session after two seconds."""
    with small_server(each_server, 64, shorter) as server:
        yield server


@pytest.fixture
def hasty(hasty_server: Server) -> Iterator[Server]:
    yield hasty_server
    forget(hasty_server[0])


@pytest.fixture
def hasty_onlooker(hasty: Server) -> Iterator[Connection]:
    with session(hasty[0]) as connection:
        yield connection


def forget(cluster: Cluster) -> None:
    with session(cluster) as onlooker:
        onlooker.execute("SELECT sql_trace_reset(), wait_event_timing_reset()")
        onlooker.execute("SELECT count(sql_trace_kept_forget(id)) FROM sql_trace_kept()")


@pytest.fixture
def onlooker(small: Server) -> Iterator[Connection]:
    with session(small[0]) as connection:
        yield connection


def configure(cluster: Cluster, ring_memory: str | None) -> None:
    """Set how much memory the rings of each module may take."""
    names = ("sql_trace.ring_memory", "wait_event_timing.trace_memory")
    cluster.configure(dict.fromkeys(names, ring_memory))
    cluster.reload()


@contextlib.contextmanager
def traced_session(cluster: Cluster, level: int = 12) -> Iterator[Connection]:
    with session(cluster, options=f"-c sql_trace.level={level}") as client:
        yield client


def short_session(cluster: Cluster, onlooker: Connection, statements: int = 3) -> int:
    """A session that is traced with its waits, and ends."""
    with traced_session(cluster) as client:
        pid = client.info.backend_pid
        loop = f"FOR i IN 1..{statements} LOOP EXECUTE 'SELECT '||i; END LOOP"
        client.execute(f"DO $$BEGIN {loop}; END$$".encode())
    eventually(lambda: not rows(onlooker, "SELECT FROM pg_stat_activity WHERE pid = %s", pid))
    return pid


def test_waits_that_get_no_ring_are_not_captured_for_ever(
    small: Server, onlooker: Connection
) -> None:
    """When nobody wants them any more, the session is as its settings say."""
    cluster = small[0]
    cluster.configure({"wait_event_timing.trace_memory": "0"})
    cluster.reload()
    query = "SELECT capture FROM wait_event_timing_sessions() WHERE pid = %s"
    try:
        with session(cluster) as client:
            for level in (12, 0):
                client.execute(f"SET sql_trace.level = {level}".encode())
                client.execute("SELECT pg_sleep(0.001)")
                assert one(onlooker, query, client.info.backend_pid) == "off"
    finally:
        cluster.configure({"wait_event_timing.trace_memory": None})
        cluster.reload()


def ended(onlooker: Connection) -> list[tuple[int, int]]:
    """Traces of calls that sessions have left: processes and their memory."""
    found = rows(onlooker, "SELECT pid, ring_bytes FROM pg_stat_sql_trace WHERE ended IS NOT NULL")
    return [(pid, memory) for pid, memory in found]


def ended_waits(onlooker: Connection) -> int:
    found: int = one(
        onlooker, "SELECT count(*) FROM wait_event_timing_rings() WHERE ended IS NOT NULL"
    )
    return found


@pytest.mark.slow
def test_sessions_that_have_ended_leave_room_for_queries(
    small: Server, onlooker: Connection
) -> None:
    """Twenty sessions, one after the other, and nobody resets anything."""
    cluster, volume = small
    before = volume.used
    pids = [short_session(cluster, onlooker) for _ in range(20)]
    hash_join(cluster)
    assert volume.used - before < MB
    # what the last of them did can be read to its end
    *_, records = drain(onlooker, pids[-1])
    assert [r.sql for r in records if r.kind == "text" and r.sql == "SELECT 3"]
    assert records[-1].kind == "end"
    waits = rows(onlooker, "SELECT kind FROM wait_event_trace(%s)", pids[-1])
    assert set(waits) == {("wait",)}  # its statements are in the trace of calls
    assert ended_waits(onlooker) == 8
    assert len(ended(onlooker)) == 16


@pytest.mark.slow
def test_full_rings_that_sessions_leave_stay_within_their_share(
    small: Server, onlooker: Connection
) -> None:
    """What cannot shrink makes way, and is counted."""
    cluster, volume = small
    before, lost = volume.used, unread(onlooker)
    pids = [short_session(cluster, onlooker, 40000) for _ in range(5)]
    assert volume.used - before <= KEPT_BUDGET
    kept = ended(onlooker)
    assert kept[0][1] > MB
    assert len(kept) + since(onlooker, lost).sessions == len(pids)
    hash_join(cluster)


def test_many_sessions_at_once_share_the_budget(small: Server, onlooker: Connection) -> None:
    """Both modules together take no more; who finds no room goes on untraced, and is counted."""
    cluster, volume = small
    before = volume.used
    refused = (
        "SELECT c.refused + w.traces_refused "
        "FROM pg_stat_sql_trace_info c, pg_stat_wait_event_timing_info w"
    )
    refusals = one(onlooker, refused)
    notices: list[str] = []
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(session(cluster))
            client.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
            client.execute("SET sql_trace.level = 12")
            assert one(client, "SELECT 1") == 1
        assert volume.used - before <= BUDGET
        sizes = [
            size
            for (size,) in rows(
                onlooker, "SELECT ring_bytes FROM pg_stat_sql_trace WHERE ended IS NULL"
            )
        ]
        assert len(sizes) >= 10
        assert max(sizes) >= MB
        assert min(sizes) >= 64 * 1024
        assert one(onlooker, refused) > refusals
        assert any("sql_trace cannot trace this session: traces take" in text for text in notices)
        hash_join(cluster)


def test_budget_that_is_set(small: Server, onlooker: Connection) -> None:
    cluster, volume = small
    configure(cluster, "0")
    refused = "SELECT refused FROM pg_stat_sql_trace_info"
    refusals, before = one(onlooker, refused), volume.used
    short_session(cluster, onlooker)
    assert one(onlooker, refused) == refusals + 1
    assert volume.used <= before  # less, if a trace of an ended session made way in vain
    configure(cluster, "16MB")
    with traced_session(cluster, 1) as client:
        client.execute("SELECT 1")
        size = "SELECT ring_bytes FROM pg_stat_sql_trace WHERE pid = %s"
        # a quarter of it, header included
        assert one(onlooker, size, client.info.backend_pid) == 2 * MB


def test_volume_that_others_have_filled(small: Server, onlooker: Connection) -> None:
    """Half of it is left to them."""
    cluster, volume = small
    refused = "SELECT refused FROM pg_stat_sql_trace_info"
    refusals = one(onlooker, refused)
    with volume.filled(34 * MB):
        before = volume.used
        with session(cluster) as client:
            notices: list[str] = []
            client.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
            client.execute("SET sql_trace.level = 1")
            client.execute("SELECT 1")
            assert len(notices) == 1
            assert "of 65536 kB of dynamic shared memory only" in notices[0]
            assert one(onlooker, refused) == refusals + 1
            assert volume.used == before


@pytest.mark.slow
def test_traces_are_freed_after_a_while(hasty: Server, hasty_onlooker: Connection) -> None:
    """By any session's request; and what nobody had read is counted."""
    (cluster, volume), onlooker = hasty, hasty_onlooker
    before = volume.used
    for _ in range(3):
        short_session(cluster, onlooker)
    assert len(ended(onlooker)) == 3
    assert ended_waits(onlooker) == 3
    lost = unread(onlooker)
    time.sleep(KEEP_ENDED_S)
    onlooker.execute("SELECT 1")
    eventually(lambda: ended(onlooker) == [] and ended_waits(onlooker) == 0)
    assert volume.used <= before
    assert since(onlooker, lost).sessions == 3


def test_session_that_is_no_longer_traced_frees_its_ring(
    hasty: Server, hasty_onlooker: Connection
) -> None:
    """And can be traced anew: with a whole trace, from its beginning."""
    (cluster, volume), onlooker = hasty, hasty_onlooker
    before = volume.used
    listed = (
        "SELECT (SELECT count(*) FROM pg_stat_sql_trace WHERE pid = %(pid)s) + "
        "(SELECT count(*) FROM wait_event_timing_rings() WHERE pid = %(pid)s)"
    )
    with session(cluster) as client:
        pid = client.info.backend_pid
        for _ in range(2):
            client.execute("SET sql_trace.level = 12")
            client.execute("SELECT 'traced'")
            *_, records = drain(onlooker, pid)
            assert [r.kind for r in records[:2]] == ["session", "level"]
            assert any(r.kind == "text" and r.sql == "SELECT 'traced'" for r in records)
            client.execute("RESET sql_trace.level")
            client.execute("SELECT 1")
            assert onlooker.execute(listed, {"pid": pid}).fetchone() == (2,)
            time.sleep(KEEP_ENDED_S + 0.2)
            with client.transaction():
                client.execute("SELECT 1")
            client.execute("SELECT 1")
            assert onlooker.execute(listed, {"pid": pid}).fetchone() == (0,)
            assert volume.used <= before


def test_copies_that_are_kept_count(small: Server, onlooker: Connection) -> None:
    cluster, volume = small
    with session(cluster) as client:
        client.execute("SET sql_trace.level = 8")
        client.execute("SET sql_trace.keep_sqlstates = 'P0'")
        client.execute("SELECT wait_event_timing_benchmark(200000)")
        before = volume.used
        for code in range(1, 6):
            with pytest.raises(psycopg.Error):
                client.execute(f"DO $$BEGIN RAISE 'x' USING errcode = 'P000{code}'; END$$")
        client.execute("SELECT 1")
        assert one(onlooker, "SELECT count(*) FROM sql_trace_kept()") >= 1
        assert volume.used - before <= KEPT_BUDGET
    hash_join(cluster)


@pytest.mark.slow
def test_load_on_a_full_volume(binaries: Binaries) -> None:
    """On 9 MB: an application's parallel queries go on while sessions are traced and end."""
    with small_server(binaries, 9) as (cluster, volume), session(cluster) as onlooker:
        before = volume.used
        failures: list[BaseException] = []
        joins = 0
        stop = threading.Event()

        def application() -> None:
            nonlocal joins
            try:
                while not stop.is_set():
                    hash_join(cluster, rows=10000)
                    joins += 1
            except psycopg.Error as ex:
                failures.append(ex)

        thread = threading.Thread(target=application)
        thread.start()
        for _ in range(20):
            short_session(cluster, onlooker, 2000)
        stop.set()
        thread.join()
        assert not failures
        assert joins > 3
        assert volume.used - before <= 2 * MB


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [pytest.param((), id="alone", marks=pytest.mark.slow), pytest.param(("wait_event_timing",))],
)
def test_reserved_memory(wheel: Binaries, others: tuple[str, ...]) -> None:
    """Rings in the region of min_dynamic_shared_memory cannot shrink, but count all the same."""
    settings = {**USUAL, "min_dynamic_shared_memory": "16MB"}
    with small_shm(64) as volume, tracing(wheel, settings, others=others) as cluster:
        hash_table(cluster)
        with session(cluster) as onlooker:
            before = volume.used
            for _ in range(20):
                short_session(cluster, onlooker)
            assert ended(onlooker)
            assert sum(memory for _, memory in ended(onlooker)) <= KEPT_BUDGET
            hash_join(cluster)
            assert volume.used - before < MB


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sysv", pytest.param("mmap", marks=pytest.mark.slow)])
def test_other_kinds_of_dynamic_memory(wheel: Binaries, kind: str) -> None:
    """Rings shrink there, too, and can be read."""
    with (
        tracing(wheel, {**USUAL, "dynamic_shared_memory_type": kind}) as cluster,
        session(cluster) as onlooker,
    ):
        pid = short_session(cluster, onlooker)
        ((found, memory),) = ended(onlooker)
        assert found == pid
        assert memory < MB
        *_, records = drain(onlooker, pid)
        assert records[-1].kind == "end"


@pytest.mark.slow
def test_modules_that_sessions_load_share_the_budget(wheel: Binaries) -> None:
    """Each loads one: what the other's rings take is known to both."""
    with small_server(wheel, 64) as (cluster, volume), session(cluster) as onlooker:
        preloaded = str(one(onlooker, "SHOW shared_preload_libraries")).split(",")
        libraries = [name.strip().strip('"') for name in preloaded]
        cluster.restart({"shared_preload_libraries": None})
        before = volume.used
        with contextlib.ExitStack() as stack:
            for i in range(40):
                client = stack.enter_context(session(cluster))
                client.execute(f"LOAD '{libraries[i % 2]}'".encode())
                client.execute(
                    b"SET sql_trace.level = 1"
                    if i % 2
                    else b"SET wait_event_timing.capture = trace"
                )
                client.execute("SELECT 1")
            # their named segments are no rings
            assert volume.used - before <= BUDGET + 8 * MB
            hash_join(cluster)


@pytest.mark.slow
def test_five_hundred_short_sessions(small: Server, onlooker: Connection) -> None:
    cluster, volume = small
    before, lost = volume.used, unread(onlooker)
    for _ in range(500):
        with traced_session(cluster) as client:
            client.execute("SELECT 1")
    eventually(lambda: since(onlooker, lost).sessions == 484)
    assert len(ended(onlooker)) == 16
    assert volume.used - before < MB
    hash_join(cluster)


def test_background_processes_leave_their_rings(small: Server, onlooker: Connection) -> None:
    """When they are no longer traced, and switched off by SQL or in the configuration file."""
    cluster, volume = small
    before = volume.used
    live = (
        "SELECT count(*) FROM wait_event_timing_rings() "
        "WHERE ended IS NULL AND backend_type IN ('checkpointer', 'walwriter')"
    )
    level = (
        "SELECT array_agg(DISTINCT capture) FROM pg_stat_wait_event_timing_sessions "
        "WHERE backend_type IN ('checkpointer', 'walwriter')"
    )
    pids = [
        pid
        for (pid,) in rows(
            onlooker,
            "SELECT pid FROM pg_stat_activity WHERE backend_type IN ('checkpointer', 'walwriter')",
        )
    ]
    for pid in pids:
        one(onlooker, "SELECT wait_event_timing_set(%s, 'trace')", pid)
    eventually(lambda: one(onlooker, live) == 2)
    for pid in pids:
        one(onlooker, "SELECT wait_event_timing_set(%s, NULL)", pid)
    assert one(onlooker, level) == ["off"]
    eventually(lambda: one(onlooker, live) == 0)
    assert volume.used - before < MB
    # what they had is there to be read
    assert rows(onlooker, "SELECT FROM wait_event_trace(%s)", pids[0])
    cluster.configure({"wait_event_timing.capture": "trace"})
    cluster.reload()
    eventually(lambda: one(onlooker, live) == 2)
    cluster.configure({"wait_event_timing.capture": None})
    cluster.reload()
    eventually(lambda: one(onlooker, live) == 0)
    assert one(onlooker, level) == ["off"]
    # at once, too, also if that comes while the ring is being made
    switch = "SELECT wait_event_timing_set(p, %s) FROM unnest(%s::int[]) p"
    for i in range(100):
        rows(onlooker, switch, "trace", pids)
        time.sleep(0.00001 * i)
        rows(onlooker, switch, "off", pids)
        eventually(lambda: one(onlooker, live) == 0)
    for pid in pids:
        one(onlooker, "SELECT wait_event_timing_set(%s, NULL)", pid)


@pytest.mark.slow
def test_traces_are_freed_although_no_session_does_anything(
    hasty: Server, hasty_onlooker: Connection
) -> None:
    """Workers of autovacuum come by."""
    (cluster, volume), onlooker = hasty, hasty_onlooker
    before = volume.used
    short_session(cluster, onlooker, 40000)
    assert volume.used - before > MB
    cluster.configure({"autovacuum_naptime": "1s"})
    cluster.reload()
    try:
        eventually(lambda: volume.used <= before)
    finally:
        cluster.configure({"autovacuum_naptime": None})
