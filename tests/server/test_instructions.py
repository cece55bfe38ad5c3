"""Instructions on the hot paths, counted in a real server: a guard against regressions.

Other than times, these counts are the same at every run, and on all machines of one architecture
and compiler. Where a bound is broken for a good reason, raise it with that reason.
"""

import time
from pathlib import Path
from statistics import fmean, median

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value
from tests import trials
from tests.callgrind import VALGRIND, Counted, counting
from tests.sessions import Connection, bare_session, session

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(900),  # under valgrind all takes 50 times as long, and more if it is busy
    pytest.mark.skipif(VALGRIND is None, reason="needs valgrind, to count instructions"),
]

SETTINGS: dict[str, Value] = {"autovacuum": False, "io_method": "sync", "compute_query_id": False}

LOOPS = ("plain_calls", "wrapped_calls")  # of the benchmark function
ROUNDS = 20  # in one call of it

# By what is captured, and whether waits have a statement to belong to.
# Seen with gcc 12 on x86-64: 11.0, 193.9, 251.4, 237.1, 294.6. Eight of them tell waits that hold
# a statement up from those for something to do, by the class of the event.
WAIT_BOUNDS = {
    ("off", False): 12,
    ("stats", False): 195,
    ("stats", True): 253,
    ("trace", False): 239,
    ("trace", True): 297,
}

# Seen with gcc 12 on x86-64: 1316. Some 58 look whether a message is a pooler's reset, some 90 time
# what is sent: that a client is woken is none of the arm's cost.
TRANSACTION_BOUND = 1355

# Of an execution whose upper node is called 64 times, beyond those of its trace alone, which is one
# record then.  Seen with gcc 12 on x86-64: 7905
ROW_SOURCES_BOUND = 8100

# Of sql_trace's own code. Seen with gcc 12 on x86-64: 16.0, and 186.0 to 195.9. Some twelve of them
# look whether the request is a plain one, which makes most requests 500 cheaper. A record holds the
# fetches of a millisecond, so a slower machine writes more of them.
FETCH_BOUNDS = {0: 18, 12: 202}

# In the place of a level: 12, by the recorder; a trace of waits alone
RECORDER, WAITS = 13, 14

# Of a select by key, by protocol and level: those of both modules' own code; at other levels than 0
# what they take beyond it, 3 % more than was seen. The median of several: each has one
# wait. CPU time, which life reads once in many requests, is not read: under callgrind every request
# lasts longer than the usual interval.
# With a semicolon, as most clients send it.
# Repeated: simple, with the same key each time.
# Seen with gcc 12 on x86-64: prepared 654, 1175, 1651, 1889, 2039 by the recorder, 1069 of waits
# alone, which read CPU time each time here; simple 712, 3223, 3699, 3743; repeated 712, 3153, 3307
STATEMENT_BOUNDS = {
    "prepared": {0: 677, 1: 1189, 8: 1673, 12: 1936, RECORDER: 2090, WAITS: 1100},
    "simple": {0: 737, 1: 3269, 8: 3748, 12: 3778},
    "repeated": {0: 737, 12: 3170, RECORDER: 3328},
}


def a_wait(counted: Counted, connection: Connection) -> float:
    """Instructions of one wait more in the loop, beyond those of the loop itself."""
    pid = connection.info.backend_pid
    lengths = 640, 1280
    spent = []
    for length in lengths:
        before = len(counted.dumps(pid, LOOPS[0]))
        connection.execute("SELECT wait_event_timing_benchmark(%s)", (length * ROUNDS,))
        without, captured = (
            [dump.total for dump in counted.dumps(pid, name)[before:]] for name in LOOPS
        )
        assert len(captured) == len(without) == ROUNDS
        spent.append(median(captured) - median(without))
    return (spent[1] - spent[0]) / (lengths[1] - lengths[0])


def test_instructions_of_a_captured_wait(wheel: Binaries, open_directory: Path) -> None:
    module = loadable(wheel, "wait_event_timing")
    found = {}
    with counting(
        wheel, SETTINGS, [module.library], dump_after=LOOPS, outputs=open_directory, within=LOOPS
    ) as counted:
        with counted.cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        with session(counted.cluster) as connection:
            connection.prepare_threshold = None  # prepared statements keep their identifier
            connection.execute("SET wait_event_timing.trace_ring_records = 1024")
            for level, identified in WAIT_BOUNDS:
                connection.execute(f"SET wait_event_timing.capture = {level}".encode())
                connection.execute(f"SET compute_query_id = {identified}".encode())
                connection.execute("SELECT 1")
                found[level, identified] = round(a_wait(counted, connection), 1)
    print("instructions of a wait, with query identifiers or without:", found)
    assert 0 < found["off", False] < found["stats", False] < found["trace", False]
    assert all(found[case] <= bound for case, bound in WAIT_BOUNDS.items())


@pytest.mark.slow
def test_instructions_of_a_transaction_in_a_trial(wheel: Binaries, open_directory: Path) -> None:
    """Those of pgtare's own code, from an answer to the next; what the server does to switch a
    setting depends on the setting."""
    module = loadable(wheel, "pgtare")
    end = "pgtare_flush"
    with counting(wheel, SETTINGS, [module.library], [end], open_directory) as counted:
        with counted.cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        with (
            bare_session(counted.cluster) as client,
            trials.trial(counted.cluster),
        ):
            for _ in range(70):
                client.execute("SELECT 1")
            dumps = counted.dumps(client.info.backend_pid, end)[-60:]
    own = [dump.by_object.get("pgtare.so", 0) for dump in dumps]
    assert len(own) == 60
    print("instructions of a transaction:", fmean(own), sorted(own))
    assert min(own) > 300
    assert fmean(own) <= TRANSACTION_BOUND


@pytest.mark.slow
def test_instructions_of_row_sources_of_a_short_statement(
    wheel: Binaries, open_directory: Path
) -> None:
    """At the usual frequency, most of the calls are only counted."""
    module = loadable(wheel, "sql_trace")
    own = {}
    with counting(wheel, SETTINGS, [module.library], ["PortalRun"], open_directory) as counted:
        with counted.cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        with session(counted.cluster) as client:
            client.execute("SET sql_trace.level = 1")
            for every in (0, 128):
                client.execute(f"SET sql_trace.rowsource_sampling = {every}".encode())
                for _ in range(45):
                    client.execute("SELECT generate_series(1, 63)", prepare=False)
                dumps = counted.dumps(client.info.backend_pid, "PortalRun")[-40:]
                own[every] = fmean(dump.by_object.get("sql_trace.so", 0) for dump in dumps)
    print("instructions of a short statement, without row sources and with them:", own)
    assert own[128] - own[0] > 500
    assert own[128] - own[0] <= ROW_SOURCES_BOUND


def test_instructions_of_a_traced_fetch(wheel: Binaries, open_directory: Path) -> None:
    """A row more in a loop of PL/pgSQL over a cursor; without a trace it takes 2,100."""
    modules = [loadable(wheel, name) for name in ("wait_event_timing", "sql_trace")]
    loop = """DO $$ DECLARE numbers CURSOR FOR SELECT oid FROM pg_proc LIMIT {rows};
        BEGIN FOR one IN numbers LOOP NULL; END LOOP; END $$"""
    end = "ReadyForQuery"
    found = {}
    with counting(
        wheel, SETTINGS, [module.library for module in modules], [end], open_directory
    ) as counted:
        for level in FETCH_BOUNDS:
            with session(counted.cluster) as client:
                waits = "trace" if level else "off"
                client.execute(f"SET wait_event_timing.capture = {waits}".encode())
                client.execute(f"SET sql_trace.level = {level}".encode())
                spent = []
                for rows in (500, 2500):
                    for _ in range(6):
                        client.execute(loop.format(rows=rows).encode())
                    # the quickest of them has the fewest records; one dump is of another request
                    dumps = counted.dumps(client.info.backend_pid, end)[-5:]
                    spent.append(sorted(d.by_object.get("sql_trace.so", 0) for d in dumps)[1])
                found[level] = round((spent[1] - spent[0]) / 2000, 1)
    print("instructions of a fetch, by level:", found)
    assert 0 < found[0] < found[12]
    assert all(found[level] <= bound for level, bound in FETCH_BOUNDS.items())


def select_by_key(protocol: str, client: Connection, key: int) -> None:
    if protocol == "prepared":
        client.execute("SELECT key FROM numbers WHERE key = %s;", (key,), prepare=True)
    elif protocol == "simple":
        client.execute(f"SELECT key FROM numbers WHERE key = {key};".encode())
    else:
        client.execute(b"SELECT key FROM numbers WHERE key = 5;", prepare=False)


def set_level(client: Connection, level: int) -> None:
    client.execute(f"SET sql_trace.recorder = {level == RECORDER}".encode())
    client.execute("SET sql_trace.recorder_level = 12")
    client.execute(f"SET sql_trace.level = {level if level < RECORDER else 0}".encode())
    if level == WAITS:
        client.execute("SET wait_event_timing.capture = trace")


@pytest.mark.slow
def test_instructions_of_a_traced_statement(wheel: Binaries, open_directory: Path) -> None:
    """A select by key, from ReadyForQuery to ReadyForQuery, with both modules."""
    modules = [loadable(wheel, name) for name in ("wait_event_timing", "sql_trace")]
    own = [f"{Path(module.library).stem}.so" for module in modules]
    end = "ReadyForQuery"
    found: dict[str, dict[int, float]] = {protocol: {} for protocol in STATEMENT_BOUNDS}
    settings = SETTINGS | {"sql_trace.recorder_memory": "4MB", "sql_trace.cpu_interval": 10**9}
    with counting(
        wheel, settings, [module.library for module in modules], [end], open_directory
    ) as counted:
        with session(counted.cluster) as client:
            client.execute("CREATE TABLE numbers AS SELECT generate_series(1, 9999) AS key")
            client.execute("CREATE UNIQUE INDEX ON numbers (key)")
            client.execute("VACUUM ANALYZE numbers")
        for protocol, bounds in STATEMENT_BOUNDS.items():
            with session(counted.cluster) as first, session(counted.cluster) as recorded:
                for level in bounds:
                    client = recorded if level >= RECORDER else first
                    set_level(client, level)
                    for key in range(1000 + 100 * level, 1028 + 100 * level):
                        time.sleep(0.05)  # so each has one wait, for its request: a dump takes long
                        select_by_key(protocol, client, key)
                    dumps = counted.dumps(client.info.backend_pid, end)[-20:]
                    assert len(dumps) == 20
                    spent = median(sum(dump.by_object.get(o, 0) for o in own) for dump in dumps)
                    off = found[protocol].get(0, 0)
                    found[protocol][level] = spent - off
    print("instructions of a traced select, by protocol and level:", found)
    for protocol, bounds in STATEMENT_BOUNDS.items():
        assert 0 < found[protocol].get(1, 1) < found[protocol][12]
        assert all(spent > 0 for spent in found[protocol].values())
        assert all(found[protocol][level] <= bound for level, bound in bounds.items())
