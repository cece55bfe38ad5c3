"""Limits that come near: what is told of them, when, and who is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtare.observing.findings import limits
from pgtare.observing.findings.model import LIMIT, OUTAGE
from pgtare.observing.findings.observation import (
    CATALOGUES,
    ConnectionCount,
    HorizonHolder,
    LockTable,
    ServerCounters,
    ServerNow,
    ServerState,
    SessionsSample,
    Slot,
)
from tests.unit.test_findings import idle


def test_limits_have_their_class_by_what_is_left() -> None:
    wide = {"max_connections": "100", "superuser_reserved_connections": "3"}

    def used(count: int) -> ServerState:
        busy = ConnectionCount("shop", "web", "idle", count)
        return ServerState(settings=wide, now=ServerNow(connections=(busy,)))

    assert list(limits.check(used(80))) == []
    (near,), (full,) = (list(limits.check(used(count))) for count in (85, 97))
    assert (near.class_, full.class_) == (LIMIT, OUTAGE)
    before, after = ServerCounters(0.0), ServerCounters(10.0, wal_bytes=10 << 20)
    slot = Slot("cdc", "logical", False, 3 << 30, "extended", 1 << 30)
    state = ServerState(
        settings={"max_slot_wal_keep_size": "4096"},
        before=before,
        after=after,
        slots=(slot,),
    )
    (found,) = limits.check(state)
    assert found.limit_left_s == pytest.approx(1024.0)
    assert (found.class_, found.object) == (OUTAGE, "cdc")


def test_connections_that_are_idle_are_ended_before_a_limit_refuses_more() -> None:
    wide = {"max_connections": "100", "superuser_reserved_connections": "3"}
    idle_ = ConnectionCount("shop", "o'web", "idle", 60)
    open_ = ConnectionCount("shop", "o'web", "idle in transaction", 35)
    (found,) = limits.check(ServerState(settings=wide, now=ServerNow(connections=(idle_, open_))))
    assert "95 connections, 60 of them idle, 35 idle in transaction" in found.evidence[1]
    commands = [one.command for one in found.remedy]
    assert commands[1].startswith("SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity")
    assert "usename = 'shop' AND application_name = 'o''web' AND state = 'idle'" in commands[1]
    assert "SET idle_session_timeout" in commands[2]
    assert commands[3] == 'ALTER ROLE "shop" CONNECTION LIMIT 58;'
    assert found.remedy[3].risk.endswith("are refused; it has 95 now")
    # sessions that leave transactions open are no idle ones
    (found,) = limits.check(
        ServerState(settings=wide, now=ServerNow(connections=(replace(open_, sessions=90),)))
    )
    commands = [one.command for one in found.remedy]
    assert "SET idle_in_transaction_session_timeout" in commands[1]
    assert not any("terminate" in command for command in commands)


def test_a_slot_that_has_lost_wal_has_no_consumer_to_bring_back() -> None:
    (found,) = limits.check(ServerState(slots=(Slot("cdc", "logical", False, 0, "lost", None),)))
    assert (found.class_, found.level) == (OUTAGE, "critical")
    assert found.remedy[0].does.startswith("make its consumer anew")
    assert found.remedy[1].command == "SELECT pg_drop_replication_slot('cdc');"
    assert "fills the disk" not in found.why


FREEZE = {"autovacuum_freeze_max_age": "200000000"}
OLD = ServerCounters(1.0, xid_age=1_900_000_000, xid_database="app")


def test_who_keeps_rows_from_being_frozen_is_named_and_ended_first() -> None:
    session = HorizonHolder("session", "cron", 9, 1_200_000_000, 90.0, "app")
    prepared = HorizonHolder("prepared", "pay-1", None, 1_800_000_000, 90.0, "app")
    slot = HorizonHolder(CATALOGUES, "cdc", None, 1_900_000_000, None, "other")
    elsewhere = replace(prepared, database="other")
    young = replace(prepared, age_xids=100)
    samples = (SessionsSample(1.0, 1.0, (idle(9),)),)
    for horizon, title, command in (
        ((session,), "cron (pid 9), which is idle in transaction, keeps", "SELECT pg_terminate"),
        ((session, prepared), "the prepared transaction 'pay-1' keeps", "ROLLBACK PREPARED"),
        ((session, slot), "the replication slot cdc keeps", ""),
        ((elsewhere, young), "the prepared transaction 'pay-1' keeps", "ROLLBACK PREPARED"),
        ((young,), "vacuum does not freeze the rows", "VACUUM (VERBOSE)"),
        ((), "vacuum does not freeze the rows", "VACUUM (VERBOSE)"),
    ):
        state = ServerState(settings=FREEZE, after=OLD, now=ServerNow(horizon=horizon))
        (found,) = limits.check(state, samples)
        assert (found.key, found.level) == ("limit/xid", "critical")
        assert found.title.startswith(title)
        assert found.remedy[0].command.startswith(command)
        assert (found.root is not None) == (horizon == (session,))


@pytest.mark.parametrize(
    ("settings", "value", "words"),
    [
        ({}, "2000", "do 10 times as much (the limit is 200 now)"),
        ({"autovacuum_vacuum_cost_limit": "-1", "vacuum_cost_limit": "400"}, "4000", "do 10 times"),
        ({"autovacuum_vacuum_cost_limit": "4000"}, "10000", "do 2.5 times as much (the limit is 4"),
        ({"autovacuum_vacuum_cost_limit": "10000"}, None, ""),
    ],
)
def test_autovacuum_is_given_more_than_it_has(
    settings: dict[str, str], value: str | None, words: str
) -> None:
    (found,) = limits.check(ServerState(settings=FREEZE | settings, after=OLD))
    given = [one for one in found.remedy if "autovacuum_vacuum_cost_limit" in one.command]
    assert len(given) == (value is not None)
    for one in given:
        assert f"SET autovacuum_vacuum_cost_limit = {value};" in one.command
        assert words in one.does
        assert one.risk


@pytest.mark.parametrize(("before", "told"), [(6, False), (7, True), (None, False)])
def test_a_consumer_that_confirms_nothing_is_told(before: int | None, told: bool) -> None:
    """One that goes on keeps up by itself."""
    slot = Slot("cdc", "logical", True, 3 << 30, "extended", 1 << 30, 42, "sink", 7)
    known = {} if before is None else {"cdc": before}
    size = {"max_slot_wal_keep_size": "4096"}
    found = list(limits.check(ServerState(settings=size, slots=(slot,), slots_before=known)))
    assert bool(found) == told
    for one in found:
        assert one.title.startswith("sink (pid 42) reads the replication slot cdc, but confirms")
        assert not any("drop" in each.command or "terminate" in each.command for each in one.remedy)


MULTIXACTS = {"autovacuum_multixact_freeze_max_age": "400000000"}


@pytest.mark.parametrize(
    ("counters", "key", "level"),
    [
        (ServerCounters(1.0, notify_usage=0.49), None, ""),
        (ServerCounters(1.0, notify_usage=0.5), "limit/notify", "warning"),
        (ServerCounters(1.0, notify_usage=0.95), "limit/notify", "critical"),
        (ServerCounters(1.0, multixact_age=410_000_000), None, ""),
        (ServerCounters(1.0, multixact_age=430_000_000), "limit/multixact", "warning"),
        (ServerCounters(1.0, multixact_age=1_900_000_000), "limit/multixact", "critical"),
    ],
)
def test_what_an_old_transaction_holds_up_names_it(
    counters: ServerCounters, key: str | None, level: str
) -> None:
    assert limits.has_to_do_with_age(MULTIXACTS, counters) == (key is not None)
    old = ServerNow(oldest=idle(9, xact_age_s=60.0))
    state = ServerState(settings=MULTIXACTS, after=counters, now=old)
    found = list(limits.check(state))
    assert [one.key for one in found] == ([] if key is None else [key])
    for one in found:
        assert (one.level, one.root.pid if one.root else 0) == (level, 9)
        assert "cron (pid 9)" in " ".join((one.title, *one.evidence))
        commands = [each.command for each in one.remedy if each.command]
        assert one.sure == "possible"
        if one.key == "limit/multixact":  # the session may be innocent, and a vacuum harms nobody
            assert commands.pop(0) == "VACUUM (VERBOSE);"
            assert all(each.does.startswith("if that does not") for each in one.remedy[1:])
            assert "idle_in_transaction_session_timeout" in commands[1]
        assert commands[0].startswith("SELECT pg_terminate_backend(9)")


@pytest.mark.parametrize(
    ("locks", "objects", "level"),
    [(11_000, 5_000, None), (11_700, 5_000, "warning"), (6_000, 8_000, "critical")],
)
def test_a_lock_table_that_fills_names_who_has_the_most(
    locks: int, objects: int, level: str | None
) -> None:
    sizes = {
        "max_locks_per_transaction": "64",
        "max_connections": "100",
        "max_worker_processes": "8",
        "max_wal_senders": "10",
        "autovacuum_max_workers": "3",
    }
    table = LockTable(locks, objects, 4_000, 3, idle(9))
    settings_ = {**sizes, "max_prepared_transactions": "0"}
    found = list(limits.check(ServerState(settings=settings_, lock_table=table)))
    assert [one.level for one in found] == ([] if level is None else [level])
    for one in found:
        assert "the most by cron" in one.title
        assert one.remedy[0].command.startswith("SELECT pg_terminate_backend(9)")
    assert list(limits.check(ServerState(settings=sizes, lock_table=table))) == []


def test_background_processes_have_places_in_the_lock_table_as_well() -> None:
    """Of a server with few connections they are most of them."""
    sizes = {
        "max_locks_per_transaction": "64",
        "max_connections": "20",
        "max_prepared_transactions": "0",
        "max_worker_processes": "8",
        "max_wal_senders": "10",
        "autovacuum_worker_slots": "16",
        "autovacuum_max_workers": "3",  # of these 16
    }
    for objects, levels in ((2_500, []), (2_700, ["warning"]), (3_500, ["critical"])):
        state = ServerState(settings=sizes, lock_table=LockTable(objects, objects, 9, 1, idle(9)))
        assert [one.level for one in limits.check(state)] == levels


def test_numbers_that_end_soon_are_told_however_late_autovacuum_begins() -> None:
    late = {
        "autovacuum_freeze_max_age": "2000000000",
        "autovacuum_multixact_freeze_max_age": "2000000000",
    }
    for age, keys in ((1_790_000_000, []), (1_810_000_000, ["limit/xid", "limit/multixact"])):
        counters = ServerCounters(1.0, xid_age=age, multixact_age=age)
        found = list(limits.check(ServerState(settings=late, after=counters)))
        assert [one.key for one in found] == keys
        assert all(one.level == "critical" for one in found)
        assert limits.has_to_do_with_age(late, counters) == bool(keys)


def test_nobody_can_connect_to_template0_to_vacuum_it() -> None:
    after = ServerCounters(
        1.0,
        xid_age=1_900_000_000,
        xid_database="template0",
        multixact_age=1_900_000_000,
        multixact_database="template0",
    )
    found = list(limits.check(ServerState(settings=FREEZE | MULTIXACTS, after=after)))
    assert len(found) == 2
    for one in found:
        assert not any("VACUUM" in each.command for each in one.remedy)
        assert one.remedy[0].does.startswith("let autovacuum freeze template0")
