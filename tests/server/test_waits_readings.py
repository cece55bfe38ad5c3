"""Counters read again and again: nanoseconds that add up, entries that are known again, resets
and busy parts that a reader learns of, and waits under way in the sums."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from pgtare.postgres.wait_counters.reader import open_reader
from tests.loads import asleep, during
from tests.servers import crashes, run_program, serving
from tests.sessions import Connection, eventually, one, role, rows, session
from tests.waits import SKIPPED, stopped_as_it_counts

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

RESETS = "SELECT resets FROM wait_event_timing_info()"
ENTRIES = (
    "SELECT identity, waits, total_ns FROM pg_stat_wait_event_timing_statements "
    "WHERE wait_event = 'PgSleep' AND waits > 0 AND queryid = %s"
)
LOCKED = (
    "SELECT total_ns + running_ns, running_ns, running_waits FROM {} "
    "WHERE wait_event = 'advisory' AND running_waits > 0"
)


def query_id(connection: Connection, query: str) -> int:
    """The identifier that the server gives a query."""
    ((plan,),) = rows(connection, f"EXPLAIN (VERBOSE, FORMAT JSON) {query}")
    return int(plan[0]["Query Identifier"])


def test_nanoseconds_add_up(timed: Cluster, watched: Connection, observer: Connection) -> None:
    """By process, by kind of process and by statement: the same waits, to the nanosecond."""
    observer.execute("SET compute_query_id = on")
    watched.execute("SET compute_query_id = on")
    observer.execute("SELECT wait_event_timing_reset()")
    for ms in range(1, 6):
        watched.execute(f"SELECT pg_sleep({ms}e-3)".encode())
    watched.execute("SELECT 1")
    columns = "waits, calls, total_ns, max_ns, histogram, total_time, max_time"
    where = "WHERE wait_event = 'PgSleep'"
    by_process, by_kind, by_statement = (
        rows(observer, f"SELECT {columns} FROM pg_stat_wait_event_timing{view} {where}")
        for view in ("", "_system", "_statements")
    )
    assert by_process == by_kind == by_statement
    ((count, _, total, longest, histogram, total_ms, max_ms),) = by_process
    assert count == sum(histogram) == 5
    assert 10e6 <= total <= 5 * longest
    assert (total / 1e6, longest / 1e6) == (total_ms, max_ms)
    with session(timed) as other:
        other.execute("SELECT pg_sleep(0.001)")
    # the other goes, and its wait stays
    query = f"SELECT waits, processes FROM wait_event_timing_moment() {where}"
    eventually(lambda: rows(observer, query) == [(6, 1)])
    assert one(observer, f"SELECT total_ns FROM wait_event_timing_moment() {where}") >= total + 1e6


def test_sums_never_fall_as_processes_come_and_go(timed: Cluster, observer: Connection) -> None:
    """Each reading has at least what the one before had, by kind of process and event."""
    observer.execute("SELECT wait_event_timing_reset()")
    query = (
        "SELECT backend_type, wait_event, waits, calls, total_ns, histogram "
        "FROM wait_event_timing_moment() WHERE wait_event IS NOT NULL"
    )
    before: dict[tuple[str, str], list[int]] = {}
    command = ("pgbench", "-n", "-C", "-c", 4, "-T", 3, "-f", "-", timed.dsn())
    script = (
        "SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;\n"
        "SET parallel_tuple_cost = 0;\nSELECT count(*) FROM pg_class, pg_am;\n"
    )
    fell = []
    readings = 0
    for _ in range(5):  # a busy machine gives a few readings a second
        with during(lambda: run_program(timed, *command, stdin=script)) as load:
            while load.is_alive():
                found = {
                    (kind, event): [waits, calls, total, *histogram]
                    for kind, event, waits, calls, total, histogram in rows(observer, query)
                }
                fell += [
                    (key, old, found.get(key))
                    for key, old in before.items()
                    if key not in found or any(a > b for a, b in zip(old, found[key], strict=True))
                ]
                before = found
                readings += 1
        if readings > 20:
            break
    assert fell == []
    assert readings > 20
    assert any(kind == "parallel worker" for kind, _ in before)


def test_a_lock_that_is_held_is_in_the_sums_of_its_statement(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    """A wait grows as time goes by, in both views alike, before it ends and as it does."""
    watched.execute("SET compute_query_id = on; SET deadlock_timeout = '100ms'")
    observer.execute("SET compute_query_id = on")
    asked = query_id(observer, "SELECT pg_advisory_lock(77)")
    views = ("pg_stat_wait_event_timing_system", "pg_stat_wait_event_timing_statements")
    of_statement = LOCKED.format(views[1]) + f" AND queryid = {asked}"
    with session(timed) as holder:
        holder.execute("SELECT pg_advisory_lock(77)")
        started = time.monotonic_ns()
        with during(lambda: watched.execute("SELECT pg_advisory_lock(77)")):
            ((first, running, n),) = eventually(lambda: rows(observer, of_statement))
            assert n == 1
            assert 0 < running <= first
            time.sleep(0.4)
            ((later, _, n),) = rows(observer, of_statement)
            assert n == 1
            assert 400e6 <= later - first <= time.monotonic_ns() - started
            ((in_system, _, _),) = rows(observer, LOCKED.format(views[0]))
            assert in_system >= later
            holder.execute("SELECT pg_advisory_unlock(77)")
    ended = (
        "SELECT waits, total_ns, running_ns FROM pg_stat_wait_event_timing_statements "
        "WHERE wait_event = 'advisory' AND queryid = %s"
    )
    ((count, total, running),) = rows(observer, ended, asked)
    assert (count, running) == (1, 0)
    assert later <= total <= time.monotonic_ns() - started


def test_others_statements_under_way_are_not_shown(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    watched.execute("SET compute_query_id = on")
    query = (
        "SELECT count(*) FROM pg_stat_wait_event_timing_statements "
        "WHERE running_waits > 0 AND wait_event = 'PgSleep'"
    )
    with (
        role(observer, "outsider"),
        session(timed, user="outsider") as outsider,
        asleep(watched),
    ):
        eventually(lambda: one(observer, query) == 1)
        assert one(outsider, query) == 0


@pytest.fixture(scope="module")
def small(each_server: Binaries) -> Iterator[Cluster]:
    """A server with room for 64 pairs of statement and event."""
    settings: dict[str, Value] = {"wait_event_timing.statements_max": 64}
    with serving(each_server, settings) as cluster:
        yield cluster


def test_an_entry_made_again_is_another(small: Cluster) -> None:
    """After it made way for others, and after a reset; it is the same as long as it stays."""
    with session(small) as connection:
        asked = query_id(connection, "SELECT pg_sleep(0.001)")
        seen = set()
        for step in range(3):
            connection.execute("SELECT pg_sleep(0.001)")
            ((identity, count, _),) = rows(connection, ENTRIES, asked)
            connection.execute("SELECT pg_sleep(0.001)")
            ((same, grown, _),) = rows(connection, ENTRIES, asked)
            assert (same, grown) == (identity, count + 1) == (identity, 2)
            seen.add(identity)
            if step == 1:
                connection.execute("SELECT wait_event_timing_reset()")
                continue
            for n in range(400):  # of a length of its own each, as a constant is no difference
                columns = ", ".join(["1"] * n + ["pg_sleep(0.00001)"])
                connection.execute(f"SELECT {columns}".encode())
                if not rows(connection, ENTRIES, asked):
                    break
            assert rows(connection, ENTRIES, asked) == []
        assert len(seen) == 3
        query = "SELECT count(*), count(DISTINCT identity), min(identity) > 0 FROM {} {}"
        table = ("wait_event_timing_statements()", "WHERE waits > 0")
        ((entries, different, positive),) = rows(connection, query.format(*table))
        assert entries == different > 30
        assert positive


@pytest.mark.slow
def test_what_is_busy_is_reported_and_a_reset_under_way_is_odd(small: Cluster) -> None:
    """A process that is stopped in the midst of a change holds nobody up for long."""
    moment = "SELECT skipped FROM wait_event_timing_moment() WHERE wait_event IS NULL AND {}"
    clients = moment.format("backend_type = 'client backend'")
    with session(small) as observer, session(small) as resetting:
        before = one(observer, RESETS)
        assert before % 2 == 0
        assert one(observer, SKIPPED) == one(observer, clients) == 0
        ever = one(observer, "SELECT skipped FROM wait_event_timing_info()")
        with stopped_as_it_counts(small, observer):
            assert one(observer, SKIPPED) == 1
            assert one(observer, clients) == 1
            others = moment.format("backend_type <> 'client backend'")
            assert {row for (row,) in rows(observer, others)} == {0}
            assert one(observer, "SELECT skipped FROM wait_event_timing_info()") >= ever + 3
            with open_reader(small.dsn()) as reader:
                found = reader.snapshot()
            assert (found.unread, found.busy) == (("client backend",), 1)
            # about a second, as it waits for the part that is busy
            for _ in range(5):  # until this test is in time to see one
                before = one(observer, RESETS)
                seen = {before}
                with during(lambda: resetting.execute("SELECT wait_event_timing_reset()")) as it:
                    while it.is_alive():
                        seen.add(one(observer, RESETS))
                        time.sleep(0.02)
                assert before % 2 == 0
                assert one(observer, RESETS) == before + 2
                if before + 1 in seen:
                    break
            assert before + 1 in seen
            # one that is cancelled is over as well
            resetting.execute("BEGIN; SET LOCAL statement_timeout = '100ms'")
            with pytest.raises(psycopg.errors.QueryCanceled):
                resetting.execute("SELECT wait_event_timing_reset()")
            resetting.execute("ROLLBACK")
            assert one(observer, RESETS) == before + 4
            # and so is that of a session that is ended
            started = threading.Thread(target=reset_until_ended, args=(resetting,))
            started.start()
            eventually(lambda: one(observer, RESETS) >= before + 5)
            observer.execute("SELECT pg_terminate_backend(%s)", (resetting.info.backend_pid,))
            started.join()
            assert eventually(lambda: one(observer, RESETS) == before + 6)
        assert one(observer, SKIPPED) == one(observer, clients) == 0
    assert crashes(small) == []


def reset_until_ended(connection: Connection) -> None:
    with contextlib.suppress(psycopg.errors.AdminShutdown):
        connection.execute("SELECT wait_event_timing_reset()")


def test_a_restart_shows_in_the_age_of_the_memory(small: Cluster) -> None:
    """That after a crash, too, which leaves the postmaster's start as it was."""
    query = "SELECT postmaster_start, memory_since, resets FROM wait_event_timing_info()"
    with session(small) as connection:
        connection.execute("SELECT wait_event_timing_reset()")
        ((started, made, _),) = rows(connection, query)
        assert started == one(connection, "SELECT pg_postmaster_start_time()")
        os.kill(connection.info.backend_pid, signal.SIGKILL)

    def again() -> tuple[Any, ...] | None:
        # the postmaster may take connections before it has noticed the crash
        with contextlib.suppress(psycopg.OperationalError), session(small) as connection:
            (found,) = rows(connection, query)
            return found if found[1] > made else None
        return None

    still, _, resets = eventually(again)
    assert (still, resets) == (started, 0)


def test_processors_are_those_that_the_server_may_use(small: Cluster, tmp_path: Path) -> None:
    query = "SELECT processors FROM wait_event_timing_info()"
    with session(small) as connection:
        allowed = os.sched_getaffinity(0)
        assert 0 < one(connection, query) <= len(allowed)
        os.sched_setaffinity(connection.info.backend_pid, {min(allowed)})
        assert one(connection, query) == 1


@pytest.mark.slow
def test_a_snapshot_waits_until_a_reset_is_over(small: Cluster) -> None:
    """What is read while counters are cleared is of no one time."""
    with (
        session(small) as observer,
        session(small) as resetting,
        open_reader(small.dsn()) as reader,
    ):
        before = reader.snapshot().losses
        with stopped_as_it_counts(small, observer), during(lambda: reset_until_ended(resetting)):
            eventually(lambda: one(observer, RESETS) % 2)
            during_reset = reader.snapshot().losses
            assert one(observer, RESETS) % 2 == 0
        assert during_reset.resets == before.resets + 1
        assert during_reset.skipped > before.skipped
