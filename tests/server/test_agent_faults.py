"""The agent under faults on real servers: nothing is counted twice, and what is lost is said."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from bench.truth.standby import standby
from psycopg.conninfo import conninfo_to_dict

from pgtare.keeping.agent import reading
from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.config import AgentConfig
from pgtare.keeping.agent.reading import UnsteadyReading
from pgtare.keeping.agent.rows import Batch
from pgtare.keeping.agent.server_looks import ServerLooks
from pgtare.keeping.agent.server_session import LookRefused, ServerGone, ServerSession
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool import reader
from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.writer import Spool
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.inventory import InventoryServer
from tests.agent_rows import (
    WAITS_KEYS,
    Cells,
    Watching,
    at_work,
    epochs,
    flat,
    grown,
    load,
    look,
    new_looks,
    rows_of,
    summed,
)
from tests.new_servers import made_by_initdb
from tests.servers import crash, run_program, serving, stopped_at_once
from tests.sessions import Connection, eventually, one, rows, session, set_search_path
from tests.small_volume import fill, small_volume
from tests.waits import stop_as_it_counts, stopped_as_it_counts

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

STATEMENT_KEYS = ("role_oid", "database_oid", "query_id", "type", "event")
NO_RESERVE = SpoolLimits(reserve_bytes=0)


@pytest.fixture(
    scope="module", params=["wheel", pytest.param("debian15", marks=pytest.mark.debian)]
)
def watched(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server that captures waits."""
    binaries: Binaries = request.getfixturevalue(request.param)
    with stopped_at_once(serving(binaries)) as cluster:
        yield cluster


def tables(batches: list[Batch], name: str) -> list[Any]:
    return [part for batch in list(batches) for part in batch.rows.get(name, [])]


def kinds(batches: list[Batch]) -> list[str]:
    return [row["kind"] for row in rows_of(batches, "gaps")]


def assert_exact(batches: list[Batch], first: Cells, last: Cells) -> None:
    """Rows of waits sum to what the readings grew by."""
    assert summed(tables(batches, "waits"), WAITS_KEYS) == grown(first, last)


def of_statements(cells: Cells) -> Cells:
    """Without active_ns: waits in progress come and go."""
    return Cells({cell: value for cell, value in cells.items() if cell[-1] != "active_ns"})


def statements_now(connection: Connection) -> Cells:
    """Calls and time by statement and event, as anybody reads them."""
    query = (
        "SELECT userid, dbid, queryid, wait_event_type, wait_event, waits, total_ns, histogram"
        " FROM wait_event_timing_statements() WHERE waits > 0 AND wait_event IS NOT NULL"
    )
    cells: Cells = Cells()
    for *names, calls, total_ns, histogram in rows(connection, query):
        key = tuple(str(name) for name in names)
        cells[*key, "calls"] += calls
        cells[*key, "total_ns"] += total_ns
        for bucket, count in enumerate(histogram):
            cells[*key, f"h{bucket:02}"] += count
    return Cells({cell: value for cell, value in cells.items() if value})


def require_extension(connection: Connection) -> None:
    """Skips a test where the module is functions alone: nothing is installed into Debian's."""
    if not one(connection, "SELECT count(*) FROM pg_extension WHERE extname LIKE 'wait_event%'"):
        pytest.skip("the module is functions without an extension here")


def watcher(connection: Connection) -> int:
    """The process of the agent's session."""
    query = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
    return int(one(connection, query))


# Processes that stop, resets


@pytest.mark.slow
def test_a_process_that_is_stopped_as_it_counts_loses_nothing(watched: Cluster) -> None:
    looks = ServerLooks("shop", "an agent", lambda part: None, 1000)
    with (
        session(watched) as busy,
        session(watched) as observer,
        ServerSession(watched.dsn()) as opened,
    ):
        looks.begin(opened)
        observer.execute("SELECT wait_event_timing_reset()")
        before = statements_now(observer)
        batches = [look(looks, opened, minute=True)]
        load(busy)
        batches.append(look(looks, opened, minute=True))
        with stopped_as_it_counts(watched, observer) as pid:
            load(busy)
            stopped = [look(looks, opened, minute=True), look(looks, opened, minute=True)]
            figures = {row["kind"]: row["value"] for row in rows_of(stopped, "agent")}
            assert figures["busy_buckets"] >= 1
            assert figures["unread_types"] == 1
            # its type lacks what it had counted by then, and does not fall for that
            os.kill(pid, signal.SIGCONT)
            stopped.append(look(looks, opened, minute=True))
            stop_as_it_counts(pid, observer)
            stopped.append(look(looks, opened, minute=True))
            assert min(row["calls"] for row in rows_of(stopped, "waits")) >= 0
            # a first reading would take what it lacks for zero, so there is none
            with pytest.raises(UnsteadyReading, match="a first reading needs all"):
                look(new_looks(), opened, minute=True)
        load(busy)
        batches += [*stopped, look(looks, opened, minute=True)]
        assert_exact(batches, flat(batches[0]), flat(batches[-1]))
        found = [row for row in rows_of(batches, "agent") if row["kind"] == "unread_types"]
        assert len(found) >= 3
        # by statement, what anybody reads now is the sum of all rows
        own = [
            part.filter([kind == "statement" for kind in part["kind"].to_pylist()])
            for part in tables(batches, "statements")
        ]
        after = statements_now(observer)
        sums = of_statements(summed(own, STATEMENT_KEYS))
        assert sums == grown(before, after)


@pytest.mark.slow
def test_a_reset_between_the_parts_of_a_reading_has_it_taken_again(
    watched: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = new_looks()
    taken = reading._counters
    resets = [0]
    with (
        session(watched) as busy,
        session(watched) as admin,
        ServerSession(watched.dsn()) as opened,
    ):
        looks.begin(opened)
        before = look(looks, opened, minute=True)
        load(busy)

        def reset_meanwhile(*words: Any, **options: Any) -> Any:
            found = taken(*words, **options)
            if resets[0] > 0:
                resets[0] -= 1
                admin.execute("SELECT wait_event_timing_reset()")
                load(busy)
            return found

        monkeypatch.setattr(reading, "_counters", reset_meanwhile)
        resets[0] = 2
        after = look(looks, opened, minute=True)
        assert resets[0] == 0
        assert epochs(after).isdisjoint(row["epoch"] for row in rows_of([before], "agent"))
        assert of_statements(summed(tables([after], "waits"), WAITS_KEYS)) == of_statements(
            grown(Cells(), flat(after))
        )
        assert flat(after)["client backend", "Timeout", "PgSleep", "calls"] == 40
        assert kinds([after]) == ["reset", "lost"]
        assert rows_of([after], "gaps")[1]["detail"].startswith("of statements: all counters were")
        resets[0] = 1000
        with pytest.raises(UnsteadyReading):
            look(looks, opened)
        resets[0] = 0
        last = look(looks, opened)
        assert of_statements(summed(tables([last], "waits"), WAITS_KEYS)) == of_statements(
            grown(Cells(), flat(last))
        )


# Servers that end, and others in their place


def test_a_crash_ends_an_epoch(watched: Cluster) -> None:
    looks = new_looks()
    with session(watched) as busy, ServerSession(watched.dsn()) as opened:
        looks.begin(opened)
        look(looks, opened)
        load(busy)
        before = look(looks, opened)
        crash(watched, busy.info.backend_pid)
        with pytest.raises(ServerGone):
            look(looks, opened)
    with session(watched) as busy, ServerSession(watched.dsn()) as opened:
        looks.begin(opened)
        load(busy)
        after = look(looks, opened)
        assert_exact([after], Cells(), flat(after))
        assert epochs(after).isdisjoint(epochs(before))
        assert kinds([after]) == ["restart"]


@contextlib.contextmanager
def switch(open_directory: Path, target: Cluster) -> Iterator[Callable[[Path | None], str]]:
    """A name for servers that can be switched from one to another, or to none."""
    name = open_directory / "host"

    def lead_to(place: Path | None) -> str:
        name.unlink(missing_ok=True)
        if place is not None:
            name.symlink_to(place)
        return psycopg.conninfo.make_conninfo(target.dsn(), host=str(name))

    yield lead_to
    name.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_name_that_leads_to_another_server_begins_anew(
    watched: Cluster, wheel: Binaries, open_directory: Path
) -> None:
    with (
        made_by_initdb(),
        stopped_at_once(serving(wheel)) as other,
        switch(open_directory, watched) as lead_to,
        session(watched) as busy,
    ):
        with session(other) as earlier:
            load(earlier)
        with Watching(lead_to(watched.socket_directory)) as found:
            found.wait_for_reading()
            load(busy)
            found.wait_for_reading()
            old = found.readings()
            pid = one(busy, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2")
            lead_to(other.socket_directory)
            number = len(found.batches)
            busy.execute("SELECT pg_terminate_backend(%s)", [pid])
            eventually(lambda: "restart" in kinds(found.batches[number:]), 30)
            with session(other) as later:
                load(later)
            found.wait_for_reading()
        batches = [batch for batch in found.batches if "waits" in batch.readings]
        new = next(i for i, batch in enumerate(batches) if "restart" in kinds([batch]))
        (gap, *_) = [row for row in rows_of([batches[new]], "gaps") if row["kind"] == "restart"]
        assert "another server" in gap["detail"]
        assert_exact(batches[1:new], old[0], flat(batches[new - 1]))
        assert "waits" not in batches[new].rows
        assert_exact(batches[new + 1 :], flat(batches[new]), flat(batches[-1]))
        assert (
            sum(
                row["calls"] for row in rows_of(batches[new:], "waits") if row["event"] == "PgSleep"
            )
            == 40
        )


@pytest.mark.slow
def test_a_standby_is_watched_and_promoted_in_the_primarys_place(binaries: Binaries) -> None:
    """It shares the primary's system identifier."""
    settings = {"wait_event_timing.capture": "stats", "compute_query_id": "on"}
    looks, of_standby = new_looks(), new_looks()
    with (
        stopped_at_once(serving(binaries, {"wal_keep_size": "64MB"})) as primary,
        standby(primary, settings) as other,
        session(primary) as busy,
        psycopg.connect(other.dsn, autocommit=True) as down,
    ):
        set_search_path(down)
        with ServerSession(primary.dsn()) as opened:
            looks.begin(opened)
            identifier = opened.offer.system_identifier
            look(looks, opened, minute=True)
            load(busy)
            looks.activity(opened, 1)
            look(looks, opened, minute=True)
        with ServerSession(other.dsn) as opened:
            assert opened.offer.standby
            assert opened.offer.system_identifier == identifier
            of_standby.begin(opened)
            batches = [look(of_standby, opened, minute=True)]
            of_standby.activity(opened, 1)
            busy.execute("CREATE TABLE replayed AS SELECT generate_series(1, 1000)")
            load(down)
            batches += [look(of_standby, opened, minute=True)]
            batches[-1].rows |= of_standby.sessions(opened, 1).rows
            batches[-1].rows |= of_standby.activity(opened, 1).rows
            of_standby.check(opened)
            assert of_standby.evaluate(opened).rows.keys() <= {"findings"}
            assert_exact(batches, flat(batches[0]), flat(batches[-1]))
            assert {row["quality"] for row in rows_of(batches, "statements")} == {"exact"}
            assert rows_of(batches, "activity")
            types = {row["backend_type"] for row in rows_of(batches, "waits")}
            assert {"startup", "walreceiver"} <= types
        # the primary is gone, and its name leads to the standby
        down.execute("SELECT pg_promote()")
        with ServerSession(other.dsn) as opened:
            assert not opened.offer.standby
            looks.begin(opened)
            load(down)
            moved = [look(looks, opened, minute=True)]
            assert "waits" not in moved[0].rows
            assert "statements" not in moved[0].rows
            gaps = rows_of(moved, "gaps")
            assert [gap["kind"] for gap in gaps] == ["restart", "lost"]  # lost: of statements
            assert all("another copy of the server" in gap["detail"] for gap in gaps)
            load(down)
            moved.append(look(looks, opened, minute=True))
            assert_exact(moved, flat(moved[0]), flat(moved[-1]))
            # the watch of the standby itself goes on: a promotion is no restart
            of_standby.begin(opened)
            batches.append(look(of_standby, opened, minute=True))
            assert_exact(batches, flat(batches[0]), flat(batches[-1]))
            assert kinds(batches) == []


@pytest.mark.slow
def test_a_name_that_comes_first_takes_a_server_over_from_a_later_one(
    watched: Cluster, open_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a failover: the primary's name leads to the standby, which has a name of its own."""
    with switch(open_directory, watched) as lead_to, Spool.open(tmp_path, NO_RESERVE) as spool:
        servers = {
            "shop": InventoryServer(dsn=lead_to(None)),
            "shop-standby": InventoryServer(dsn=watched.dsn()),
        }
        agent = Agent(AgentConfig(servers=servers), spool, AgentLog())
        agent._adapt(agent.config)
        first, second = (agent._watches[name] for name in servers)
        eventually(lambda: second.connected)
        time.sleep(1)
        lead_to(Path(str(conninfo_to_dict(watched.dsn())["host"])))
        eventually(lambda: first.connected)
        eventually(lambda: "watches this server as shop now" in str(second.failure))
        time.sleep(12)  # it tries again after 10 s at most
        assert first.connected
        assert not second.connected
        assert capsys.readouterr().err.count("event=connected server=shop-standby") == 1
        agent._adapt(AgentConfig(servers={"shop-standby": servers["shop-standby"]}))
        eventually(lambda: second.connected)
        agent._stop(["shop-standby"])


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_for_long_is_an_absence(
    watched: Cluster, open_directory: Path
) -> None:
    """An hour, shortened: looks every second, and away for longer than three of them."""
    with switch(open_directory, watched) as lead_to, session(watched) as busy:
        with Watching(lead_to(watched.socket_directory)) as found:
            found.wait_for_reading(2)
            pid = one(busy, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2")
            lead_to(None)
            busy.execute("SELECT pg_terminate_backend(%s)", [pid])
            eventually(lambda: found.watch.failure is not None)
            load(busy)
            time.sleep(4)
            lead_to(watched.socket_directory)
            eventually(lambda: "absence" in kinds(found.batches), 60)
            load(busy)
            found.wait_for_reading()
        batches = [batch for batch in found.batches if "waits" in batch.readings]
        assert_exact(batches, flat(batches[0]), flat(batches[-1]))
        assert set(kinds(found.batches)) == {"absence"}
        ticks = [row for row in rows_of(batches, "ticks") if row["source"] == "waits"]
        (away,) = [row["covered_ns"] for row in ticks if row["covered_ns"] > 3.9e9]
        assert away < 60e9


# Extensions, sessions, rights


@pytest.mark.slow
def test_an_extension_that_moves_to_another_schema_loses_nothing(watched: Cluster) -> None:
    with session(watched) as admin:
        require_extension(admin)
        admin.execute("CREATE SCHEMA elsewhere")
        schema = one(
            admin,
            "SELECT pronamespace::regnamespace::text FROM pg_proc"
            " WHERE proname = 'wait_event_timing_info'",
        )
        with Watching(watched.dsn()) as found:
            found.wait_for_reading(2)
            admin.execute("ALTER EXTENSION wait_event_timing SET SCHEMA elsewhere")
            try:
                eventually(lambda: "lost" in kinds(found.batches), 20)
                load(admin)
                found.wait_for_reading(2)
            finally:
                admin.execute(f"ALTER EXTENSION wait_event_timing SET SCHEMA {schema}".encode())
            found.wait_for_reading(2)
        batches = [batch for batch in found.batches if "waits" in batch.readings]
        assert_exact(batches, flat(batches[0]), flat(batches[-1]))
        lost = [row for row in rows_of(found.batches, "gaps") if row["kind"] == "lost"]
        assert all("wait_event_timing" in row["detail"] for row in lost)
        admin.execute("DROP SCHEMA elsewhere")


@pytest.mark.slow
def test_short_connections_as_fast_as_they_come(watched: Cluster, open_directory: Path) -> None:
    looks = new_looks()
    ended = "SELECT processes_ended FROM wait_event_timing_info()"
    with session(watched) as observer, ServerSession(watched.dsn()) as opened:
        looks.begin(opened)
        first = look(looks, opened, minute=True)
        before = one(observer, ended)
        batches = [first]
        path = open_directory / "storm.sql"
        path.write_text("SELECT pg_sleep(0.0001)")
        path.chmod(0o644)
        words = ("-n", "-C", "-c", 8, "-j", 2, "-T", 8, "-f", path, watched.dsn())
        storm = threading.Thread(target=run_program, args=(watched, "pgbench", *words))
        storm.start()
        while storm.is_alive():
            batches.append(look(looks, opened, minute=True))
            time.sleep(0.3)
        storm.join()
        batches.append(look(looks, opened, minute=True))
        assert len(batches) > 5
        assert one(observer, ended) > before + 100
        assert_exact(batches, flat(first), flat(batches[-1]))
        assert summed(tables(batches, "statements"), ("type", "event")) == summed(
            at_work(tables(batches, "waits")), ("type", "event")
        )
        calls = sum(row["calls"] for row in rows_of(batches, "waits") if row["event"] == "PgSleep")
        # pgbench and the server have processes of their own, and a few end before they sleep
        assert calls >= one(observer, ended) - before - 16


def test_a_role_without_privileges_is_watched_as_far_as_it_may_see(watched: Cluster) -> None:
    """The module's counters are for everybody unless rights were taken away."""
    with session(watched) as admin:
        require_extension(admin)
        admin.execute("CREATE ROLE nobody_yet LOGIN")
        dsn = psycopg.conninfo.make_conninfo(watched.dsn(), user="nobody_yet")
        with ServerSession(dsn) as opened:
            assert "GRANT pg_monitor TO nobody_yet;" in " ".join(opened.offer.unseen)
            looks = new_looks()
            looks.begin(opened)
            batches = [look(looks, opened, minute=True)]
            load(admin)
            batches.append(look(looks, opened, minute=True))
            assert_exact(batches, flat(batches[0]), flat(batches[-1]))
            assert {row["quality"] for row in rows_of(batches, "statements")} == {"approximate"}
        function = one(
            admin,
            "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'wait_event_timing_info'",
        )
        admin.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC, pg_monitor".encode())
        try:
            with Watching(dsn) as found:
                eventually(lambda: found.found("activity") and found.found("ticks") >= 4, 40)
                assert found.watch.connected
                assert found.found("waits") == 0
                # it may not even connect any more
                admin.execute("ALTER ROLE nobody_yet NOLOGIN")
                admin.execute("SELECT pg_terminate_backend(%s)", [watcher(admin)])
                eventually(lambda: "nobody_yet" in str(found.watch.failure), 30)
        finally:
            admin.execute(f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC".encode())
            admin.execute("DROP ROLE nobody_yet")


# Clocks and disks


@pytest.mark.slow
def test_the_agents_clock_is_set_back_an_hour(
    watched: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `time` of this process; no look is late, and intervals keep their length."""
    wall, wall_ns = time.time, time.time_ns
    with session(watched) as busy, Watching(watched.dsn()) as found:
        found.wait_for_reading(2)
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: wall() - 3600)
            patch.setattr(time, "time_ns", lambda: wall_ns() - 3600 * 10**9)
            load(busy)
            found.wait_for_reading(3, 20)
        found.wait_for_reading(2, 20)
    batches = [batch for batch in found.batches if "waits" in batch.readings]
    assert_exact(batches, flat(batches[0]), flat(batches[-1]))
    ticks = [row for row in rows_of(batches, "ticks") if row["source"] == "waits"]
    assert min(row["covered_ns"] for row in ticks) >= 0
    assert max(row["covered_ns"] for row in ticks) < 60e9  # it is the servers' clock that counts
    spread = max(row["ts"] for row in ticks) - min(row["ts"] for row in ticks)
    assert spread.total_seconds() > 3500


def commit(spool: Spool, batch: Batch) -> None:
    some = {name: pa.concat_tables(parts) for name, parts in batch.rows.items()}
    spool.commit(some, {("shop", part): table for part, table in batch.readings.items()})


def spooled(directory: Path) -> Cells:
    """Sums of all rows of waits in a spool."""
    with reader.connect(directory) as found:
        return summed([found.sql("SELECT * FROM waits").to_arrow_table()], WAITS_KEYS)


def test_on_a_full_disk_rows_are_held_until_there_is_room(watched: Cluster) -> None:
    """What is left for others is a megabyte here, a gigabyte in use."""
    looks, limits = new_looks(), SpoolLimits(reserve_bytes=1 << 20)
    with (
        small_volume("size=4m") as place,
        session(watched) as busy,
        ServerSession(watched.dsn()) as opened,
    ):
        looks.begin(opened)
        with Spool.open(place / "spool", limits) as spool:
            first = look(looks, opened, minute=True)
            commit(spool, first)
            load(busy)
            commit(spool, look(looks, opened, minute=True))
            fill(place, leave=1 << 15)
            seen = spooled(place / "spool")
            for _ in range(2):
                load(busy)
                last = look(looks, opened, minute=True)
                commit(spool, last)
                assert spool.trouble
                assert spooled(place / "spool") == seen
            (place / "others").unlink()
            load(busy)
            last = look(looks, opened, minute=True)
            commit(spool, last)
            assert spool.trouble is None
            assert spooled(place / "spool") == grown(flat(first), flat(last))
        # the next agent goes on from the reading that belongs to these rows
        with Spool.open(place / "spool", limits) as spool:
            again = ServerLooks("shop", "next", lambda part: spool.reading("shop", part), 1)
            again.begin(opened)
            load(busy)
            newest = look(again, opened, minute=True)
            commit(spool, newest)
        assert spooled(place / "spool") == grown(flat(first), flat(newest))


def test_a_torn_segment_costs_its_rows_and_no_others(watched: Cluster, tmp_path: Path) -> None:
    looks = new_looks()
    directory = tmp_path / "spool"
    with session(watched) as busy, ServerSession(watched.dsn()) as opened:
        looks.begin(opened)
        with Spool.open(directory, NO_RESERVE) as spool:
            first = look(looks, opened)
            commit(spool, first)
            before, torn_rows = set(directory.glob("segments/*-waits-*")), Cells()
            for number in range(4):
                load(busy)
                last = look(looks, opened)
                commit(spool, last)
                if number == 1:
                    (torn,) = set(directory.glob("segments/*-waits-*")) - before
                    torn_rows = summed(last.rows["waits"], WAITS_KEYS)
                before = set(directory.glob("segments/*-waits-*"))
            with open(torn, "r+b") as file:
                file.truncate(os.path.getsize(torn) // 2)
        # the next agent, and a reader, go on without it
        with Spool.open(directory, NO_RESERVE) as spool:
            again = ServerLooks("shop", "next", lambda part: spool.reading("shop", part), 1)
            again.begin(opened)
            load(busy)
            last = look(again, opened)
            commit(spool, last)
            assert any(torn.name in note for note in spool.take_notes())
        left = grown(torn_rows, grown(flat(first), flat(last)))
        assert spooled(directory) == left
        with reader.connect(directory) as found:
            assert found.execute("SELECT kind FROM gaps").fetchall() == [("lost",)]


def test_a_look_that_is_cancelled_is_made_again(watched: Cluster) -> None:
    """By a lock on a catalogue, say: the server gives the look up, and its state stays."""
    looks = new_looks()
    with session(watched) as busy, ServerSession(watched.dsn()) as opened:
        looks.begin(opened)
        first = look(looks, opened, minute=True)
        load(busy)
        with busy.transaction():
            busy.execute("LOCK pg_roles, pg_authid IN ACCESS EXCLUSIVE MODE")
            with contextlib.suppress(LookRefused):
                looks._names_read = 0.0
                looks._roles = {}
                look(looks, opened, minute=True)
        last = look(looks, opened, minute=True)
        assert summed(tables([last], "statements"), ("type", "event")) == summed(
            at_work(tables([last], "waits")), ("type", "event")
        )
        assert_exact([last], flat(first), flat(last))
