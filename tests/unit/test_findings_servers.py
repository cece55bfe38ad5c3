"""Findings of the server's own state: whom they name, what they say of slots, what they advise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtare.observing.findings import compute, limits, queries, read, remedies, server_findings
from pgtare.observing.findings.episodes import Episodes
from pgtare.observing.findings.model import LIMIT, Finding, of_setting
from pgtare.observing.findings.observation import (
    CATALOGUES,
    ELSEWHERE,
    HorizonHolder,
    LockTable,
    Observation,
    ServerCounters,
    ServerNow,
    ServerState,
    SessionsSample,
    Slot,
)
from tests.unit.test_findings import NOW, idle, seen, session, statement_state, table, waiter

MULTIXACTS = {"autovacuum_multixact_freeze_max_age": "400000000"}
FREEZE = {"autovacuum_freeze_max_age": "200000000"}


def ends(found: Finding) -> list[str]:
    """Commands that end a session, or what it does."""
    return [one.command for one in found.remedy if "pg_terminate" in one.command]


# whom a limit names


@pytest.mark.parametrize(
    "counters",
    [ServerCounters(1.0, notify_usage=0.6), ServerCounters(1.0, multixact_age=430_000_000)],
)
def test_a_transaction_that_has_just_begun_holds_nothing_up(counters: ServerCounters) -> None:
    young = ServerNow(oldest=idle(9, xact_age_s=0.3))
    (found,) = limits.check(ServerState(settings=MULTIXACTS, after=counters, now=young))
    assert found.root is None
    assert "pid 9" not in " ".join((found.title, *found.evidence))
    assert not any("pg_" in one.command or "ALTER ROLE" in one.command for one in found.remedy)


WEB = HorizonHolder("session", "web", 8, 250_000_000, 2.0, "app")
CRON = HorizonHolder("session", "cron", 9, 250_000_000, 90_000.0, "crm")


def test_a_transaction_of_another_database_that_all_snapshots_see_is_named() -> None:
    """A statement's snapshot is as old as the oldest transaction that was open as it began."""
    state = ServerState(
        settings=FREEZE,
        after=ServerCounters(1.0, xid_age=260_000_000, xid_database="app"),
        now=ServerNow(horizon=(WEB, CRON)),
    )
    samples = (SessionsSample(1.0, 1.0, (session(8), idle(9, database="crm"))),)
    (found,) = limits.check(state, samples)
    assert found.title.startswith("cron (pid 9), which is idle in transaction, keeps")
    assert "in database crm" in found.evidence[1]
    assert found.root is not None
    assert found.root.pid == 9


def test_a_snapshot_elsewhere_keeps_rows_from_being_frozen_but_no_dead_ones() -> None:
    elsewhere = replace(CRON, kind=ELSEWHERE)
    state = statement_state(
        settings=FREEZE,
        after=ServerCounters(1.0, xid_age=260_000_000, xid_database="app"),
        tables=table(0, 0, live=100, dead=150_000, vacuumed_age_s=5.0),
        now=ServerNow(horizon=(elsewhere,)),
    )
    (found,) = compute.findings(seen(session(1), state=state))
    assert found.key == "limit/xid"
    assert found.title.startswith("cron (pid 9) keeps vacuum from freezing")
    # a session with a transaction number is what the others' snapshots are old by
    with_xid = replace(CRON, pid=10, age_s=60.0, database="app")
    both = replace(state, now=ServerNow(horizon=(elsewhere, with_xid)))
    (found,) = limits.check(both)
    assert "(pid 10)" in found.title


# slots and standbys

BUSY = {
    "before": ServerCounters(0.0),
    "after": ServerCounters(10.0, commits=10_000),
}


def dead_rows(holder: HorizonHolder, **more: object) -> list[Finding]:
    """Findings of a table with dead rows that was vacuumed five seconds ago."""
    fields: dict[str, object] = {
        "tables": table(0, 0, live=100, dead=20_000, vacuumed_age_s=5.0),
        "now": ServerNow(horizon=(holder,)),
        **BUSY,
        **more,
    }
    return list(server_findings.check(seen(session(1), state=statement_state(**fields))))


@pytest.mark.parametrize("kind", ["slot", "standby"])
def test_the_feedback_of_a_healthy_standby_is_no_old_snapshot(kind: str) -> None:
    for age_xids in (200, 10_000):
        assert dead_rows(HorizonHolder(kind, "standby1", None, age_xids, None)) == []
    old = HorizonHolder(kind, "standby1", None, 10_000_000, None)
    (found,) = dead_rows(old)
    assert found.sure == "likely"  # its age was estimated
    # most transactions only read: those that take a number are what its age is counted in
    few = {"after": ServerCounters(10.0, commits=10_000, xid_age=100)}
    (found,) = dead_rows(HorizonHolder(kind, "standby1", None, 10_000, None), **few)
    assert found.kind == "horizon"
    # of a server that commits nothing the age is not known
    assert dead_rows(old, before=None, after=None) == []


def test_a_slot_that_is_read_is_not_to_be_dropped() -> None:
    old = HorizonHolder("slot", "standby1", None, 10_000_000, None)
    slot = Slot("standby1", "physical", True, 0, "reserved", None, 42, "walreceiver")
    (found,) = dead_rows(old, slots=(slot,))
    text = found.model_dump_json()
    assert "drop" not in text
    assert "bring" not in text
    assert "hot_standby_feedback" in found.remedy[0].does
    (found,) = dead_rows(old, slots=(replace(slot, active=False, pid=None),))
    assert found.remedy[0].does.startswith("bring its consumer")
    assert "pg_drop_replication_slot('standby1')" in found.remedy[1].command


def test_a_consumer_that_decodes_and_confirms_nothing_is_to_be_looked_at() -> None:
    state = ServerState(
        settings=FREEZE,
        after=ServerCounters(1.0, xid_age=260_000_000, xid_database="app"),
        now=ServerNow(horizon=(HorizonHolder(CATALOGUES, "cdc", None, 250_000_000, None, "app"),)),
        slots=(Slot("cdc", "logical", True, 0, "reserved", None, 42, "sink", 7),),
    )
    (found,) = limits.check(state)
    assert found.title.startswith("the replication slot cdc keeps")
    assert "confirms nothing" in found.remedy[0].does
    assert "drop" not in found.model_dump_json()


def test_a_base_backup_is_no_standby_that_commits_could_wait_for() -> None:
    """It has an application's name, too, which `*` would match."""
    assert "FROM pg_stat_replication" in queries.STANDBYS.text
    assert "state IS DISTINCT FROM 'backup'" in queries.STANDBYS.text


# wraparound, and servers that take no writes


def test_wraparound_is_met_by_a_plain_vacuum_on_the_primary_only() -> None:
    after = ServerCounters(
        1.0, xid_age=1_900_000_000, xid_database="app", multixact_age=1_900_000_000
    )
    state = ServerState(settings=FREEZE | MULTIXACTS, after=after)
    found = list(limits.check(state))
    assert [one.key for one in found] == ["limit/xid", "limit/multixact"]
    for one in found:
        commands = [each.command for each in one.remedy]
        assert "VACUUM (VERBOSE);" in commands
        assert not any("FREEZE" in command for command in commands)
    assert list(limits.check(replace(state, standby=True))) == []


def test_what_a_standby_cannot_run_is_to_be_run_on_the_primary() -> None:
    state = statement_state(
        tables_before=table(0, 0), tables=table(50, 10_000_000, analyzed=False), standby=True
    )
    (found,) = compute.findings(seen(session(1), session(2), state=state))
    writing = [one for one in found.remedy if one.command]
    assert [one.command.split()[0] for one in writing] == ["CREATE"]
    assert all(one.does.startswith("on the primary: ") for one in writing)
    (found,) = compute.findings(seen(session(1), session(2), state=replace(state, standby=False)))
    assert not any("on the primary" in one.does for one in found.remedy)


# locks


def test_predicate_locks_are_no_locks_that_others_wait_for() -> None:
    """They have a table of their own."""
    for query in (queries.LOCK_TABLE, queries.LOCKS):
        assert "FROM pg_locks" in query.text
        assert "mode <> 'SIReadLock'" in query.text


STARTUP = session(9, backend_type="startup", role="", application="", state="")
SIZES = {
    "max_locks_per_transaction": "64",
    "max_connections": "100",
    "max_prepared_transactions": "0",
}


def test_a_lock_table_that_replay_fills_has_nobody_to_be_ended() -> None:
    held = LockTable(13_000, 8_000, 8_000, 1, STARTUP)
    (found,) = limits.check(ServerState(settings=SIZES, lock_table=held, standby=True))
    (only,) = found.remedy
    assert only.command == "ALTER SYSTEM SET max_locks_per_transaction = 128;"
    assert "all standbys first" in only.risk
    # a session is named and ended however young it is
    young = replace(held, holder=idle(9, xact_age_s=0.3))
    (found,) = limits.check(ServerState(settings=SIZES, lock_table=young))
    assert ends(found)


WORKER = session(9, None, backend_type="autovacuum worker", role="", application="")


def test_autovacuum_is_left_alone_and_has_no_role_to_be_altered() -> None:
    holder = HorizonHolder("session", "", 9, 500, 90.0, "app")
    name, fixes = server_findings.held_by(holder, WORKER)
    assert name == "autovacuum worker (pid 9)"
    (only,) = fixes
    assert only.does.startswith("let autovacuum finish: it gives way")
    assert not remedies.may_be_ended(WORKER)
    assert remedies.not_again(WORKER) == []
    assert remedies.end(STARTUP)[0].command == ""


def test_autovacuum_in_a_ring_or_as_the_gate_is_not_cancelled() -> None:
    worker: dict[str, object] = {
        "backend_type": "autovacuum worker", "role": "", "application": "", "query_age_s": 1.0
    }  # fmt: skip
    ring = (waiter(1, 2, **worker, xact_age_s=1.0), waiter(2, 1), waiter(3, 1))
    (found,) = compute.findings(seen(*ring))
    assert "in a ring" in found.title
    assert found.remedy[0].command.startswith("SELECT pg_cancel_backend(2)")
    vacuum = session(2, "Lock/relation", blockers=(1,), **worker)
    queue = [session(pid, "Lock/relation", blockers=(2,)) for pid in range(3, 8)]
    (found,) = compute.findings(seen(idle(1), vacuum, *queue))
    assert found.gate is not None
    assert not any("_backend(2)" in one.command for one in found.remedy)
    assert not any("standby" in one.does for one in found.remedy)


# what the agent opens at once


def counted(**after: int) -> ServerState:
    return ServerState(
        settings={"max_wal_size": "1024", "checkpoint_timeout": "300"},
        before=ServerCounters(0.0),
        after=ServerCounters(10.0, **after),
    )


@pytest.mark.parametrize(
    ("grown", "kind"),
    [
        ({"deadlocks": 1}, "deadlocks"),
        ({"new_sessions": 1_000}, "connections"),
    ],
)
def test_what_the_server_counts_is_told_when_it_is_seen_once(
    grown: dict[str, int], kind: str
) -> None:
    (found,) = server_findings.check(Observation([], state=counted(**grown)))
    assert found.kind == kind
    (change,) = Episodes().evaluate([found], NOW, 10.0)
    assert change.change == "open"


@pytest.mark.parametrize(
    ("times", "apart", "told"), [(2, 1, True), (2, 4, False), (4, 4, True), (4, 12, False)]
)
def test_checkpoints_are_told_when_max_wal_size_is_full_again_and_again(
    times: int, apart: int, told: bool
) -> None:
    """A batch that fills it once or twice is no reason to change a setting."""
    state = counted(checkpoints_requested=1, wal_bytes=300 << 20)
    (found,) = server_findings.check(Observation([], state=state))
    assert found.kind == "checkpoints"
    episodes, changes = Episodes(), []
    for n in range(times * apart):
        now = [] if n % apart else [found]
        changes += [one.change for one in episodes.evaluate(now, NOW + 10.0 * n, 10.0)]
    assert ("open" in changes) == told


def test_a_burst_does_not_ask_for_more_than_the_disk_may_have() -> None:
    """Of 300 MB a second; what it needs between two checkpoints would be 180 GB."""
    state = counted(checkpoints_requested=1, wal_bytes=3000 << 20)
    (found,) = server_findings.check(Observation([], state=state))
    assert found.remedy[0].command.startswith("ALTER SYSTEM SET max_wal_size = '4096MB'")
    assert "a full disk stops the server" in found.remedy[0].risk


def test_deadlocks_have_one_title_whoever_waits() -> None:
    titles = set()
    for name in ("web", "batch"):
        waiting = (waiter(2, 1, application=name), waiter(3, 1, application=name))
        (found,) = server_findings.check(seen(*waiting, state=counted(deadlocks=2)))
        titles.add(found.title)
        assert any(name in line for line in found.evidence)
    assert len(titles) == 1


# versions


@pytest.mark.parametrize("event", ["BufferExclusive", "BufferShared", "BufferShareExclusive"])
def test_a_page_that_many_sessions_change_is_one_in_every_version(event: str) -> None:
    at_work = (session(1, f"Buffer/{event}"), session(2, f"Buffer/{event}"))
    (found,) = compute.findings(seen(*at_work, state=statement_state()))
    assert f"queues for Buffer/{event}" in found.title
    assert "single pages" in found.why
    many = [session(pid, f"Buffer/{event}", query_id=pid) for pid in range(1, 16)]
    (found,) = compute.findings(seen(*many, state=ServerState()))
    assert f"queue for Buffer/{event}" in found.title


def test_who_waits_for_the_pins_of_a_page_queues_for_nothing() -> None:
    pinned = (session(1, "Buffer/BufferCleanup"), session(2, "Buffer/BufferCleanup"))
    assert compute.findings(seen(*pinned, state=statement_state())) == []


@pytest.mark.parametrize(
    ("reason", "title", "class_"),
    [
        (None, "has lost WAL that its consumer still needs", 0),
        ("wal_removed", "has lost WAL that its consumer still needs", 0),
        ("rows_removed", "rows that it needs were removed", 0),
        ("wal_level_insufficient", "wal_level", 0),
        ("idle_timeout", "idle_replication_slot_timeout", LIMIT),
        ("something_new", "something_new", 0),
    ],
)
def test_a_slot_that_was_invalidated_says_why_and_keeps_nothing(
    reason: str | None, title: str, class_: int
) -> None:
    slot = Slot("cdc", "logical", False, 60 << 30, "lost", None, reason=reason)
    (found,) = limits.check(ServerState(slots=(slot,)))
    assert title in found.title
    assert found.class_ == class_
    assert "GB" not in " ".join(found.evidence)
    assert "pg_drop_replication_slot('cdc')" in found.remedy[-1].command


@pytest.mark.parametrize("rate", [True, False])
def test_a_slot_past_its_limit_has_no_time_left(rate: bool) -> None:
    slot = Slot("s", "physical", False, 9 << 30, "unreserved", -(1 << 25))
    counters = (ServerCounters(0.0), ServerCounters(10.0, wal_bytes=100 << 20))
    before, after = counters if rate else (None, None)
    (found,) = limits.check(ServerState(slots=(slot,), before=before, after=after))
    assert "-" not in " ".join(found.evidence)
    assert "at the next checkpoint" in found.evidence[-1]
    assert (found.limit_left_s, found.level) == (0.0, "critical")


def test_columns_that_a_version_lacks_are_not_asked_for() -> None:
    assert "invalidation_reason" in queries.SLOTS.text
    assert "invalidation_reason" not in queries.SLOTS_16.text + queries.SLOTS_BEFORE_16.text
    assert "conflicting" in queries.SLOTS_16.text
    assert "conflicting" not in queries.SLOTS_BEFORE_16.text


@pytest.mark.parametrize(
    ("version", "query"),
    [
        (15, queries.SLOTS_BEFORE_16),
        (16, queries.SLOTS_16),
        (17, queries.SLOTS),
        (19, queries.SLOTS),
    ],
)
def test_each_version_is_asked_what_it_has(version: int, query: queries.Query) -> None:
    asked = []

    class Server:
        def rows(self, query: queries.Query, *_: object) -> list[tuple[object, ...]]:
            asked.append(query)
            return []

    assert read.slots(Server(), version) == ()
    assert asked == [query]


# smaller ones


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("CREATE UNIQUE INDEX ON orders (id)", "maintenance_work_mem"),
        ("REINDEX TABLE orders", "maintenance_work_mem"),
        ("VACUUM (FULL) orders", "maintenance_work_mem"),
        ("REPACK orders", "maintenance_work_mem"),
        ("SELECT * FROM orders ORDER BY id", "work_mem"),
    ],
)
def test_an_index_is_built_in_memory_of_its_own(text: str, setting: str) -> None:
    state = ServerState(texts={7: text})
    (found,) = compute.findings(seen(session(1, "IO/BufFileWrite"), state=state))
    assert f": {setting} is too small" in found.title
    assert found.remedy[0].command.startswith(f"SET {setting} = ")


def test_settings_are_read_again_after_each_change() -> None:
    forced = statement_state(settings={"plan_cache_mode": "force_generic_plan"})
    (found,) = compute.findings(seen(session(1), state=forced))
    (reset,) = [one for one in found.remedy if "SYSTEM" in one.command]
    assert reset.command == "ALTER SYSTEM SET plan_cache_mode = auto; SELECT pg_reload_conf();"
    assert "pg_reload_conf" in reset.privilege
    assert "pg_reload_conf" in remedies.setting("max_wal_size", "'4GB'", "").privilege


PLANS = of_setting(
    "plans", level="warning", title="auto_explain times some plans", evidence=[], why="",
    remedy=[], sure="likely", because="",
)  # fmt: skip


def test_timed_plans_do_not_hide_why_a_statement_is_slow() -> None:
    state = statement_state(tables_before=table(0, 0), tables=table(50, 10_000_000))
    first, second = compute.findings(seen(session(1), session(2), state=state), [PLANS])
    assert "reads orders from end to end" in first.title
    assert (first.share, second.share) == (1.0, None)
    # of what only works it is the best explanation
    for busy in (False, True):
        at_work = seen(session(1), session(2), state=statement_state())
        (found,) = compute.findings(at_work, [PLANS], busy=busy)
        assert (found.kind, found.share) == ("plans", 1.0)
    # unless few statements are timed
    few = PLANS.model_copy(update={"figures": {"sample_rate": 0.05}})
    first, _ = compute.findings(at_work, [few], busy=True)
    assert (first.kind, first.share) == ("plans", None)


@pytest.mark.parametrize(
    ("mode", "standby", "told"),
    [
        (None, False, True),
        ("on", False, True),
        ("off", False, False),
        ("on", True, False),
        ("always", True, True),
    ],
)
def test_an_archive_that_is_switched_off_does_not_fail(
    mode: str | None, standby: bool, told: bool
) -> None:
    after = ServerCounters(1.0, archive_failed=3, archive_failed_wal="0001", archive_failing=True)
    state = ServerState(
        settings={} if mode is None else {"archive_mode": mode}, after=after, standby=standby
    )
    assert bool(list(server_findings.check(Observation([], state=state)))) == told


def test_replay_that_never_cancels_is_not_waited_for_in_vain() -> None:
    assert "never, if that is -1" in remedies.REPLAY_CANCELS.does
