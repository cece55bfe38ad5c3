"""Whether the figures of findings are those of what happened: made-up sessions, known truth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtare.observing.findings import compute, queries
from pgtare.observing.findings.collector import FindingInputs, ServerKind
from pgtare.observing.findings.episodes import Episodes
from pgtare.observing.findings.model import ACTIVE, INFORMATION, OUTAGE, of_setting
from pgtare.observing.findings.observation import (
    AwaitedLock,
    Observation,
    SampledSession,
    ServerCounters,
    ServerNow,
    ServerState,
    SessionsSample,
)
from pgtare.observing.findings.partition import partition
from pgtare.observing.findings.queries import Query
from tests.unit.test_findings import NOW, idle, seen, session, waiter

ROWS = AwaitedLock(2, "transactionid", "ShareLock", "rows of hot", "hot", tag="hot")


def sampled(*samples: tuple[SampledSession, ...]) -> list[SessionsSample]:
    return [SessionsSample(NOW + n, 1.0, sessions) for n, sessions in enumerate(samples)]


def test_waits_after_a_root_has_gone_are_not_its() -> None:
    """Nobody was asked for whom the later ones wait: each does so for a moment."""
    held = (idle(1), *(waiter(pid, 1) for pid in range(2, 6)))
    after = tuple(session(pid, "Lock/transactionid", query_age_s=0.1) for pid in range(2, 6))
    locks = {pid: replace(ROWS, pid=pid) for pid in range(2, 6)}
    samples = sampled(*[held] * 5, *[after] * 15)
    # the statements are others, so nothing is known of their blockers
    samples[5:] = [
        replace(
            one,
            sessions=tuple(
                replace(row, query_us=row.pid + n, xact_us=row.pid + n, xact_age_s=0.1)
                for row in one.sessions
            ),
        )
        for n, one in enumerate(samples[5:])
    ]
    by_kind = {one.kind: one for one in compute.findings(Observation(samples, locks))}
    assert by_kind["lock"].share == pytest.approx(6 / 20)  # to the sample after it was last seen
    assert by_kind["hotlock"].share == pytest.approx(14 / 20)
    (found,) = compute.findings(Observation(samples, locks), recent_s=10.0)
    assert found.kind == "hotlock"


@pytest.mark.parametrize("is_looked_up", [True, False])
def test_a_new_queue_is_not_for_the_root_of_an_old_one(is_looked_up: bool) -> None:
    """Of its sessions some were asked for whom they wait, and not of all is known for what."""
    old = (idle(1), *(waiter(pid, 1) for pid in range(3, 9)))
    asked = [waiter(pid, 2, query_age_s=2.0) for pid in range(10, 20)]
    others = [session(pid, "Lock/transactionid", query_age_s=0.5) for pid in range(20, 40)]
    locks = {pid: replace(ROWS, pid=pid, tag="") for pid in range(3, 9)}
    cold = replace(ROWS, object="rows of cold", tag="")
    locks |= {pid: replace(cold, pid=pid) for pid in range(10, 20)}
    if is_looked_up:
        locks |= {pid: replace(cold, pid=pid) for pid in range(20, 40)}
    samples = sampled(*[old] * 18, *[(*old, idle(2), *asked, *others)] * 2)
    found = compute.findings(Observation(samples, locks))
    of_root = {one.root.pid: one.active_s for one in found if one.root is not None}
    assert of_root == {1: 120.0, 2: 60.0}


def test_waits_that_end_while_a_root_stays_are_not_its() -> None:
    held = (idle(1), *(waiter(pid, 1) for pid in range(2, 5)))
    samples = sampled(
        *(
            (*held, *(session(pid, "Lock/transactionid", query_us=n) for pid in range(5, 8)))
            for n in range(10)
        )
    )
    found = compute.findings(Observation(samples, {2: ROWS}))
    of_kind = {one.kind: one.active_s for one in found}
    # those of the last sample may be behind it
    assert of_kind == {"lock": 33.0, "hotlock": 27.0}


def test_whom_a_statement_waited_for_is_not_whom_it_waits_for_when_that_has_ended() -> None:
    first = (idle(1, xact_us=5), waiter(3, 1), session(2))
    then = (idle(2, xact_us=6), waiter(3), session(1, xact_us=7))
    last = (idle(2, xact_us=6), waiter(3, 2), session(1, xact_us=7))
    causes = partition(Observation(sampled(first, first, then, then, then, last))).causes
    of_root = {one.root.pid: one.seconds for one in causes if one.root is not None}
    assert of_root == {1: 2.0, 2: 4.0}
    # of two holders the older one counts, and may end before the other
    both = (idle(1, xact_us=5), idle(2, xact_us=6), waiter(3, 1, 2))
    one = (idle(2, xact_us=6), waiter(3))
    causes = partition(Observation(sampled(both, both, one))).causes
    of_root = {one.root.pid: one.seconds for one in causes if one.root is not None}
    assert of_root == {1: 2.0, 2: 1.0}
    # what holds a lock outside of a transaction is idle, and only seen if asked for
    rests = session(1, "Client/ClientRead", state="idle", xact_us=None)
    asked, then = session(3, "Lock/advisory", blockers=(1,)), session(3, "Lock/advisory")
    causes = partition(Observation(sampled((rests, asked), (then,)))).causes
    assert [cause.seconds for cause in causes] == [2.0]
    # nor is it known whom it waits for when nobody who was named is there
    gone = (waiter(3), session(1, xact_us=7))
    causes = partition(Observation(sampled(first, gone, gone))).causes
    assert {one.root.pid: one.seconds for one in causes if one.root is not None} == {1: 2.0}


def test_the_age_of_a_statement_is_not_the_age_of_its_wait() -> None:
    """A procedure that commits again and again is one statement, for hours."""
    hours = 7200.0
    calls = [
        tuple(
            session(pid, "Lock/transactionid", blockers=(1,), query_age_s=hours, xact_age_s=0.3)
            for pid in range(2, 8)
        )
        for _ in range(10)
    ]
    (found,) = compute.findings(Observation(sampled(*((idle(1), *one) for one in calls))))
    assert found.class_ == ACTIVE
    assert found.figures["longest_wait_s"] == 0.3
    assert found.since is not None
    assert found.since.timestamp() == pytest.approx(NOW - 0.3)


def test_a_wait_is_no_older_than_what_its_session_did_before() -> None:
    works = tuple(session(pid, query_age_s=900.0, xact_age_s=900.0) for pid in range(2, 8))
    waits = tuple(replace(one, type="Lock", event="relation", blockers=(1,)) for one in works)
    whole = Observation(sampled(*[(idle(1), *works)] * 5, *[(idle(1), *waits)] * 4))
    (found,) = (one for one in compute.findings(whole) if one.kind == "lock")
    assert found.class_ == ACTIVE
    assert found.figures["longest_wait_s"] == 4.0


def test_the_server_notes_since_when_a_lock_is_waited_for() -> None:
    """A procedure in one transaction of hours, and a wait that began before the window."""
    hours = 7200.0
    calls = tuple(
        session(pid, "Lock/transactionid", blockers=(1,), query_age_s=hours, xact_age_s=hours)
        for pid in range(2, 8)
    )
    for waited_s, class_ in ((0.3, ACTIVE), (12.0, OUTAGE)):
        locks = {pid: replace(ROWS, pid=pid, waited_s=waited_s) for pid in range(2, 8)}
        samples = sampled((idle(1), *calls))
        (found,) = compute.findings(Observation(samples, locks))
        assert found.class_ == class_
        assert found.figures["longest_wait_s"] == pytest.approx(waited_s)


def test_a_statement_that_waits_again_and_again_is_no_outage() -> None:
    """Its age says nothing of the waits before the one at the end either."""
    ages = {"query_age_s": 7200.0, "xact_age_s": 7200.0}
    waits = tuple(session(pid, "Lock/transactionid", blockers=(1,), **ages) for pid in range(2, 8))
    locks = {pid: replace(ROWS, pid=pid, waited_s=0.3) for pid in range(2, 8)}
    (found,) = compute.findings(Observation(sampled(*[(idle(1), *waits)] * 5), locks))
    assert found.class_ == ACTIVE
    assert found.figures["longest_wait_s"] == 3.0  # since the window began, at most


def test_loads_that_write_much_log_are_no_outage_of_commits() -> None:
    samples = []
    for n in range(20):
        events = ("IO/WalWrite", "LWLock/WALInsert", "IO/WalSync", None)
        at_work = tuple(session(pid, events[(n + pid) % 4], query_age_s=300.0) for pid in range(4))
        samples.append(at_work)
    assert compute.findings(Observation(sampled(*samples))) == []
    stuck = [session(pid, "IO/WalSync", query_age_s=6.0) for pid in range(4)]
    (found,) = compute.findings(seen(*stuck))
    assert found.class_ == OUTAGE


def test_time_that_was_counted_and_never_sampled_is_active_time_too() -> None:
    """On few processors our own session keeps the others from them just when it looks."""
    samples = sampled(*[(idle(1), waiter(2, 1))] * 10)
    counted = {"Lock/transactionid": 10.0, "CPU": 25.0, "IO/DataFileRead": 5.0, "Activity/X": 9.0}
    whole = partition(Observation(samples, waited_s=counted | {"Timeout/PgSleep": 9.0}))
    assert (whole.active_s, whole.on_cpu) == (40.0, 2.5)
    assert [whole.share(one) for one in whole.causes] == [0.25]


def test_all_that_wait_at_once_are_counted() -> None:
    """Of most of them nobody was asked for whom they wait."""
    asked = [waiter(pid, 1) for pid in range(2, 22)]
    others = [session(pid, "Lock/transactionid") for pid in range(22, 102)]
    locks = {pid: replace(ROWS, pid=pid, tag="") for pid in range(2, 102)}
    (found,) = compute.findings(seen(idle(1), *asked, *others, locks=locks))
    assert found.figures["sessions"] == 100.0
    # and one that waits for one root, then for another, is not counted for both
    first, second = (idle(1), waiter(3, 1), waiter(4, 1)), (idle(2), waiter(3, 2), waiter(5, 2))
    both = [tuple(dict.fromkeys((*first, idle(2), waiter(5, 2)))), (*second, idle(1), waiter(4, 1))]
    causes = partition(Observation(sampled(*both, *both))).causes
    assert [one.most_waiters for one in causes] == [2, 2]


def test_of_many_statements_each_is_seen_now_and_then() -> None:
    """What they have in common is their time in the whole window, not that of the last seconds."""
    samples = [
        tuple(
            session(pid, "LWLock/LockManager", query_id=1000 * n + pid, query_us=n)
            for pid in range(20)
        )
        for n in range(20)
    ]
    (found,) = compute.findings(Observation(sampled(*samples)), recent_s=10.0)
    assert (found.kind, found.share, found.aas) == ("resource", 1.0, 20.0)
    quiet = sampled(*samples, *[(idle(1), session(2, "Client/ClientRead", query_age_s=1.0))] * 11)
    assert compute.findings(Observation(quiet), recent_s=10.0) == []


def test_a_setting_does_not_hide_that_all_commits_stand() -> None:
    stuck = [session(pid, "IO/WalSync", query_age_s=9.0) for pid in range(4)]
    check = of_setting(
        "checkpoints",
        level="warning",
        title="checkpoints are requested",
        evidence=[],
        why="",
        remedy=[],
        sure="certain",
        because="",
    )
    found = compute.findings(seen(*stuck), [check])
    assert [(one.kind, one.class_) for one in found] == [("log", OUTAGE), ("checkpoints", 3)]
    assert sum(one.share or 0.0 for one in found) == 1.0


@pytest.mark.parametrize(("began", "ended"), [(0, 11), (3, 41), (5, 60), (7, 27), (9, 33)])
def test_the_time_of_an_episode_is_that_of_its_waits(began: int, ended: int) -> None:
    """Windows overlap by a half: no second is in it twice, and none is left out."""
    episodes, state = Episodes(), ServerState()
    waits = [waiter(pid, 1, query_us=began) for pid in range(2, 8)]
    rows = [
        SessionsSample(NOW + n, 1.0, tuple([idle(1), *waits] if began < n <= ended else []))
        for n in range(1, 151)
    ]
    rows = [
        replace(
            one,
            sessions=tuple(
                replace(row, query_age_s=one.at - NOW - began, xact_age_s=60.0)
                for row in one.sessions
            ),
        )
        for one in rows
    ]
    last = None
    for end in range(10, 151, 10):
        window = [one for one in rows if end - 20 < one.at - NOW <= end]
        found = compute.findings(Observation(window, {2: ROWS}, state), recent_s=10.0)
        for change in episodes.evaluate(found, NOW + end, 10.0):
            last = change
    assert last is not None
    assert last.change == "close"
    assert last.episode.active_s == 6.0 * (ended - began)
    assert last.episode.since == NOW + began


def test_a_synchronous_standby_that_answers_at_once_is_no_fault() -> None:
    waits = [session(pid, "IPC/SyncRep", query_age_s=0.002) for pid in range(2, 8)]

    def state(commits: int, *standbys: str) -> ServerState:
        return ServerState(
            settings={"synchronous_standby_names": "berlin"},
            before=ServerCounters(NOW),
            after=ServerCounters(NOW + 10, commits=commits),
            now=ServerNow(standbys=standbys),
        )

    assert compute.findings(seen(*waits, state=state(40_000, "berlin"))) == []
    (told,) = compute.findings(seen(*waits, state=state(40_000, "berlin")), busy=True)
    assert (told.class_, told.level) == (INFORMATION, "info")
    for slow in (state(4_000, "berlin"), state(0, "berlin"), state(40_000)):
        (found,) = compute.findings(seen(*waits, state=slow))
        assert (found.kind, found.class_) == ("syncrep", ACTIVE)


def test_a_synchronous_standby_is_not_slow_because_commits_are_not_counted() -> None:
    state = ServerState(
        settings={"synchronous_standby_names": "berlin"}, now=ServerNow(standbys=("berlin",))
    )
    waits = [session(pid, "IPC/SyncRep", query_age_s=0.002) for pid in range(2, 8)]
    assert compute.findings(seen(*waits, state=state)) == []


def test_what_is_not_known_has_no_rate() -> None:
    known, unknown = ServerCounters(NOW), ServerCounters(NOW + 10, commits=20, wal_bytes=None)
    for before, after in ((known, unknown), (unknown, replace(known, at=NOW + 20))):
        assert ServerState(before=before, after=after).per_s("wal_bytes") is None
    assert ServerState(before=known, after=unknown).per_s("commits") == 2.0


def test_a_client_is_said_to_do_what_it_does_itself() -> None:
    """Others of its application may do something else."""
    reads = session(2, "Client/ClientWrite", query_age_s=90.0, xact_age_s=90.0)
    loads = session(3, "Client/ClientRead", query_age_s=10.0, xact_age_s=10.0)
    (found,) = compute.findings(seen(reads, loads))
    assert "(pid 2)" in found.title
    assert found.title.endswith("does not take its result")
    (found,) = compute.findings(seen(replace(reads, query_age_s=5.0), loads))
    assert "(pid 3)" in found.title
    assert found.title.endswith("sends no data")


def test_a_client_that_goes_on_is_not_to_be_ended() -> None:
    """As pg_dump over a slow network."""
    long = {"query_age_s": 900.0, "xact_age_s": 900.0}
    sends, works = session(2, "Client/ClientWrite", **long), session(2, **long)
    samples = [SessionsSample(NOW + n, 1.0, (works if n % 2 else sends,)) for n in range(10)]
    (found,) = (
        one for one in compute.findings(Observation(samples), busy=True) if one.kind == "client"
    )
    assert found.title.endswith("the client takes its result slowly")
    assert found.level == "info"
    assert not any(one.command for one in found.remedy)
    (found,) = compute.findings(seen(sends))
    assert found.level == "warning"
    assert any("pg_terminate_backend(2)" in one.command for one in found.remedy)


@pytest.mark.parametrize(("took_s", "times"), [(0.001, 12), (0.2, 2)])
def test_locks_that_are_slow_to_read_are_read_less_often(
    monkeypatch: pytest.MonkeyPatch, took_s: float, times: int
) -> None:
    """Reading pg_locks stops whoever takes a lock: a look of three seconds must not add to it."""
    now, reads = 1000.0, 0
    monkeypatch.setattr("time.monotonic", lambda: now)
    waits = (2, 1, 0, "shop", 0, "app", "web", "client backend", "active", "Lock", "relation", 7)

    class Server:
        def rows(self, query: Query, *_: object) -> list[tuple[object, ...]]:
            nonlocal now, reads
            if query is queries.LOCKS:
                now += took_s
                reads += 1
            return [(9, *waits, 1, 1, 1, None, None)] if query is queries.SESSIONS else []

    collector = FindingInputs(Server(), ServerKind(18, False, True))
    for _ in range(12):
        collector.sample(0.25)
        now += 0.25
    assert len(collector.samples) == 12
    assert reads == times
