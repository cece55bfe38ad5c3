"""`pgtare agent` on real servers: rows that add up exactly, whatever happens in between."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pgtare.errors import MeasurementError
from pgtare.keeping.agent import queries, server_watch
from pgtare.keeping.agent.config import Intervals
from pgtare.keeping.agent.description import ServerDescription
from pgtare.keeping.agent.rows import Batch
from pgtare.keeping.agent.server_session import AgentLocked, Offer, ServerSession
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool import reader
from pgtare.observing.doctor import session as doctor
from pgtare.observing.doctor.examine import examine
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.inventory import InventoryServer
from pgtare.postgres.sql_text import storable
from pgtare.postgres.wait_counters.counter_table import ACTIVE_NS, SUMS
from tests.agent_rows import (
    TICK_S,
    WAITS_KEYS,
    at_work,
    epochs,
    flat,
    grown,
    held_lock,
    load,
    look,
    new_looks,
    role_dsn,
    rows_of,
    summed,
)
from tests.commands import failed, in_process, pgtare, read_until, refused
from tests.servers import serving, stopped_at_once
from tests.sessions import eventually, one, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

CONFIG = """
[intervals]
waits = "2s"
statements = "4s"
sessions = "1s"
activity = "4s"
[servers.shop]
dsn = "{dsn}"
"""


@pytest.fixture(
    scope="module", params=["wheel", pytest.param("debian15", marks=pytest.mark.debian)]
)
def watched(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server that captures waits, and a role that may see what others do."""
    binaries: Binaries = request.getfixturevalue(request.param)
    with stopped_at_once(serving(binaries, preload=["pg_stat_statements"])) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
            connection.execute("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
        note_closed_schema(cluster)
        yield cluster


def note_closed_schema(cluster: Cluster) -> None:
    """If the module is in a schema of its own, `check` prints the GRANT, which helps."""
    done = in_process("agent", "check", "--dsn", role_dsn(cluster))
    grants = re.findall(r"GRANT USAGE ON SCHEMA (?:[^;]*;) GRANT EXECUTE ON [^;]*;", done.stdout)
    with cluster.connect() as connection:
        for grant in grants:
            connection.execute(grant.encode())
    again = in_process("agent", "check", "--dsn", role_dsn(cluster))
    assert again.returncode == 0
    assert again.stdout.split("\n")[1].split()[-2:] == ["exact", "exact"]


def test_rows_sum_to_the_last_reading_less_the_first_in_every_column(watched: Cluster) -> None:
    looks = new_looks()
    with (
        session(watched) as busy,
        session(watched) as admin,
        ServerSession(role_dsn(watched)) as opened,
    ):
        assert opened.offer.waits is not None
        looks.begin(opened)
        admin.execute("SELECT wait_event_timing_reset()")
        batches = [look(looks, opened, minute=True)]
        assert "waits" not in batches[0].rows
        for _ in range(3):
            load(busy)
            batches += [look(looks, opened), look(looks, opened, minute=True)]
        last = flat(batches[-1])
        waits = [table for batch in batches for table in batch.rows.get("waits", [])]
        assert summed(waits, WAITS_KEYS) == grown(flat(batches[0]), last)
        assert last["client backend", "Timeout", "PgSleep", "calls"] >= 120
        # panels of statements add up to those of waits
        statements = [table for batch in batches for table in batch.rows.get("statements", [])]
        assert summed(statements, ("type", "event")) == summed(at_work(waits), ("type", "event"))
        kinds = {row["kind"] for table in statements for row in table.to_pylist()}
        assert kinds == {"statement", "rest", "outside"}
        texts = [
            row["text"] for b in batches for t in b.rows.get("texts", []) for row in t.to_pylist()
        ]
        assert any("pg_sleep" in text for text in texts)
        assert {row["quality"] for t in statements for row in t.to_pylist()} == {"exact"}

        # all counters are reset: the baseline is zero, and the epoch another one
        admin.execute("SELECT wait_event_timing_reset()")
        load(busy)
        after = look(looks, opened, minute=True)
        assert epochs(after) != epochs(batches[-1])
        sums = summed(after.rows["waits"], WAITS_KEYS)
        last = flat(after)
        assert {c: v for c, v in sums.items() if c[-1] != "active_ns"} == {
            c: v for c, v in last.items() if c[-1] != "active_ns" and v
        }
        assert [row["kind"] for row in after.rows["gaps"][0].to_pylist()] == ["reset"]

        # counters of one process are reset: the next reading is the baseline
        admin.execute("SELECT wait_event_timing_reset(%s)", [busy.info.backend_pid])
        load(busy)
        first = look(looks, opened, minute=True)
        assert "waits" not in first.rows
        assert [row["kind"] for row in first.rows["gaps"][0].to_pylist()] == ["reset"]
        load(busy)
        again = look(looks, opened, minute=True)
        assert summed(again.rows["waits"], WAITS_KEYS) == grown(flat(first), flat(again))


def test_after_a_restart_the_baseline_is_zero(watched: Cluster) -> None:
    looks = new_looks()
    with ServerSession(role_dsn(watched)) as opened:
        looks.begin(opened)
        look(looks, opened)
        before = look(looks, opened)
        watched.stop("immediate")
        with pytest.raises(MeasurementError):
            look(looks, opened)
    watched.start()
    with session(watched) as busy, ServerSession(role_dsn(watched)) as opened:
        looks.begin(opened)
        load(busy)
        after = look(looks, opened, minute=True)
        assert epochs(after) != epochs(before)
        assert summed(after.rows["waits"], WAITS_KEYS) == grown(Counter(), flat(after))
        assert [row["kind"] for row in after.rows["gaps"][0].to_pylist()] == ["restart"]
        # statements of the minute begin anew as well
        assert "statements" not in after.rows


def test_an_extension_of_another_version_is_not_used(wheel: Binaries) -> None:
    with stopped_at_once(serving(wheel)) as cluster:
        with session(cluster) as admin:
            found = admin.execute(
                "SELECT proname, probin, prosrc FROM pg_proc WHERE proname = ANY(%s)",
                [list(queries.FUNCTION_NAMES[:3])],
            ).fetchall()
            assert len(found) == 3
            admin.execute("DROP EXTENSION wait_event_timing")
            for name, library, symbol in found:
                admin.execute(
                    f"CREATE FUNCTION {name}(OUT total_time float8) LANGUAGE c "
                    f"AS '{library}', '{symbol}'".encode()
                )
        checked = in_process("agent", "check", "--dsn", cluster.dsn())
        assert checked.returncode == 0
        assert "is of another version than the agent" in checked.stdout


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["stats", "off"])
def test_what_others_capture_is_what_counts(watched: Cluster, capture: str) -> None:
    """The agent leaves its own session out: neither it nor its doctor may take that for others."""

    def captured() -> bool:
        query = "SELECT DISTINCT capture FROM wait_event_timing_sessions() WHERE pid <> %s"
        found = {value for (value,) in rows(admin, query, admin.info.backend_pid)}
        return found == {capture}

    with session(watched) as admin:
        # one that is idle would keep the value that it has
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        admin.execute(f"ALTER SYSTEM SET wait_event_timing.capture = {capture}".encode())
        try:
            admin.execute("SELECT pg_reload_conf()")
            eventually(captured)
            with ServerSession(watched.dsn()) as opened:  # which may leave itself out
                report = examine(doctor.Session(opened.conn), 0.3)
            checked = in_process("agent", "check", "--dsn", role_dsn(watched))
        finally:
            admin.execute("ALTER SYSTEM RESET wait_event_timing.capture")
            admin.execute("SELECT pg_reload_conf()")
    assert report.waits is not None
    assert (report.waits.exact, report.waits.on_cpu_exact) == (capture != "off", capture != "off")
    observed = {one.name for one in report.observers}
    assert ("wait_event_timing" in observed) == (capture != "off")
    words = ["exact", "exact"] if capture != "off" else ["sampled", "none"]
    assert checked.stdout.split("\n")[1].split()[-2:] == words


def test_without_the_module_sessions_are_sampled(wheel: Binaries, tmp_path: Path) -> None:
    with stopped_at_once(Cluster(wheel, {"compute_query_id": True})) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
        checked = in_process("agent", "check", "--dsn", role_dsn(cluster))
        assert checked.returncode == 0
        assert checked.stdout.splitlines()[1].split()[-2:] == ["sampled", "none"]
        assert "no extension wait_event_timing" in checked.stdout
        with held_lock(cluster):
            spool = tmp_path / "spool"
            words = ("agent", "--dsn", role_dsn(cluster), "--spool", spool, "--duration", "6s")
            sampled: list[tuple[object, ...]] = []
            for _ in range(5):
                done = pgtare(*words)
                assert done.returncode == 0, done.stderr
                with reader.connect(spool) as found:
                    sampled = found.execute(
                        "SELECT quality, state, type, event, len(blockers) FROM sessions"
                        " WHERE type = 'Lock' ORDER BY ts"
                    ).fetchall()
                if len(sampled) >= 3:  # on a busy machine six seconds are over after few looks
                    break
        assert len(sampled) >= 3
        assert sampled[-1] == ("sampled", "active", "Lock", "advisory", 1)
        with reader.connect(spool) as found:
            assert found.execute("SELECT count(*) FROM waits").fetchall() == [(0,)]


@pytest.mark.slow
def test_a_held_lock_is_one_session_in_each_tick_though_the_agent_is_killed(
    watched: Cluster, started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    spool, config = tmp_path / "spool", tmp_path / "agent.toml"
    config.write_text(CONFIG.format(dsn=role_dsn(watched)))
    words = ("agent", "--config", config, "--spool", spool)
    count = "SELECT coalesce(sum(waits), 0) FROM pg_stat_wait_event_timing_system" + (
        " WHERE wait_event = 'PgSleep' AND backend_type = 'client backend'"
    )
    with session(watched) as busy, held_lock(watched):
        before = one(busy, count)
        agent = started(*words)
        eventually(lambda: ticks(spool) >= 2, 60)
        assert "another process" in refused(*words)
        other = failed(pgtare("agent", "--dsn", watched.dsn(), "--spool", tmp_path / "other"), 1)
        assert "another pgtare agent watches this server" in other
        load(busy)
        os.kill(agent.pid, signal.SIGKILL)
        agent.communicate()
        load(busy)
        seen = ticks(spool)
        time.sleep(3 * TICK_S + 1)  # so long that it counts as an absence
        agent = started(*words)
        eventually(lambda: ticks(spool) >= seen + 2, 60)
        load(busy)
        after = one(busy, count)
        seen = ticks(spool)
        eventually(lambda: ticks(spool) >= seen + 2, 60)
        text = config.read_text()
        another = f"{text}[servers.second]\ndsn = 'host=/nowhere'\n"
        for changed, said in (
            ("[servers", "the old configuration stays in force"),
            (another, "event=reload servers=2"),
            (another, "event=unreachable server=second"),
        ):
            if config.read_text() != changed:
                config.write_text(changed)
                agent.send_signal(signal.SIGHUP)
            read_until(agent, said)
        agent.send_signal(signal.SIGTERM)
        read_until(agent, "event=stopped")
        assert agent.wait(30) == 0
    with reader.connect(spool) as found:
        active = found.execute(
            "SELECT active_ns / covered_ns FROM waits WHERE type = 'Lock' AND event = 'advisory'"
        ).fetchall()
        assert len(active) == ticks(spool)
        assert all(abs(sessions - 1) <= 0.01 for (sessions,) in active), active
        ((calls,),) = found.execute(
            "SELECT sum(calls) FROM waits WHERE event = 'PgSleep'"
            " AND backend_type = 'client backend'"
        ).fetchall()
        assert calls == after - before
        gaps = found.execute("SELECT kind FROM gaps").fetchall()
        assert gaps == [("absence",)]
        kinds = {kind for (kind,) in found.execute("SELECT DISTINCT kind FROM agent").fetchall()}
        assert {"cpu", "memory", "commit", "look_waits", "look_sessions"} <= kinds
        assert found.execute("SELECT count(*) > 0 FROM activity").fetchall() == [(True,)]


def ticks(spool: Path) -> int:
    """Ticks of waits that are committed."""
    try:
        with reader.connect(spool) as found:
            ((number,),) = found.execute(
                "SELECT count(*) FROM ticks WHERE source = 'waits'"
            ).fetchall()
            return int(number)
    except Exception:  # the spool is not there yet
        return 0


def test_the_lock_is_all_that_stays_in_the_session(watched: Cluster) -> None:
    with ServerSession(role_dsn(watched)) as opened, session(watched) as admin:
        looks = new_looks()
        looks.begin(opened)
        look(looks, opened, minute=True)
        looks.sessions(opened, 1)
        looks.activity(opened, 1)
        pid = opened.conn.info.backend_pid
        state = rows(admin, "SELECT state, xact_start FROM pg_stat_activity WHERE pid = %s", pid)
        assert state == [("idle", None)]
        held = rows(admin, "SELECT locktype FROM pg_locks WHERE pid = %s", pid)
        assert held == [("advisory",)]
        assert one(opened.conn, "SHOW statement_timeout") == "0"
    assert SUMS.index("active_ns") == ACTIVE_NS


def test_a_session_is_closed_though_its_lock_cannot_be_given_back(
    watched: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerSession(role_dsn(watched)) as opened:
        monkeypatch.setattr(queries, "UNLOCK", "SELECT no_such_function(%s, %s)")
    assert opened.conn.closed


def test_the_spool_says_which_data_directory_it_is(watched: Cluster) -> None:
    kept: dict[str, pa.Table] = {}
    with ServerSession(role_dsn(watched)) as opened, session(watched) as admin:
        described = ServerDescription("shop", "agent", kept.get)
        batches = [
            described.changed({"env": "prod"}, None),
            described.changed({"env": "prod"}, opened.offer),
            described.changed({"env": "prod"}, opened.offer),
        ]
        identifier = one(admin, "SELECT system_identifier FROM pg_control_system()")
        brought = [row for batch in batches for row in batch.rows.get("servers", [])]
        found = [
            (row["labels"], row["system_identifier"], row["standby"])
            for table in brought
            for row in table.to_pylist()
        ]
        assert found == [('{"env": "prod"}', None, None), ('{"env": "prod"}', identifier, False)]
        # as it is after a restart of the agent, before the server is reached again
        kept.update(batches[1].readings)
        again = ServerDescription("shop", "next", kept.get)
        assert again.changed({"env": "prod"}, None).rows == {}
        renamed = again.changed({"env": "test"}, None).rows["servers"][0].to_pylist()[0]
        assert renamed["system_identifier"] == identifier


def test_the_time_of_checks_and_of_findings_is_that_of_looks(watched: Cluster) -> None:
    with ServerSession(role_dsn(watched)) as opened:
        looks = new_looks()
        looks.begin(opened)
        looks.check(opened)
        checked = opened.seconds["findings"]
        assert checked > 0
        looks.evaluate(opened)
        assert opened.seconds["findings"] > checked


@pytest.mark.slow
def test_texts_are_cut_and_no_more_are_read_than_an_answer_may_have(watched: Cluster) -> None:
    """A cut text has the hash of the whole one."""
    with watched.connect() as connection, ServerSession(role_dsn(watched)) as opened:
        for number in range(4):
            array = ", ".join(["x"] * (50_000 + number))
            connection.execute(f"SELECT ARRAY[{array}] FROM (SELECT 1 AS x) a".encode())
        found = rows(
            connection,
            "SELECT queryid, query FROM pg_stat_statements WHERE length(query) > 140000",
        )
        assert len(found) == 4
        whole = {int(query_id): str(text) for query_id, text in found}
        with opened.look("texts"):
            ((length, ids, texts),) = opened.rows(queries.TEXTS, list(whole))
            short = queries.TEXTS.replace(str(queries.MOST_TEXTS_BYTES), "300000")
            ((_, fewer, _),) = opened.rows(short, list(whole))
            assert opened.rows(queries.TEXTS, [-1])[0][1:] == (None, None)
    assert length > 4 * 140_000
    assert sorted(ids) == sorted(whole)
    for query_id, text in zip(ids, texts, strict=True):
        assert len(text) < len(whole[query_id])
        assert storable(text) == storable(whole[query_id])
    assert len(fewer) == 2


def test_a_session_that_broke_off_does_not_lock_its_watch_out(watched: Cluster) -> None:
    first = ServerSession(role_dsn(watched))
    kept = one(
        first.conn,
        "SELECT array_agg(reset_val || source ORDER BY name) FROM pg_settings "
        "WHERE name LIKE 'tcp\\_keepalives%%'",
    )
    assert kept == ["3client", "15client", "5client"]
    with pytest.raises(AgentLocked, match="another pgtare agent watches"):
        ServerSession(role_dsn(watched))
    assert first.identity is not None
    with (
        pytest.raises(AgentLocked),  # the same process, but another session
        ServerSession(role_dsn(watched), ended=[first.identity._replace(began="1")]),
    ):
        pass
    with ServerSession(role_dsn(watched), ended=[first.identity]) as second:
        assert second.identity != first.identity
    with pytest.raises(psycopg.OperationalError):
        first.conn.execute("SELECT 1")
    first.conn.close()


def test_a_role_that_is_no_agent_keeps_none_out(watched: Cluster) -> None:
    take = "SELECT pg_advisory_lock(1885828193, 1634168436)"  # of LOCK_CLASS and LOCK_OBJECT
    with session(watched) as admin:
        admin.execute("DROP ROLE IF EXISTS intruder")
        admin.execute("CREATE ROLE intruder LOGIN")
        with psycopg.connect(watched.dsn(user="intruder"), autocommit=True) as intruder:
            intruder.execute(take)
            with ServerSession(role_dsn(watched)) as opened:
                (note,) = [each for each in opened.offer.unseen if "advisory lock" in each]
                assert f"process {intruder.info.backend_pid} of role intruder" in note
                assert opened.watched_by() is None
                assert opened.read_offer() == opened.offer
                intruder.execute("SELECT pg_advisory_unlock_all()")
                assert not [each for each in opened.read_offer().unseen if "lock" in each]
                with pytest.raises(AgentLocked):
                    ServerSession(role_dsn(watched))
        # a role that could be an agent's keeps others out, also by hand
        admin.execute("GRANT pg_monitor TO intruder")
        with psycopg.connect(watched.dsn(user="intruder"), autocommit=True) as intruder:
            intruder.execute(take)
            with pytest.raises(AgentLocked):
                ServerSession(role_dsn(watched))
        admin.execute("DROP ROLE intruder")


@pytest.mark.parametrize("at_once", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_extension_that_goes_and_comes_back_is_noticed(
    wheel: Binaries, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Also if it is back before what the server has is looked at again."""
    brought: list[Batch] = []

    def found(table: str) -> int:
        return sum(len(part) for batch in list(brought) for part in batch.rows.get(table, []))

    def gaps() -> list[dict[str, Any]]:
        # a look that comes late on a busy machine is an absence, which is a gap as well
        return [row for row in rows_of(brought, "gaps") if row["kind"] != "absence"]

    with stopped_at_once(serving(wheel)) as cluster, session(cluster) as admin:
        intervals = Intervals(waits="1s", statements="2s", sessions="0.5s")
        watch = server_watch.ServerWatch(
            new_looks(),
            InventoryServer(dsn=cluster.dsn()),
            intervals,
            lambda server, batch: brought.append(batch),
            AgentLog(),
        )
        read_offer = ServerSession.read_offer

        def read_after_it_came_back(asked: ServerSession) -> Offer:
            admin.execute("CREATE EXTENSION IF NOT EXISTS wait_event_timing")
            return read_offer(asked)

        watch.start()
        try:
            eventually(lambda: found("waits"))
            if at_once:
                monkeypatch.setattr(ServerSession, "read_offer", read_after_it_came_back)
            admin.execute("DROP EXTENSION wait_event_timing")
            (lost,) = eventually(gaps)
            assert lost["kind"] == "lost"
            assert "wait_event_timing" in lost["detail"]
            sampled = found("ticks")
            eventually(lambda: found("ticks") > sampled)
            counted = found("waits")
            monkeypatch.setattr(server_watch, "_OFFER_S", 0.5)
            admin.execute("CREATE EXTENSION IF NOT EXISTS wait_event_timing")
            eventually(lambda: found("waits") > counted)
        finally:
            watch.stop.set()
            watch.join(60)
        assert not watch.is_alive()
