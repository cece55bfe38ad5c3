"""Sending a spool to a store, ClickHouse's own engine: counts and sums are equal after faults."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.keeping.spool import manifest
from pgtare.keeping.spool.publication import with_segment
from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.writer import Spool
from pgtare.keeping.store import push_memory, push_thread, pushed_rows, repair
from pgtare.keeping.store.connection import StoreConnection, StoreError
from pgtare.keeping.store.pusher import SpoolPusher
from pgtare.keeping.store.repair import PartialCommits
from tests.small_volume import raise_no_space
from tests.unit.spool_rows import UNLIMITED, catch_up, newest, random_rows
from tests.unit.store_engine import (
    COMMITS,
    SOME,
    at,
    commit,
    differences,
    engine,
    filled,
    new_store,
)

ALL = tuple(TABLES)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with engine(tmp_path_factory.mktemp("engine")) as found:
        yield found


@pytest.fixture(scope="module")
def store(client: Any) -> StoreConnection:
    """One for all tests: each has spools of its own."""
    return new_store(client)


def forget(store: StoreConnection, root: Path, *tables: str, where: str = "1") -> None:
    """Delete rows of a spool behind the agent's back."""
    for table in tables:
        store.command(
            f"ALTER TABLE {store.database}.{table} DELETE WHERE spool = '{newest(root).uuid}' "
            f"AND {where}",
            {"mutations_sync": 2},
        )


def partial(store: StoreConnection, root: Path) -> list[PartialCommits]:
    return [one for one in repair.partial(store) if one.spool == newest(root).uuid]


class Faults(StoreConnection):
    """A connection that fails as it is told to: before an insert, after it, or half way.

    Of the wire it is a stand-in; what is inserted and counted is real.
    """

    def __init__(self, of: StoreConnection) -> None:
        super().__init__(of._client, of.database)
        self.down = False
        self.lose_answers = self.tear = 0
        self.inserts: list[tuple[str, str | None]] = []

    def rows(self, *args: Any, **more: Any) -> list[tuple[Any, ...]]:
        if self.down:
            raise StoreError("connection refused")
        return super().rows(*args, **more)

    def insert(self, table: str, rows: Any, token: str | None = None) -> None:
        if self.down:
            raise StoreError("connection refused")
        self.inserts.append((table, token))
        if self.tear:
            self.tear -= 1
            super().insert(table, rows.slice(0, rows.num_rows // 2 + 1), f"{token}-torn")
            raise StoreError("the server was stopped")
        super().insert(table, rows, token)
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreError("timed out")

    def close(self) -> None:
        """The engine stays."""


Make = Callable[[Path], SpoolPusher]
QUIET_S = "pgtare.keeping.store.pusher.QUIET_S"


@pytest.fixture
def faults(store: StoreConnection) -> Faults:
    return Faults(store)


@pytest.fixture
def make(faults: Faults) -> Make:
    return lambda root: SpoolPusher(root, lambda: faults, COMMITS, lambda level, why: None)


def send_all(pusher: SpoolPusher) -> int:
    steps = 0
    while pusher.step():
        steps += 1
        assert steps < 1000
    return steps


def test_a_store_has_what_the_spool_has(tmp_path: Path, store: StoreConnection, make: Make) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(1, 9):
            commit(spool, index, *ALL)
        send_all(make(tmp_path))
        assert differences(store, tmp_path) == {}
        catch_up(spool, at(7200))  # roll-ups, and compaction of what was sent
        rolled = newest(tmp_path)
        assert rolled.of_table("waits_1h")
        pusher = make(tmp_path)
        while newest(tmp_path).seq % COMMITS:
            commit(spool, 100, *ALL)  # ten minutes later: correcting rows as well
        send_all(pusher)
    assert pusher.memory is not None
    assert pusher.memory.sent_seq == newest(tmp_path).seq
    assert differences(store, tmp_path) == {}
    last = pushed_rows.last_push(store, rolled.uuid)
    assert last is not None
    assert last.seq == pusher.memory.sent_seq
    for table, us in last.rolled_us.items():
        assert us <= newest(tmp_path).rolled_us[table]


def test_nothing_is_sent_to_a_store_of_another_version(tmp_path: Path, client: Any) -> None:
    """Later tables may take the rows of this version, and mean something else by them."""
    later = new_store(client)
    later.command(f"INSERT INTO {later.database}.version (version) VALUES (2)")
    faults = Faults(later)
    filled(tmp_path, 1, COMMITS)
    pusher = SpoolPusher(tmp_path, lambda: faults, COMMITS, lambda level, why: None)
    with pytest.raises(StoreError, match="its tables are of version 2 and this pgtare uses"):
        pusher.step()
    assert faults.inserts == []


def test_a_window_is_sent_when_it_is_complete(tmp_path: Path, faults: Faults, make: Make) -> None:
    pusher = make(tmp_path)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(1, COMMITS):
            commit(spool, index)
        assert not pusher.step()
        assert faults.inserts == []
        commit(spool, COMMITS)
        pusher.step()
        assert sorted(table for table, _ in faults.inserts) == sorted(SOME)
        assert pusher.memory is not None
        assert pusher.memory.sent_seq == COMMITS


@pytest.mark.slow
def test_twenty_minutes_without_a_store(
    tmp_path: Path, store: StoreConnection, faults: Faults, make: Make
) -> None:
    pusher, failures = make(tmp_path), 0
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for tick in range(60 + 120):  # after ten minutes there is no store for twenty
            faults.down = tick >= 60
            commit(spool, tick, "waits", "ticks")
            if tick % 3 == 0:
                spool.maintain(at(10 * tick), 10.0 * tick)
            if tick % 6 == 0:
                try:
                    send_all(pusher)
                except StoreError:
                    failures += 1
        assert failures == 20
        assert pusher.kept_seq < newest(tmp_path).seq - 100
        faults.down = False
        before = len(faults.inserts)
        send_all(pusher)
        assert len(faults.inserts) - before < 40, "late windows are sent together"
        sent = pusher.kept_seq
    assert newest(tmp_path).seq - sent < COMMITS
    assert differences(store, tmp_path, to=sent) == {}


@pytest.mark.slow
def test_a_lost_answer_is_no_second_insert(
    tmp_path: Path, store: StoreConnection, faults: Faults, make: Make
) -> None:
    pusher = make(tmp_path)
    filled(tmp_path, 1, COMMITS)
    faults.lose_answers = 2
    for _ in range(2):
        with pytest.raises(StoreError):
            pusher.step()
    pusher.step()
    assert differences(store, tmp_path) == {}
    assert len(faults.inserts) == len(SOME), "what was there already was counted, not sent again"


def test_a_duplicate_delivery_is_left_out(
    tmp_path: Path, store: StoreConnection, faults: Faults, make: Make
) -> None:
    """The same request twice, as a proxy may deliver it: the token is known."""
    deliver = StoreConnection.insert

    class Twice(Faults):
        def insert(self, table: str, rows: Any, token: str | None = None) -> None:
            deliver(self, table, rows, token)
            deliver(self, table, rows, token)

    twice = Twice(store)
    filled(tmp_path, 1, COMMITS, *ALL)
    SpoolPusher(tmp_path, lambda: twice, COMMITS, lambda level, why: None).step()
    assert differences(store, tmp_path) == {}


@pytest.mark.parametrize("noted", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_lost_memory_asks_the_store(
    tmp_path: Path, store: StoreConnection, faults: Faults, make: Make, noted: bool
) -> None:
    filled(tmp_path, 1, 3 * COMMITS)
    send_all(make(tmp_path))
    (tmp_path / push_memory.FILE).unlink()
    if not noted:
        forget(store, tmp_path, "pushes")
    sent = len(faults.inserts)
    pusher = make(tmp_path)
    send_all(pusher)
    assert len(faults.inserts) == sent
    assert pusher.memory is not None
    assert pusher.memory.sent_seq == 3 * COMMITS
    assert differences(store, tmp_path) == {}


@pytest.mark.parametrize("memory", [pytest.param("kept", marks=pytest.mark.slow), "lost"])
def test_a_torn_insert_is_kept_marked_and_repaired(
    tmp_path: Path, store: StoreConnection, faults: Faults, make: Make, memory: str
) -> None:
    pusher = make(tmp_path)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(1, COMMITS + 1):
            commit(spool, index)
        faults.tear = 1
        with pytest.raises(StoreError):
            pusher.step()
        pusher.step()
        assert list(differences(store, tmp_path)) == ["waits"]
        assert pusher.memory is not None
        assert [one.table for one in pusher.memory.partial] == ["waits"]
        assert pusher.kept_seq == 2, "the spool keeps the rows"
        for index in range(COMMITS + 1, 2 * COMMITS + 1):
            commit(spool, index)
        send_all(pusher)
        assert list(differences(store, tmp_path)) == ["waits"], "all else goes on"
        (one,) = partial(store, tmp_path)
        assert (one.table, one.seqs, one.rows) == ("waits", [3], 1), "the others are complete"
        repair.delete(store, one)
        assert partial(store, tmp_path) == []
        if memory == "lost":
            (tmp_path / push_memory.FILE).unlink()
        again = make(tmp_path)  # and the agent has been restarted meanwhile
        send_all(again)
    assert differences(store, tmp_path) == {}
    assert again.memory is not None
    assert (again.memory.partial, again.kept_seq) == ((), 2 * COMMITS)


def test_rows_that_somebody_deleted_are_sent_though_their_token_is_known(
    tmp_path: Path, store: StoreConnection, faults: Faults, make: Make
) -> None:
    pusher = make(tmp_path)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(1, COMMITS + 1):
            commit(spool, index)
        pusher.step()
        one_each = (
            f"SELECT seq, min(active_ns) FROM {store.database}.waits "
            f"WHERE spool = '{newest(tmp_path).uuid}' GROUP BY seq"
        )
        forget(store, tmp_path, "waits", where=f"(seq, active_ns) IN ({one_each})")
        (tmp_path / push_memory.FILE).unlink()
        forget(store, tmp_path, "pushes")
        pusher = make(tmp_path)
        pusher.step()
        assert list(differences(store, tmp_path)) == ["waits"]
        forget(store, tmp_path, "waits")
        pusher.look_at_partial()
        pusher.step()
    assert differences(store, tmp_path) == {}


@pytest.mark.slow
def test_a_wiped_spool_begins_another_one(
    tmp_path: Path, store: StoreConnection, make: Make
) -> None:
    root, copy = tmp_path / "spool", tmp_path / "copy"
    pusher = make(root)
    filled(root, 1, COMMITS)
    pusher.step()
    shutil.copytree(root, copy)
    shutil.rmtree(root)
    filled(root, COMMITS + 1, 3 * COMMITS)
    send_all(make(root))
    assert differences(store, root, copy) == {}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other agent sent lately."""
    monkeypatch.setattr(QUIET_S, 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_spool_restored_from_a_copy_waits_for_a_repair(
    tmp_path: Path, store: StoreConnection, make: Make
) -> None:
    root, copy = tmp_path / "spool", tmp_path / "copy"
    filled(root, 1, COMMITS)
    make(root).step()
    shutil.copytree(root, copy)
    filled(root, COMMITS + 1, 2 * COMMITS)
    make(root).step()
    remembered = (root / push_memory.FILE).read_bytes()
    shutil.rmtree(root)
    shutil.copytree(copy, root)
    (root / push_memory.FILE).write_bytes(remembered)
    pusher = make(root)
    with pytest.raises(StoreError, match="went back to commit 4"):
        pusher.step()
    with Spool.open(root, UNLIMITED) as spool:
        for index in range(50, 50 + 2 * COMMITS):
            commit(spool, index)
    with pytest.raises(StoreError, match="went back to commit 4"):
        pusher.step()
    for one in partial(store, root):
        repair.delete(store, one)
    send_all(pusher)
    assert differences(store, root) == {}


def test_another_server_is_not_asked_for_counts(
    tmp_path: Path, store: StoreConnection, faults: Faults, make: Make
) -> None:
    filled(tmp_path, 1, 2 * COMMITS)
    make(tmp_path).step()
    other = (tmp_path / push_memory.FILE).read_text().replace("00000000-", "11111111-", 1)
    (tmp_path / push_memory.FILE).write_text(other)
    with pytest.raises(StoreError, match="let url name one server"):
        make(tmp_path).step()


def test_unsent_rows_outlive_their_age_and_are_counted_if_dropped_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = SpoolLimits(most_bytes=1 << 60, reserve_bytes=0, kept_s=dict.fromkeys(
        ("ticks", "sessions", "minutes", "hours"), 60.0
    ))  # fmt: skip
    with Spool.open(tmp_path, limits) as spool:
        spool.sent_seq = 1
        commit(spool, 1, "sessions")
        commit(spool, 2, "sessions")
        catch_up(spool, at(3600))
        left = [one.first_seq for one in newest(tmp_path).of_table("sessions")]
        assert left == [2], "the first was sent and is too old"
        spool._limits = SpoolLimits(most_bytes=1, reserve_bytes=0)
        catch_up(spool, at(3600))
        assert newest(tmp_path).dropped["sessions"] == 6
        assert any("3 of them not sent to the store" in note for note in spool.take_notes())


def test_the_pace_of_retries() -> None:
    assert [push_thread.wait_s(n) for n in (1, 2, 3, 6, 50)] == [2, 4, 8, 60, 60]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("lost", "meanwhile", "then"),
    [
        pytest.param(8, 0, 500, marks=pytest.mark.slow),
        pytest.param(4, 6, 500, marks=pytest.mark.slow),
        (8, 20, 9_000),
        pytest.param(100, 120, 500, marks=pytest.mark.slow),
    ],
    ids=["none", "few", "on the next day", "many"],
)
def test_a_spool_restored_with_its_memory_is_noticed(
    tmp_path: Path, store: StoreConnection, make: Make, lost: int, meanwhile: int, then: int
) -> None:
    """Whatever it commits before the store answers again; the numbers are those of other rows."""
    root, copy = tmp_path / "spool", tmp_path / "copy"
    filled(root, 1, COMMITS)
    make(root).step()
    shutil.copytree(root, copy)
    filled(root, COMMITS + 1, COMMITS + lost)
    send_all(make(root))
    shutil.rmtree(root)
    shutil.copytree(copy, root)
    filled(root, then + 1, then + meanwhile)
    pusher = make(root)
    with pytest.raises(StoreError, match="went back to commit 4"):
        pusher.step()
    filled(root, then + 301, then + 300 + COMMITS)
    with pytest.raises(StoreError, match="went back to commit 4"):
        make(root).step()
    for one in partial(store, root):
        repair.delete(store, one)
    send_all(pusher)
    assert pusher.memory is not None
    assert differences(store, root, to=pusher.memory.sent_seq) == {}


@pytest.mark.slow
def test_a_sent_commit_that_a_damaged_manifest_loses_waits_for_a_repair(
    tmp_path: Path, store: StoreConnection, make: Make
) -> None:
    """The next commit covers its time again."""
    filled(tmp_path, 1, COMMITS)
    make(tmp_path).step()
    (tmp_path / manifest.NEWEST).write_bytes(b"")
    filled(tmp_path, COMMITS + 1, 3 * COMMITS)
    pusher = make(tmp_path)
    with pytest.raises(StoreError, match="went back to commit 3"):
        pusher.step()
    marked = partial(store, tmp_path)
    assert {tuple(one.seqs) for one in marked} == {(COMMITS,)}
    for one in marked:
        repair.delete(store, one)
    send_all(pusher)
    assert pusher.memory is not None
    assert pusher.memory.sent_seq == 3 * COMMITS
    assert differences(store, tmp_path, to=3 * COMMITS) == {}


@pytest.mark.slow
def test_a_full_disk_does_not_end_sending(
    tmp_path: Path,
    store: StoreConnection,
    faults: Faults,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pusher = make(tmp_path)
    filled(tmp_path, 1, COMMITS)
    pusher.step()
    filled(tmp_path, COMMITS + 1, 3 * COMMITS)
    with monkeypatch.context() as full:
        full.setattr(pusher._volume, "write", raise_no_space)
        send_all(pusher)
    assert differences(store, tmp_path) == {}
    remembered = push_memory.read(tmp_path)
    assert remembered is not None
    assert remembered.sent_seq == COMMITS
    sent = len(faults.inserts)
    again = make(tmp_path)
    send_all(again)
    assert len(faults.inserts) == sent, "what was there already was counted, not sent again"
    assert again.kept_seq == 3 * COMMITS
    assert differences(store, tmp_path) == {}
    pusher.step()
    assert push_memory.read(tmp_path) == pusher.memory


@pytest.mark.slow
def test_a_cloned_agent_is_noticed(
    tmp_path: Path, store: StoreConnection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go on from the same commit, and neither starts again."""
    root, copy = tmp_path / "spool", tmp_path / "copy"
    filled(root, 1, COMMITS)
    make(root).step()
    shutil.copytree(root, copy)
    first, other = make(root), make(copy)
    assert not first.step()
    assert not other.step()
    filled(root, COMMITS + 1, 2 * COMMITS)
    filled(copy, 501, 500 + COMMITS)
    first.step()
    for _ in range(2):
        with pytest.raises(StoreError, match="another agent sends the same spool"):
            other.step()
    filled(root, 2 * COMMITS + 1, 3 * COMMITS)
    first.step()
    assert partial(store, root) == []
    assert differences(store, root) == {}
    monkeypatch.setattr(QUIET_S, 0.0)  # the first one has gone
    with pytest.raises(StoreError, match="went back to commit 4"):
        other.step()
    for one in partial(store, copy):
        repair.delete(store, one)
    send_all(other)
    assert differences(store, copy) == {}


@pytest.mark.parametrize("commits", [0, COMMITS, 4 * COMMITS])
@pytest.mark.slow
def test_a_clone_that_starts_later_is_no_restored_spool(
    tmp_path: Path, store: StoreConnection, make: Make, commits: int
) -> None:
    root, copy = tmp_path / "spool", tmp_path / "copy"
    filled(root, 1, COMMITS)
    first = make(root)
    first.step()
    shutil.copytree(root, copy)
    filled(root, COMMITS + 1, 3 * COMMITS)
    send_all(first)
    filled(copy, 501, 500 + commits)
    with pytest.raises(StoreError, match="another agent sends the same spool"):
        make(copy).step()
    assert partial(store, root) == [], "a repair must not delete what the first one sent"
    assert differences(store, root) == {}


def test_other_rows_of_the_same_commit_have_another_token() -> None:
    rows = [random_rows("waits", [at(seconds)]) for seconds in (10, 20)]
    units = (
        pushed_rows.PushUnit("u", "waits", "2026-11-02", with_segment(some, "u-0000000001"))
        for some in (*rows, *rows)
    )
    assert len({unit.token(0) for unit in units}) == 2
