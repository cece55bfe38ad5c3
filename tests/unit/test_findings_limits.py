"""Limits that come near: what is told of them, when, and who is named."""

from __future__ import annotations

import pytest

from pgtare.observing.findings import limits
from pgtare.observing.findings.model import LIMIT, OUTAGE
from pgtare.observing.findings.observation import (
    ConnectionCount,
    LockTable,
    ServerCounters,
    ServerNow,
    ServerState,
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
    state = ServerState(settings=MULTIXACTS, after=counters, now=ServerNow(oldest=idle(9)))
    found = list(limits.check(state))
    assert [one.key for one in found] == ([] if key is None else [key])
    for one in found:
        assert (one.level, one.root.pid if one.root else 0) == (level, 9)
        assert one.title.endswith(": the transaction of cron (pid 9) is the oldest")
        commands = [each.command for each in one.remedy]
        assert commands[0].startswith("SELECT pg_terminate_backend(9)")
        assert "idle_in_transaction_session_timeout" in commands[1]


@pytest.mark.parametrize(
    ("locks", "objects", "level"),
    [(11_000, 5_000, None), (11_700, 5_000, "warning"), (6_000, 8_000, "critical")],
)
def test_a_lock_table_that_fills_names_who_has_the_most(
    locks: int, objects: int, level: str | None
) -> None:
    sizes = {"max_locks_per_transaction": "64", "max_connections": "100"}
    table = LockTable(locks, objects, 4_000, 3, idle(9))
    settings_ = {**sizes, "max_prepared_transactions": "0"}
    found = list(limits.check(ServerState(settings=settings_, lock_table=table)))
    assert [one.level for one in found] == ([] if level is None else [level])
    for one in found:
        assert "the most by cron" in one.title
        assert one.remedy[0].command.startswith("SELECT pg_terminate_backend(9)")
    assert list(limits.check(ServerState(settings=sizes, lock_table=table))) == []
