"""Findings of who holds what others wait for, and of commits, from made-up samples."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from pgtare.observing.findings import compute, read
from pgtare.observing.findings.model import ACTIVE, OUTAGE
from pgtare.observing.findings.observation import (
    AwaitedLock,
    Observation,
    SampledSession,
    ServerCounters,
    ServerNow,
    ServerState,
    SessionsSample,
    StatementTotals,
)
from pgtare.observing.findings.partition import partition
from tests.processor_time import least_s
from tests.unit.test_findings import NOW, idle, seen, session, waiter

ROWS = AwaitedLock(2, "transactionid", "ShareLock", "rows of hot", "hot", tag="hot")
TABLE = AwaitedLock(2, "relation", "AccessShareLock", "hot", "hot")
ALTER = "ALTER TABLE hot ADD x int"


def committing(commits: int, **more: object) -> ServerState:
    """A server that commits so often in ten seconds."""
    made = ServerState(before=ServerCounters(NOW), after=ServerCounters(NOW + 10, commits=commits))
    return replace(made, **more)  # type: ignore[arg-type]


# several hold it at once


@pytest.mark.parametrize("readers", [2, 3, 5])
def test_several_that_hold_a_table_at_once_are_one_outage(readers: int) -> None:
    """What waits for all of them waits for the oldest, and for the others as well."""
    reading = [
        session(pid, "Timeout/PgSleep", text="SELECT slow()", xact_us=1_700_000_000_000_000 - pid)
        for pid in range(1, readers + 1)
    ]
    holders = tuple(range(1, readers + 1))
    alter = session(6, "Lock/relation", blockers=holders, text=ALTER)
    queue = [session(pid, "Lock/relation", blockers=(6,)) for pid in range(7, 20)]
    locks = {6: replace(TABLE, pid=6)}
    (found,) = compute.findings(seen(*reading, alter, *queue, locks=locks))
    assert (found.kind, found.class_) == ("lock", OUTAGE)
    assert found.root is not None
    assert found.gate is not None
    assert (found.root.pid, found.gate.pid) == (readers, 6)
    assert found.remedy[0].command.startswith("SELECT pg_cancel_backend(6)")
    oldest = f"web (pid {readers}) runs «SELECT slow()»"
    assert found.title.startswith(f"{oldest} and holds hot, and so do others; web (pid 6) waits")
    (told,) = (one for one in found.evidence if "it as well: " in one)
    assert "web (pid 1)" in told
    assert any("free when the last of them" in one.does for one in found.remedy)


def test_who_waits_itself_holds_nothing_up_for_as_long_as_a_holder() -> None:
    """Nobody was asked for whom pid 2 waits, and its transaction is older than the holder's."""
    waits = session(2, "Lock/relation", xact_us=5)
    others = [session(pid, "Lock/transactionid", blockers=(1, 2)) for pid in range(3, 9)]
    found = next(
        one for one in compute.findings(seen(idle(1), waits, *others)) if one.kind == "lock"
    )
    assert found.root is not None
    assert found.root.pid == 1


def test_sessions_that_each_hold_another_row_for_long_are_no_queue() -> None:
    holders = [idle(pid, xact_us=pid) for pid in range(1, 6)]
    waiting = [waiter(10 + pid, pid) for pid in range(1, 6)]
    locks = {10 + pid: replace(ROWS, pid=10 + pid, tag="") for pid in range(1, 6)}
    found = compute.findings(seen(*holders, *waiting, locks=locks))
    assert [one.kind for one in found] == ["lock"] * 5


# the gate


def test_a_session_that_waits_for_the_root_alone_takes_no_gate_away() -> None:
    held = idle(1)
    direct = waiter(2, 1)
    alter = session(3, "Lock/relation", blockers=(1, 2), text=ALTER)
    queue = [session(pid, "Lock/relation", blockers=(3,)) for pid in range(4, 20)]
    (found,) = compute.findings(seen(held, direct, alter, *queue, locks={2: ROWS}))
    assert found.gate is not None
    assert found.gate.pid == 3
    assert found.remedy[0].command.startswith("SELECT pg_cancel_backend(3)")
    assert "and others behind that" in found.title
    assert "16 wait behind web (pid 3)" in found.evidence
    # of many that wait for the root itself, few are behind it
    direct_ones = [waiter(pid, 1) for pid in range(20, 40)]
    (found,) = compute.findings(seen(held, *direct_ones, alter, *queue[:2], locks={20: ROWS}))
    assert found.gate is None


def test_the_gate_is_the_one_that_waits_for_a_table() -> None:
    """A session that waits for a row of the root is nearer to it."""
    alter = session(3, "Lock/relation", blockers=(2,), text=ALTER)
    queue = [session(pid, "Lock/relation", blockers=(3,)) for pid in range(4, 9)]
    (found,) = compute.findings(seen(idle(1), waiter(2, 1), alter, *queue, locks={2: ROWS}))
    assert found.gate is not None
    assert found.gate.pid == 3


# a holder that was seen idle


def test_a_holder_that_is_idle_has_let_the_row_go() -> None:
    """Whom others wait for is looked up a moment after they were seen to wait."""
    young = {"query_age_s": 0.01, "xact_age_s": 0.01}
    for pids in ((1, 2, 3), (1, 1, 1)):
        samples = []
        for n in range(9):
            gone = session(
                pids[n % 3],
                "Client/ClientRead",
                state="idle",
                xact_us=None,
                xact_age_s=None,
                query_age_s=0.01,
            )
            waiting = [waiter(pid, gone.pid, query_us=n, **young) for pid in (4, 5)]
            samples.append(SessionsSample(NOW + n, 1.0, (gone, *waiting)))
        (found,) = compute.findings(Observation(samples, {4: ROWS, 5: ROWS}))
        assert (found.kind, found.root) == ("hotlock", None)
        assert found.title.startswith("sessions queue for rows of hot")
        assert not any("terminate" in one.command for one in found.remedy)


def test_an_idle_holder_of_an_advisory_lock_is_ended_outside_of_a_transaction_only() -> None:
    lock = AwaitedLock(2, "advisory", "ExclusiveLock", "advisory lock 42")
    holder = session(1, "Client/ClientRead", state="idle", xact_us=None, xact_age_s=None)
    waiting = [
        session(pid, "Lock/advisory", blockers=(1,), application="shop") for pid in range(2, 9)
    ]
    (found,) = compute.findings(seen(holder, *waiting, locks={2: lock}))
    assert found.title == "web (pid 1) is idle and holds advisory lock 42"
    first, second = found.remedy
    assert first.command == ""
    assert "pg_advisory_unlock()" in first.does
    assert " AND xact_start IS NULL AND state = 'idle';" in second.command
    # what waits behind one of them waits for it as well
    behind = session(20, "Lock/relation", blockers=(2,))
    (found,) = compute.findings(seen(holder, *waiting, behind, locks={2: lock}))
    assert found.title.startswith("web (pid 1) is idle and holds advisory lock 42")
    assert found.share == 1.0


# advisory locks


def test_an_advisory_lock_that_was_never_given_back_is_no_election() -> None:
    lock = AwaitedLock(2, "advisory", "ExclusiveLock", "advisory lock 42")
    holder = session(1, "Client/ClientRead", state="idle", xact_us=None, xact_age_s=None)
    many = [session(pid, "Lock/advisory", blockers=(1,)) for pid in range(2, 42)]
    (found,) = compute.findings(seen(holder, *many, locks={2: lock}))
    assert (found.level, found.class_) == ("critical", OUTAGE)
    # who stands by does nothing else in its transaction
    begun = {"xact_us": 1_699_999_999_000_000}
    two = [session(pid, "Lock/advisory", blockers=(1,), **begun) for pid in (2, 3)]
    (found,) = compute.findings(seen(holder, *two, locks={2: lock}))
    assert found.level != "info"
    # a driver that sends Parse and Execute has its statement begin some µs after its transaction
    parsed = {"xact_us": 1_700_000_000_000_001 - 400}
    two = [session(pid, "Lock/advisory", blockers=(1,), **parsed) for pid in (2, 3)]
    (found,) = compute.findings(seen(holder, *two, locks={2: lock}))
    assert found.level == "info"


def turns(holders: tuple[int, ...], waiting: tuple[int, ...]) -> Observation:
    """A session that holds an advisory lock in each sample, now at work and now idle."""
    samples = []
    for n in range(12):
        pid = holders[n % len(holders)]
        young = {"query_us": n, "query_age_s": 0.01, "state_age_s": 0.01}
        holder = session(pid, xact_us=n, xact_age_s=0.01, **young)
        if n % 3 == 0:
            holder = session(pid, state="idle", xact_us=None, xact_age_s=None, **young)
        others = [
            session(one, "Lock/advisory", blockers=(pid,), query_us=n, xact_us=n)
            for one in waiting
            if one != pid
        ]
        samples.append(SessionsSample(NOW + n, 1.0, (holder, *others)))
    lock = AwaitedLock(2, "advisory", "ExclusiveLock", "advisory lock 42")
    return Observation(samples, dict.fromkeys(waiting, lock))


def test_workers_that_take_an_advisory_lock_in_turns_hold_it_for_a_moment() -> None:
    """Between the statement that it guards and the one that gives it back the holder is idle."""
    workers = tuple(range(1, 7))
    found = compute.findings(turns(workers, workers))
    assert [one.kind for one in found] == ["hotlock"]
    found = compute.findings(turns((1, 2, 1, 2), (1, 2, 3)))
    assert [one.kind for one in found] == ["hotlock"]


def test_a_leader_that_works_in_short_transactions_holds_its_lock_all_the_time() -> None:
    found = next(one for one in compute.findings(turns((1,), (2, 3))) if one.kind != "statement")
    assert (found.kind, found.level) == ("lock", "info")


@pytest.mark.parametrize("ring", [False, True])
def test_a_long_queue_takes_no_long_time_to_follow(ring: bool) -> None:
    """Each session of it waits for all that are ahead: of a row that all update, for example."""
    took = []
    for n in (100, 400):
        queue = [waiter(pid, *range(1, pid)) for pid in range(2, n + 2)]
        holder = waiter(1, 2) if ring else idle(1)
        observation = seen(holder, *queue, samples=1)
        took.append(least_s(functools.partial(partition, observation)))
        (cause,) = partition(observation).causes
        assert cause.root is not None
        assert (cause.root.pid, cause.ring, len(cause.waits)) == (1, ring, n + ring)
    assert took[1] < 30 * took[0] + 0.05


# builds of an index that wait for older transactions


def test_an_index_build_that_waits_for_an_older_transaction_is_let_finish() -> None:
    row = (2, "t", "virtualxid", "ShareLock", None, None, None, None, None, None)
    locks = read.locks([(*row, None, None, None, None, None)])
    dump = session(1, "Client/ClientWrite", application="pg_dump", text="COPY hot TO stdout")
    state = ServerState(texts={8: "CREATE INDEX CONCURRENTLY ON hot (x)"})
    build = session(2, "Lock/virtualxid", blockers=(1,), application="psql", query_id=8)
    observation = seen(dump, build, locks=locks, state=state)
    (found,) = (one for one in compute.findings(observation) if one.kind == "lock")
    assert "virtualxid" not in found.title
    assert found.title.startswith(
        "psql (pid 2) waits with «CREATE INDEX CONCURRENTLY ON hot (x)» until the transaction of "
        "pg_dump (pid 1) has ended"
    )
    assert (found.object, found.class_) == (None, ACTIVE)
    first, second, third, *_ = found.remedy
    assert first.command == ""
    assert second.command.startswith("SELECT pg_cancel_backend(2)")
    assert "INVALID" in second.does
    assert third.command.startswith("SELECT pg_cancel_backend(1)")
    # others wait behind the build: it is the one to cancel
    behind = [session(pid, "Lock/relation", blockers=(2,)) for pid in range(3, 8)]
    observation = seen(dump, build, *behind, locks={**locks, 3: TABLE})
    (found,) = (one for one in compute.findings(observation) if one.kind == "lock")
    assert "others wait behind that" in found.title
    assert found.class_ == OUTAGE
    assert found.remedy[0].command.startswith("SELECT pg_cancel_backend(2)")


def test_a_partition_that_is_being_detached_leaves_no_index() -> None:
    text = "ALTER TABLE visits DETACH PARTITION visits_2024 CONCURRENTLY"
    state = ServerState(texts={8: text})
    detach = session(2, "Lock/virtualxid", blockers=(1,), application="psql", query_id=8)
    (found,) = compute.findings(seen(idle(1), detach, state=state))
    (cancel,) = [one for one in found.remedy if "pg_cancel_backend(2)" in one.command]
    assert "FINALIZE" in cancel.does
    assert "INVALID" not in cancel.does


def test_a_prepared_transaction_whose_name_was_not_seen_is_no_session() -> None:
    """Locks are read a moment after the sessions, or not at all."""
    (found,) = compute.findings(seen(waiter(2, 0), waiter(3, 0)))
    assert found.title.startswith("a prepared transaction holds")
    (only,) = found.remedy
    assert "FROM pg_prepared_xacts" in only.command


def test_a_holder_whose_role_was_dropped_has_no_role_to_be_altered() -> None:
    (found,) = compute.findings(seen(idle(1, role=""), waiter(2, 1)))
    assert [one.command.split("(")[0] for one in found.remedy] == ["SELECT pg_terminate_backend"]


def test_a_session_that_hides_its_transaction_may_be_anothers_by_then() -> None:
    hidden = session(1, None, state="disabled", xact_us=None, query_us=None)
    (found,) = compute.findings(seen(hidden, waiter(2, 1)))
    (end,) = found.remedy
    assert end.command.startswith("SELECT pg_terminate_backend(1)")
    assert "may serve another client" in end.risk
    (found,) = compute.findings(seen(idle(1, role=""), waiter(2, 1)))
    assert "another client" not in found.remedy[0].risk


# standbys


def standbys(names: str, *connected: str, commits: int = 40_000) -> ServerState:
    return committing(
        commits,
        settings={"synchronous_standby_names": names},
        now=ServerNow(standbys=connected),
    )


MOMENT = [session(pid, "IPC/SyncRep", query_age_s=0.002) for pid in range(2, 8)]


@pytest.mark.parametrize(
    ("names", "connected"),
    [
        ("FIRST 1 (a, b)", ("a",)),
        ("any 1 (a, b)", ("b",)),
        ("2 (a, b, c)", ("c", "a")),
        ("a, b", ("b",)),
        ("Berlin", ("berlin",)),
        ('FIRST 1 ("New York", "42")', ("new york",)),
        ("2 (a)", ("a", "a")),
        ("*", ("x",)),
    ],
)
def test_a_spare_standby_that_is_not_there_delays_nobody(
    names: str, connected: tuple[str, ...]
) -> None:
    assert compute.findings(seen(*MOMENT, state=standbys(names, *connected))) == []


@pytest.mark.parametrize(
    ("names", "connected", "missing"),
    [
        ("FIRST 2 (a, b, c)", ("a",), "b"),
        ("ANY 1 (a, b)", ("x",), "a"),
        ("a, b", (), "a"),
        ('"New York"', ("york",), "New York"),
        ("*", (), "any standby"),
        ("2 (*)", ("x",), "any standby"),
    ],
)
def test_fewer_standbys_than_wanted_are_named(
    names: str, connected: tuple[str, ...], missing: str
) -> None:
    (found,) = compute.findings(seen(*MOMENT, state=standbys(names, *connected)))
    assert found.title.endswith(f"that is not connected: {missing}")


# the log


def test_loads_that_queue_to_write_to_the_log_are_no_commits() -> None:
    loads = [session(pid, "LWLock/WALInsert") for pid in range(1, 5)]
    (found,) = compute.findings(seen(*loads, state=committing(10)))
    assert found.title == "sessions queue to write to the log (WAL)"
    assert not any("commit" in one for one in (found.why, *found.evidence))
    assert not any("synchronous_commit" in one.command for one in found.remedy)
    # and those that write it, and work in between, in one statement
    samples = [
        SessionsSample(
            NOW + n,
            1.0,
            tuple(session(pid, (None, "IO/WalWrite")[(n + pid) % 2]) for pid in range(1, 5)),
        )
        for n in range(10)
    ]
    (found,) = compute.findings(Observation(samples, state=committing(10)))
    assert found.title == "sessions queue to write to the log (WAL)"


def test_slow_commits_show_among_many_transactions_that_only_read() -> None:
    def commits(event: str, age_s: float, **more: object) -> list[SampledSession]:
        begun = {"xact_us": 1_699_999_999_000_000, "query_age_s": age_s} | more
        return [session(pid, event, **begun) for pid in (1, 2)]

    slow = commits("IO/WalSync", 0.05)
    (found,) = compute.findings(seen(*slow, state=committing(20_000)))
    assert (found.kind, found.class_) == ("log", ACTIVE)
    assert any("each commit waits 100 ms for the log" in one for one in found.evidence)
    replicated = commits("IPC/SyncRep", 0.05)
    state = standbys("berlin", "berlin", commits=20_000)
    (found,) = compute.findings(seen(*replicated, state=state))
    assert (found.kind, found.class_) == ("syncrep", ACTIVE)
    assert compute.findings(seen(*commits("IO/WalSync", 0.002), state=committing(20_000))) == []
    # a statement that is its own transaction may have worked for as long as it is old
    own = {"xact_us": 1_700_000_000_000_001, "xact_age_s": 0.05}
    alone = commits("IO/WalSync", 0.05, **own)
    assert compute.findings(seen(*alone, state=committing(20_000))) == []


def test_slow_commits_of_single_statements_show_by_their_calls() -> None:
    """Two sessions at 20 calls a second, among 2,000 transactions that only read."""
    slow = [session(pid, "IO/WalSync", query_age_s=0.06, xact_age_s=0.06) for pid in (1, 2)]
    calls = {("app", 7): StatementTotals(calls=200, exec_s=1)}
    (found,) = compute.findings(seen(*slow, state=committing(20_000, statements=calls)))
    assert (found.kind, found.class_) == ("log", ACTIVE)
    assert any("each commit waits 100 ms" in one for one in found.evidence)
    # a procedure that commits a thousand times is one call: each commit is as old as its wait
    procedure = {("app", 7): StatementTotals(calls=1, exec_s=1)}
    fast = [replace(one, query_age_s=60.0, xact_age_s=0.002) for one in slow]
    assert compute.findings(seen(*fast, state=committing(20_000, statements=procedure))) == []
    # statements of which nothing is known count by all commits
    other = {("app", 8): StatementTotals(calls=1, exec_s=1)}
    assert compute.findings(seen(*slow, state=committing(20_000, statements=other))) == []


def test_a_row_whose_holders_commit_quickly_is_hot() -> None:
    """Eight sessions take turns at it, each for its commit: 2.5 ms, or as long as a slow disk."""
    samples = []
    for n in range(10):
        age = {"query_age_s": 0.002, "xact_age_s": 0.003}
        holder = session(10 + n % 8, "IO/WalSync", xact_us=n, **age)
        others = [waiter(10 + (n + k) % 8, holder.pid, query_age_s=0.02) for k in range(1, 8)]
        samples.append(SessionsSample(NOW + n, 1.0, (holder, *others)))
    texts = {7: "UPDATE hot SET n = n + $1"}
    found = compute.findings(Observation(samples, {10: ROWS}, committing(4_000, texts=texts)))
    assert [one.kind for one in found] == ["hotlock"]
    assert found[0].share == pytest.approx(7 / 8)
    (found_slow,) = compute.findings(Observation(samples, {10: ROWS}, committing(200, texts=texts)))
    assert (found_slow.kind, found_slow.share) == ("log", 1.0)
    assert any("each commit waits 50 ms for the log" in one for one in found_slow.evidence)


# locks of other kinds


def test_a_table_that_many_extend_has_a_remedy_of_its_own() -> None:
    lock = AwaitedLock(2, "extend", "ExclusiveLock", "the end of hot", "hot")
    loads = [session(pid, "Lock/extend", blockers=(1,), query_age_s=0.1) for pid in range(2, 9)]
    (found,) = compute.findings(seen(idle(1), *loads, locks={pid: lock for pid in range(2, 9)}))
    assert "the end of hot" in found.title
    assert "row" not in found.why
    assert "fewer sessions" in found.remedy[0].does


def test_how_long_a_lock_was_waited_for_counts_from_when_the_locks_were_read() -> None:
    """The agent reads them every five seconds at most, and keeps those of earlier readings."""
    hours = {"query_age_s": 7200.0, "xact_age_s": 7200.0}
    waits = [session(pid, "Lock/transactionid", blockers=(1,), **hours) for pid in range(2, 8)]
    locks = {pid: replace(ROWS, pid=pid, waited_s=2.0, read_at=NOW - 4) for pid in range(2, 8)}
    (found,) = compute.findings(seen(idle(1), *waits, locks=locks))
    assert found.figures["longest_wait_s"] == pytest.approx(6.0)
    # of an earlier wait it says nothing: one of the last sample is no older than its statement
    waits = [replace(one, query_age_s=0.5) for one in waits]
    (found,) = compute.findings(seen(idle(1), *waits, locks=locks, samples=1))
    assert found.figures["longest_wait_s"] == 0.5


def test_the_first_of_another_queue_is_no_holder() -> None:
    """Nobody was asked for whom pid 2 waits: it may not be the one that is to be cancelled."""
    first = session(2, "Lock/transactionid", xact_us=5)
    others = [session(pid, "Lock/tuple", blockers=(2,)) for pid in range(3, 9)]
    found = compute.findings(seen(first, *others))
    assert found
    assert all(one.kind != "lock" for one in found)
    assert not [step for one in found for step in one.remedy if "_backend(2)" in step.command]


def test_a_lock_of_an_earlier_statement_is_not_what_a_session_waits_for() -> None:
    """It gave up waiting for a row, and waits for an advisory lock now."""
    table = [waiter(pid, 1) for pid in range(2, 8)]
    locks = {pid: replace(ROWS, pid=pid, read_at=NOW - 20, tag="hot") for pid in range(2, 9)}
    late = session(8, "Lock/advisory", query_age_s=1.0)
    table = [replace(one, query_age_s=100.0) for one in table]
    found = compute.findings(seen(idle(1), *table, late, locks=locks))
    (of_table,) = (one for one in found if one.kind == "lock")
    assert of_table.victims == [2, 3, 4, 5, 6, 7]
    again = replace(late, query_age_s=100.0)
    (of_table,) = compute.findings(seen(idle(1), *table, again, locks=locks))
    assert of_table.victims == [2, 3, 4, 5, 6, 7, 8]
