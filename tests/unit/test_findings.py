"""Findings from made-up samples: who holds up whom, what takes the time, what is told first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtare.kit.terminal_text import plain
from pgtare.observing.findings import compute, read, remedies
from pgtare.observing.findings.model import ACTIVE, INFORMATION, OUTAGE, of_setting
from pgtare.observing.findings.observation import (
    AwaitedLock,
    HorizonHolder,
    Observation,
    RoleSetting,
    SampledSession,
    ServerNow,
    ServerState,
    SessionsSample,
    StatementTotals,
    TableTotals,
)
from pgtare.observing.findings.partition import partition
from pgtare.observing.findings.read import NOTIFY

NOW = 1_800_000_000.0


def session(pid: int, event: str | None = None, **more: object) -> SampledSession:
    """A session at work; event: as IO/DataFileRead, None on a processor."""
    type_, _, name = (event or "").partition("/")
    made = SampledSession(
        pid,
        1_000_000 * pid,
        "shop",
        "app",
        "web",
        "client backend",
        "active",
        type_ or None,
        name or None,
        7,
        8.0,
        8.0,
        8.0,
        query_us=1_700_000_000_000_001,
        xact_us=1_700_000_000_000_000,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def waiter(pid: int, *blockers: int, **more: object) -> SampledSession:
    return session(pid, "Lock/transactionid", blockers=blockers, **more)


def seen(*sessions: SampledSession, samples: int = 10, **more: object) -> Observation:
    """The same sessions in each of ten samples, a second apart."""
    made = [SessionsSample(NOW - samples + n + 1, 1.0, sessions) for n in range(samples)]
    return Observation(made, **more)  # type: ignore[arg-type]


def idle(pid: int, **more: object) -> SampledSession:
    return session(
        pid, "Client/ClientRead", state="idle in transaction", application="cron", **more
    )


ROWS = AwaitedLock(2, "transactionid", "ShareLock", "rows of hot", "hot")


def test_the_root_gets_the_time_of_all_that_wait_for_it() -> None:
    waiters = [waiter(pid, 1 if pid == 2 else 2) for pid in range(2, 8)]
    held = idle(1, client="10.0.0.3")
    (found,) = compute.findings(seen(held, *waiters, locks={2: ROWS}))
    assert (found.kind, found.class_, found.level) == ("lock", OUTAGE, "critical")
    assert (found.share, found.aas) == (1.0, 6.0)
    assert any(", client 10.0.0.3, idle in transaction for" in line for line in found.evidence)
    assert found.root is not None
    assert found.root.pid == 1
    assert found.title == "cron (pid 1) is idle in transaction and holds rows of hot"
    assert found.victims == [2, 3, 4, 5, 6, 7]
    assert found.since is not None
    assert found.since.timestamp() == pytest.approx(NOW - 9 - 8.0)
    assert found.remedy[0].command == (
        "SELECT pg_terminate_backend(1) FROM pg_stat_activity WHERE pid = 1"
        " AND backend_start = '1970-01-01 00:00:01.000000+00'"
        " AND xact_start = '2023-11-14 22:13:20.000000+00' AND state = 'idle in transaction';"
    )


def test_what_a_root_holds_is_what_those_wait_for_that_come_first() -> None:
    """The others wait for what these hold themselves."""
    first = waiter(2, 1)
    behind = [waiter(pid, 2) for pid in range(3, 9)]
    locks = {pid: replace(ROWS, object="rows of tellers") for pid in range(3, 9)}
    (found,) = compute.findings(seen(idle(1), first, *behind, locks={2: ROWS, **locks}))
    assert found.title.endswith("holds rows of hot")


def test_an_alter_that_waits_is_the_gate_and_its_cancelling_comes_first() -> None:
    reader = session(1, "Timeout/PgSleep", text="SELECT slow()", application="bi")
    alter = session(2, "Lock/relation", blockers=(1,), text="ALTER TABLE hot ADD x int")
    queue = [session(pid, "Lock/relation", blockers=(2,)) for pid in range(3, 8)]
    locks = {3: AwaitedLock(3, "relation", "AccessShareLock", "hot", "hot")}
    (found,) = compute.findings(seen(reader, alter, *queue, locks=locks))
    assert found.root is not None
    assert found.gate is not None
    assert (found.root.pid, found.gate.pid) == (1, 2)
    assert "bi (pid 1) runs «SELECT slow()» and holds hot; web (pid 2) waits" in found.title
    assert "«ALTER TABLE hot ADD x int»" in found.title
    first, second, *_ = found.remedy
    assert first.command.startswith("SELECT pg_cancel_backend(2) FROM")
    assert "query_start = '" in first.command
    assert second.command.startswith("SELECT pg_cancel_backend(1) FROM")
    assert found.share == 1.0  # who sleeps paces itself


def test_a_prepared_transaction_has_no_process() -> None:
    held = replace(ROWS, gid="it's", database="app", owner="tm", prepared_age_s=90.0)
    (found,) = compute.findings(seen(waiter(2, 0), locks={2: held}))
    assert found.key == "lock/2pc/it's"
    assert [one.command for one in found.remedy] == ["ROLLBACK PREPARED 'it''s';"]


def test_a_row_that_each_holds_for_a_moment_has_no_root() -> None:
    samples = []
    for n in range(10):
        holder = session(10 + n % 8, None, query_age_s=0.1, xact_age_s=0.1, xact_us=n)
        waiting = [
            waiter(10 + (n + k) % 8, holder.pid, query_age_s=0.2, xact_age_s=0.2)
            for k in range(1, 8)
        ]
        samples.append(SessionsSample(NOW + n, 1.0, (holder, *waiting)))
    texts = ServerState(texts={7: "UPDATE hot SET n = n + $1"})
    (found, *_) = compute.findings(Observation(samples, {10: ROWS}, texts))
    assert (found.kind, found.root) == ("hotlock", None)
    assert "UPDATE hot" in found.title
    assert found.share == pytest.approx(70 / 80)


def test_one_young_transaction_that_holds_up_others_all_the_time_is_the_root() -> None:
    young = idle(1, xact_age_s=0.4)
    (found,) = compute.findings(seen(young, waiter(2, 1), waiter(3, 1), locks={2: ROWS}))
    assert found.kind == "lock"


def test_commits_that_notify_wait_for_one_lock() -> None:
    committing = session(1, "IO/WalSync")
    waiting = [session(pid, "Lock/object", blockers=(1,)) for pid in range(2, 8)]
    locks = {pid: AwaitedLock(pid, "object", "AccessExclusiveLock", NOTIFY) for pid in range(2, 8)}
    found = compute.findings(seen(committing, *waiting, locks=locks))
    assert found[0].kind == "hotlock"
    assert "NOTIFY" in found[0].title
    assert found[0].share == pytest.approx(6 / 7)


def test_a_root_that_waits_for_the_log_hands_its_time_on() -> None:
    whole = partition(seen(session(1, "IO/WalSync"), waiter(2, 1), waiter(3, 1)))
    assert [(cause.kind, cause.seconds) for cause in whole.causes] == [("log", 30.0)]


def test_sessions_that_wait_for_each_other_are_a_ring() -> None:
    behind = waiter(3, 1, xact_age_s=1.0)
    (found,) = compute.findings(seen(waiter(1, 2, xact_age_s=3.0), waiter(2, 1), behind))
    assert "in a ring: web (pid 1), web (pid 2)" in found.title
    assert "in the same order" in found.remedy[-1].does
    # who only waits behind them is no part of it
    assert found.remedy[0].command.startswith("SELECT pg_cancel_backend(1)")


def test_workers_that_take_turns_are_no_ring() -> None:
    """One waited for the other a moment ago, and now it is the other way round."""
    young = {"query_age_s": 0.2, "xact_age_s": 0.2}
    first = (waiter(1, 2, **young), session(2, **young))
    second = (session(1, **young), waiter(2, 1, **young))
    both = (waiter(1, 2, **young), waiter(2, 1, **young))
    samples = [SessionsSample(NOW + n, 1.0, (first, second, both)[n % 3]) for n in range(9)]
    texts = ServerState(texts={7: "UPDATE hot SET n = n + $1"})
    rows = replace(ROWS, object="rows", relation=None)
    found = compute.findings(Observation(samples, {1: rows, 2: rows}, texts))
    assert [one.kind for one in found] == ["hotlock"]
    # which has moved on to a row of no name: its table is that of the statement
    assert "queue for rows of hot in" in found[0].title


@pytest.mark.parametrize(
    ("waited_s", "words"),
    [(60.0, "wait for hot: who holds it was not seen"), (0.5, "it for a moment only")],
)
def test_who_was_not_asked_for_is_not_said_to_hold_it_for_a_moment(
    waited_s: float, words: str
) -> None:
    """A server that answers slowly gives one sample, and nobody was asked yet."""
    lock_ = AwaitedLock(2, "relation", "AccessShareLock", "hot", "hot")
    waits = [session(pid, "Lock/relation", query_age_s=waited_s) for pid in (2, 3, 4)]
    (found,) = compute.findings(seen(*waits, samples=1, locks={2: lock_, 3: lock_, 4: lock_}))
    assert found.title.endswith(words)
    assert ("pg_blocking_pids" in found.remedy[0].command) == (waited_s > 5)


def test_many_waiters_of_whom_nobody_was_asked_are_for_the_root_that_is_known() -> None:
    asked = [waiter(pid, 1) for pid in range(2, 22)]
    others = [session(pid, "Lock/tuple") for pid in range(22, 120)]
    locks = {pid: ROWS for pid in range(2, 60)}
    (found,) = compute.findings(seen(idle(1), *asked, *others, locks=locks))
    assert found.root is not None
    assert (found.root.pid, found.share) == (1, 1.0)
    # they are asked by turns, the oldest every time
    waiting = list(range(100))
    turns = [read.asked(waiting, turn) for turn in range(9)]
    assert all(turn[:10] == waiting[:10] for turn in turns)
    assert {pid for turn in turns for pid in turn} == set(waiting)


def test_what_a_root_does_later_is_another_transaction() -> None:
    """Its own may have ended, and nobody waits for the new one."""
    held = idle(1)
    later = session(1, None, xact_us=1_700_000_009_000_000, query_us=1_700_000_009_000_000)
    samples = [SessionsSample(NOW + n, 1.0, (held, waiter(2, 1), waiter(3, 1))) for n in range(5)]
    samples += [SessionsSample(NOW + 5 + n, 1.0, (later,)) for n in range(4)]
    (found,) = compute.findings(Observation(samples, {2: ROWS}))
    assert "is idle in transaction" in found.title
    assert "2023-11-14 22:13:20" in found.remedy[0].command


@pytest.mark.parametrize("name", ["x SUPERUSER; --", 'x" SUPERUSER; --', "a\u00a0b", "line\nbreak"])
def test_a_name_stays_a_name_in_a_command(name: str) -> None:
    quoted = remedies.identifier(name)
    assert quoted.count('"') - 2 == 2 * name.count('"')
    assert plain(quoted) == quoted
    state = statement_state(
        role_settings=(RoleSetting(name, "", "plan_cache_mode", "force_generic_plan"),),
    )
    (found,) = compute.findings(seen(session(1, role=name), state=state))
    assert found.remedy[1].command == f"ALTER ROLE {quoted} RESET plan_cache_mode;"
    spills = {KEY: StatementTotals(calls=10, exec_s=20, temp_blocks=20_000)}
    (found,) = compute.findings(
        seen(session(1, role=name), state=statement_state(statements=spills))
    )
    assert any(one.command.startswith(f"ALTER ROLE {quoted} SET work_mem") for one in found.remedy)
    held = replace(ROWS, gid=name, database="app", owner="tm")
    (found,) = compute.findings(seen(waiter(2, 0), locks={2: held}))
    assert found.remedy[0].command == f"ROLLBACK PREPARED {remedies.literal(name)};"
    assert plain(found.remedy[0].command) == found.remedy[0].command


def test_advisory_locks_have_the_numbers_that_were_asked_for() -> None:
    def words(class_: int, object_: int, part: int) -> str:
        row = (2, "t", "advisory", "ExclusiveLock", None, None, "app", class_, object_, part)
        return read.locks([(*row, None, None, None, None, None)])[2].object

    assert words(2**32 - 1, 2**32 - 1, 1) == "advisory lock -1"
    assert words(0, 4711, 1) == "advisory lock 4711"
    assert words(2**32 - 5, 7, 2) == "advisory lock -5, 7"


def test_what_would_be_executed_is_not_to_be_analysed() -> None:
    def look(text: str) -> str:
        state = ServerState(texts={7: text})
        (found,) = compute.findings(seen(session(1), session(2), state=state), busy=True)
        return found.remedy[0].does

    assert "EXPLAIN (ANALYZE, BUFFERS) SELECT" in look("SELECT * FROM hot")
    for text in (
        "DELETE FROM hot",
        "SELECT pay($1)",
        "SELECT * FROM hot FOR NO KEY UPDATE",
        "SELECT * INTO copy FROM hot",
    ):
        assert look(text).startswith(f"EXPLAIN {text}")


def test_a_leader_and_those_who_stand_by_alarm_nobody() -> None:
    lock = AwaitedLock(2, "advisory", "ExclusiveLock", "advisory lock 99")
    leader = session(1, "Client/ClientRead", state="idle", xact_age_s=None)
    others = [session(pid, "Lock/advisory", blockers=(1,)) for pid in (2, 3)]
    (found,) = compute.findings(seen(leader, *others, locks={2: lock, 3: lock}))
    assert (found.level, found.class_) == ("info", INFORMATION)
    # a worker of another application that waits for it does not stand by
    (found,) = compute.findings(
        seen(leader, *(replace(one, application="shop") for one in others), locks={2: lock})
    )
    assert (found.level, found.kind) == ("critical", "lock")
    assert "pg_advisory_unlock" in found.remedy[0].does


@pytest.mark.parametrize("kind", ["autovacuum worker", "walsender", "startup"])
def test_no_remedy_ends_what_must_not_be_ended(kind: str) -> None:
    root = session(1, "IO/DataFileRead", backend_type=kind)
    (found,) = compute.findings(seen(root, waiter(2, 1), waiter(3, 1)))
    assert not any("terminate" in one.command or "cancel" in one.command for one in found.remedy)


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("autovacuum: VACUUM public.hot", "gives way to others by itself"),
        ("autovacuum: VACUUM public.hot (to prevent wraparound)", "prevents wraparound"),
    ],
)
def test_a_vacuum_that_does_not_give_way_is_told_from_others(text: str, does: str) -> None:
    worker = session(
        1,
        "Timeout/VacuumDelay",
        backend_type="autovacuum worker",
        application="",
        role="",
        text=text,
    )
    (found,) = compute.findings(seen(worker, waiter(2, 1), waiter(3, 1)))
    assert found.title.startswith("autovacuum worker (pid 1) is at work and holds")
    assert does in found.remedy[0].does


KEY = ("app", 7)
SCAN = "SELECT * FROM orders WHERE customer_ref = $1"


def statement_state(**more: object) -> ServerState:
    return ServerState(texts={7: SCAN}, **more)  # type: ignore[arg-type]


def table(scans: int, rows: int, **more: object) -> dict[str, TableTotals]:
    made = TableTotals("orders", scans, rows, 200_000, 0, None)
    return {"orders": replace(made, **more)}  # type: ignore[arg-type]


def test_a_busy_server_alone_is_no_fault() -> None:
    at_work = seen(session(1), session(2), state=statement_state(processors=2.0))
    assert compute.findings(at_work) == []
    (found,) = compute.findings(at_work, busy=True)
    assert (found.level, found.class_) == ("info", INFORMATION)


def test_a_table_without_statistics_is_told_with_the_statement() -> None:
    state = statement_state(processors=1.0, tables=table(50, 10_000_000, analyzed=False))
    (found,) = compute.findings(seen(session(1), session(2), state=state))
    assert "no ANALYZE of orders is known since counters were reset" in found.evidence
    assert found.remedy[0].command == "ANALYZE public.orders;"
    known = replace(state, tables=table(50, 10_000_000))
    (found,) = compute.findings(seen(session(1), session(2), state=known))
    assert not any("ANALYZE" in one for one in (*found.evidence, found.remedy[0].command))


def test_sequential_scans_explain_a_statement() -> None:
    state = statement_state(tables_before=table(0, 0), tables=table(50, 10_000_000))
    (found,) = compute.findings(seen(session(1), session(2), state=state))
    assert (found.kind, found.class_, found.level) == ("statement", ACTIVE, "warning")
    assert "reads orders from end to end" in found.title
    assert found.remedy[0].command == "CREATE INDEX CONCURRENTLY ON public.orders (customer_ref);"
    # what an UPDATE sets is no condition; of two tables nothing tells whose a column is
    for text, command in (
        (
            "UPDATE orders SET state = $1, seen = $2 WHERE customer_ref = $3",
            "CREATE INDEX CONCURRENTLY ON public.orders (customer_ref);",
        ),
        ("UPDATE orders SET state = $1", ""),
        ("SELECT * FROM orders o JOIN customers c ON c.id = o.customer_ref WHERE c.name = $1", ""),
        ("SELECT * FROM orders o, customers c WHERE c.id = o.customer_ref AND c.name = $1", ""),
    ):
        (found,) = compute.findings(
            seen(session(1), session(2), state=replace(state, texts={7: text}))
        )
        assert found.remedy[0].command == command
    # a nightly dump reads each table once
    once = statement_state(tables_before=table(0, 0), tables=table(1, 200_000))
    assert compute.findings(seen(session(1), session(2), state=once)) == []


def test_files_generic_plans_and_history_explain_a_statement() -> None:
    spills = {KEY: StatementTotals(calls=10, exec_s=20, temp_blocks=50_000)}
    (found,) = compute.findings(seen(session(1), state=statement_state(statements=spills)))
    assert "spills to temporary files" in found.title
    forced = (RoleSetting("shop", "", "plan_cache_mode", "force_generic_plan"),)
    (found,) = compute.findings(seen(session(1), state=statement_state(role_settings=forced)))
    assert "generic plan" in found.title
    other = (replace(forced[0], role="batch"),)
    assert compute.findings(seen(session(1), state=statement_state(role_settings=other))) == []
    slow = {KEY: StatementTotals(calls=10, exec_s=10)}
    past = {KEY: StatementTotals(calls=1000, exec_s=10)}
    (found,) = compute.findings(
        seen(session(1), state=statement_state(statements=slow, history=past))
    )
    assert "1 s a call now, 10 ms on average before" in " ".join(found.evidence)


def test_dead_rows_under_an_old_snapshot_take_over_their_statement() -> None:
    holder = HorizonHolder("session", "dash", 9, 500, 30.0, "app")
    state = statement_state(
        tables=table(0, 0, live=100, dead=150_000, vacuumed_age_s=5.0),
        now=ServerNow(horizon=(holder,)),
    )
    dash = idle(9)
    (found,) = compute.findings(seen(session(1), dash, state=state))
    assert (found.kind, found.class_, found.share) == ("horizon", ACTIVE, 1.0)
    assert "keeps vacuum from removing dead rows of orders" in found.title
    assert found.remedy[0].command.startswith("SELECT pg_terminate_backend(9)")
    # a statement's snapshot is as old as the prepared transaction that it has to look at
    prepared = HorizonHolder("prepared", "pay-1", None, 500, 90.0, "app")
    young_session = replace(holder, age_s=0.01)
    both = replace(state, now=ServerNow(horizon=(young_session, prepared)))
    (found,) = compute.findings(seen(session(1), state=both))
    assert "the prepared transaction 'pay-1' keeps vacuum" in found.title
    assert found.remedy[0].command == "ROLLBACK PREPARED 'pay-1';"
    # vacuum has not tried since the snapshot was taken
    young = replace(state, tables=table(0, 0, live=100, dead=150_000, vacuumed_age_s=40.0))
    assert compute.findings(seen(session(1), dash, state=young)) == []


def test_an_insert_walks_over_no_dead_rows() -> None:
    holder = HorizonHolder("session", "dash", 9, 500, 30.0, "app")
    state = statement_state(
        tables=table(0, 0, live=100, dead=150_000, vacuumed_age_s=5.0),
        now=ServerNow(horizon=(holder,)),
    )
    queue = [session(pid, "LWLock/BufferContent") for pid in (1, 2)]
    for text, shares in (
        ("INSERT INTO orders (id) VALUES ($1)", {"statement": 1.0, "horizon": None}),
        ("INSERT INTO orders SELECT id + 1 FROM orders", {"horizon": 1.0}),
    ):
        found = compute.findings(seen(*queue, idle(9), state=replace(state, texts={7: text})))
        assert {one.kind: one.share for one in found} == shares


def test_evictions_explain_only_waits_for_their_lock() -> None:
    """Not that many small statements want more processors."""
    full = of_setting(
        "evictions",
        level="warning",
        title="it is full",
        evidence=[],
        why="",
        remedy=[],
        sure="certain",
        because="the server counts them",
    )
    small = [session(pid, query_id=pid) for pid in range(1, 41)]
    texts = {pid: f"SELECT {pid} FROM orders" for pid in range(1, 41)}
    at_work = seen(*small, state=ServerState(texts=texts, processors=2.0))
    found = compute.findings(at_work, (full,))
    assert {one.kind: one.share for one in found} == {"cpu": 1.0, "evictions": None}


def test_a_setting_takes_over_what_it_explains() -> None:
    plans = of_setting(
        "plans",
        level="warning",
        title="auto_explain times every plan node",
        evidence=[],
        why="",
        remedy=[],
        sure="likely",
        because="",
    )
    (found,) = compute.findings(seen(session(1), session(2), state=statement_state()), [plans])
    assert (found.kind, found.class_, found.share) == ("plans", ACTIVE, 1.0)


def test_commits_that_wait_for_a_standby_name_it() -> None:
    settings_ = {"synchronous_standby_names": "FIRST 2 (berlin, paris)"}
    state = ServerState(settings=settings_, now=ServerNow(standbys=("paris",)))
    (found,) = compute.findings(seen(*(session(p, "IPC/SyncRep") for p in (1, 2)), state=state))
    assert found.class_ == OUTAGE
    assert "not connected: berlin" in found.title
    assert found.remedy[1].risk


def test_who_is_gone_is_left_out_and_still_counts() -> None:
    """The window is half a minute; what ended in it slows nobody now."""
    early = [SessionsSample(NOW + n, 1.0, (idle(1), waiter(2, 1))) for n in range(15)]
    late = [SessionsSample(NOW + 15 + n, 1.0, (session(3),)) for n in range(15)]
    observation = Observation([*early, *late])
    assert [one.kind for one in compute.findings(observation)] == ["lock"]
    assert compute.findings(observation, recent_s=10.0) == []
    assert partition(observation).active_s == 30.0


EVENTS = st.sampled_from(
    ["Lock/relation", "Lock/transactionid", "Lock/advisory", "Lock/extend", "IO/WalSync",
     "IPC/SyncRep", "Client/ClientRead", "LWLock/LockManager", "LWLock/pg_stat_statements",
     "IO/DataFileRead", "IO/BufFileWrite", "Timeout/PgSleep", None]
)  # fmt: skip


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    pids = list(range(1, draw(st.integers(1, 8)) + 1))
    samples = []
    for n in range(draw(st.integers(1, 6))):
        rows = []
        for pid in draw(st.lists(st.sampled_from(pids), unique=True)):
            event = draw(EVENTS)
            locked = bool(event) and str(event).startswith("Lock/")
            blockers = draw(st.lists(st.sampled_from([0, *pids]), max_size=3)) if locked else []
            rows.append(
                session(
                    pid,
                    event,
                    blockers=tuple(blockers),
                    query_id=draw(st.integers(1, 3)),
                    query_age_s=draw(st.floats(0, 100)),
                    xact_age_s=draw(st.none() | st.floats(0, 100)),
                    state=draw(st.sampled_from(["active", "idle in transaction"])),
                )
            )
        samples.append(SessionsSample(NOW + n, draw(st.floats(0.1, 3.0)), tuple(rows)))
    texts = {1: SCAN, 2: "UPDATE hot SET n = $1"}
    return Observation(samples, {1: ROWS}, ServerState(texts=texts, processors=1.0))


@settings(max_examples=60)
@given(observations(), st.booleans())
def test_every_second_is_told_once(observation: Observation, busy: bool) -> None:
    whole = partition(observation)
    spent = sum(cause.seconds for cause in whole.causes)
    assert spent == pytest.approx(whole.active_s)
    found = compute.findings(observation, busy=busy)
    assert sum(one.share or 0.0 for one in found) <= 1.0 + 1e-9
    assert len({one.key for one in found}) == len(found)
