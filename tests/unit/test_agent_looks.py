"""What the looks make of what a server answers; the answers are made up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from pgtare.keeping.agent import queries
from pgtare.keeping.agent.reading import UnsteadyReading
from pgtare.keeping.agent.rows import Batch
from pgtare.keeping.agent.server_looks import ACTIVITY, STATEMENTS, WAITS, ServerLooks
from pgtare.keeping.agent.server_session import LookRefused, ServerGone, ServerSession
from pgtare.postgres.wait_counters import steady_clock
from pgtare.postgres.wait_counters.counter_table import BUCKETS

SECOND_US = 1_000_000
BOOT_US = 1_790_000_000 * SECOND_US


class AnsweredSession:
    """Answers each query with the rows that are set."""

    def __init__(self, system_identifier: int = 1) -> None:
        self.seconds: dict[str, float] = {}
        self.offer = SimpleNamespace(
            system_identifier=system_identifier,
            waits=None,
            texts=None,
            trace=None,
            may_stat_file=False,
            sees_all=True,
        )
        self.answers: dict[str, list[tuple[Any, ...]]] = {}
        self.refusals: dict[str, Exception] = {}
        self.asked: list[tuple[Any, ...]] = []

    @contextlib.contextmanager
    def look(self, name: str, limit_s: float = 5.0) -> Iterator[None]:
        yield

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        self.asked.append((query, *values))
        if query in self.refusals:
            raise self.refusals[query]
        return self.answers[query]


def new_looks(stored: dict[str, pa.Table] | None = None) -> ServerLooks:
    return ServerLooks("shop", "agent", (stored or {}).get, 10)


def activity(
    looks: ServerLooks,
    commits: int,
    *,
    at_s: int,
    booted_s: int = 0,
    system_identifier: int = 1,
    recordings: Exception | None = None,
    seconds: float = 0.0,
) -> Batch:
    """A look at a server whose only database has so many commits, in a new session.

    recordings: fails to read. seconds: of looks at sessions before.
    """
    session = AnsweredSession(system_identifier)
    session.seconds = {"sessions": seconds}
    if recordings is not None:
        session.offer.trace, session.refusals = "public", {queries.RECORDINGS: recordings}
    session.answers = {
        queries.STARTED: [(BOOT_US + booted_s * SECOND_US, BOOT_US + at_s * SECOND_US)],
        queries.ACTIVITY: [(np.array([[5, 0, commits, *[0] * 12]], np.int64),)],
        queries.SETTINGS: [("{}",)],
        queries.DATABASES: [(5, "app")],
    }
    looks.begin(cast(ServerSession, session))
    return looks.activity(cast(ServerSession, session), 60)


def column(batch: Batch, table: str, name: str) -> list[Any]:
    return [value for part in batch.rows.get(table, []) for value in part[name].to_pylist()]


def test_activity_is_what_databases_did_since_the_last_look() -> None:
    looks = new_looks()
    assert activity(looks, 1000, at_s=3600).rows == {}
    assert column(activity(looks, 1007, at_s=3660), ACTIVITY, "commits") == [7]


def test_without_the_module_the_time_of_looks_comes_with_activity() -> None:
    looks = new_looks()
    assert column(activity(looks, 1000, at_s=3600, seconds=0.25), "agent", "kind") == []
    batch = activity(looks, 1007, at_s=3660, seconds=0.5)
    assert column(batch, "agent", "kind") == ["look_sessions"]
    assert column(batch, "agent", "value") == [0.5]
    assert column(batch, "agent", "covered_ns") == column(batch, ACTIVITY, "covered_ns")[:1]


def test_activity_of_another_server_is_a_new_baseline() -> None:
    looks = new_looks()
    activity(looks, 1000, at_s=3600)
    other = activity(looks, 900_000, at_s=3660, system_identifier=2)
    assert column(other, ACTIVITY, "commits") == []
    assert column(other, "gaps", "kind") == ["restart"]
    after = activity(looks, 900_003, at_s=3720, system_identifier=2)
    assert column(after, ACTIVITY, "commits") == [3]
    assert column(after, ACTIVITY, "settings") == ["{}"]


def test_activity_of_another_copy_is_a_new_baseline_also_after_the_agents_restart() -> None:
    stored = activity(new_looks(), 1000, at_s=3600).readings
    copy = activity(new_looks(stored), 900_000, at_s=3660, booted_s=-500)
    assert column(copy, ACTIVITY, "commits") == []
    assert column(copy, "gaps", "kind") == ["restart"]


def test_activity_goes_on_after_a_restart() -> None:
    stored = activity(new_looks(), 1000, at_s=3600).readings
    again = activity(new_looks(stored), 1004, at_s=3660, booted_s=3630)
    assert column(again, ACTIVITY, "commits") == [4]


@pytest.mark.parametrize("booted_s", [0, 7000], ids=["went on", "restarted"])
def test_an_absence_from_a_server_without_the_module_is_a_gap(
    booted_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of another run of this machine: only the server's clock says how long it was
    monkeypatch.setattr(steady_clock, "boot", lambda: None)
    stored = activity(new_looks(), 1000, at_s=3600).readings
    soon = activity(new_looks(stored), 1004, at_s=3660)
    assert column(soon, "gaps", "kind") == []
    late = activity(new_looks(stored), 1004, at_s=7200, booted_s=booted_s)
    assert column(late, ACTIVITY, "commits") == [4]
    assert column(late, "gaps", "kind") == ["absence"]
    assert column(late, "gaps", "covered_ns") == [3600 * 10**9]


def test_names_are_read_again_in_a_new_session() -> None:
    looks = new_looks()
    looks._roles, looks._databases, looks._names_read = {10: "old"}, {5: "old"}, 1e12
    session = AnsweredSession()
    session.answers = {queries.STARTED: [(BOOT_US, BOOT_US)]}
    looks.begin(cast(ServerSession, session))
    assert (looks._roles, looks._databases, looks._names_read) == ({}, {}, 0.0)


def test_the_processors_of_another_server_are_not_those_of_this_one() -> None:
    """Only the module says how many there are, and the next server may be without it."""
    looks = new_looks()
    counters(looks, counted(1000, at_s=3600))
    activity(looks, 1000, at_s=3660, system_identifier=2)
    batch = activity(looks, 1001, at_s=3720, system_identifier=2)
    assert column(batch, ACTIVITY, "commits") == [1]
    assert column(batch, ACTIVITY, "processors") == [None]


WAIT_ROW = b"client backend\x1fIO\x1fDataFileRead"


def counted(
    calls: int,
    *,
    at_s: int,
    skipped: int = 0,
    busy: int = 0,
    missing: bool = False,
    missed: int = 0,
    booted_s: int = 0,
    system_identifier: int = 1,
) -> AnsweredSession:
    """A server with the module: one event, of one statement, with so many waits of 1 ms.

    skipped: processes that could not be read; busy: buckets; missing: and the entry is in them.
    missed: waits that the module could not count.
    """
    session = AnsweredSession(system_identifier)
    session.offer.waits = "public"
    ns = calls * 1_000_000
    histogram = [calls, *[0] * (BUCKETS - 1)]
    waits = np.array([[0 if skipped else calls, ns, 0, 0, 0, 1, 0, skipped, *histogram]], np.int64)
    statement = [calls, ns, 0, 0, 0, 0, 10, 5, 77, 1, *histogram]
    left_out = [0, 0, 0, 0, 0, busy, 0, 0, 0, 0, *[0] * BUCKETS]
    rows = [] if missing else [(b"IO\x1fDataFileRead", statement)]
    rows += [(b"\x1f", left_out)] if busy else []
    now, began = BOOT_US + at_s * SECOND_US, BOOT_US + booted_s * SECOND_US
    session.answers = {
        queries.INFO: [(began, None, 0, now, missed, 0, 0, 0, began, 2.0)],
        queries.MOMENT: [(now, WAIT_ROW, waits)],
        queries.STATEMENTS: [
            (b"\x1e".join(name for name, _ in rows), np.array([row for _, row in rows], np.int64))
        ],
        queries.ROLES: [(10, "w")],
        queries.DATABASES: [(5, "app")],
    }
    return session


def counters(looks: ServerLooks, session: AnsweredSession) -> Batch:
    looks.begin(cast(ServerSession, session))
    return looks.counters(cast(ServerSession, session), 10, 60)


def test_waits_that_could_not_be_counted_are_those_of_this_server_and_of_this_run() -> None:
    def missed(session: AnsweredSession) -> list[float]:
        batch = counters(looks, session)
        kinds, values = column(batch, "agent", "kind"), column(batch, "agent", "value")
        return [value for kind, value in zip(kinds, values, strict=True) if kind == "missed"]

    looks = new_looks()
    assert missed(counted(1000, at_s=3600, missed=7)) == []
    assert missed(counted(1001, at_s=3610, missed=9)) == [2.0]
    assert missed(counted(3, at_s=3620, booted_s=3615, missed=4)) == [4.0], "since the restart"
    other: dict[str, Any] = {"system_identifier": 2, "booted_s": -9000}
    assert missed(counted(1000, at_s=3630, missed=500_000, **other)) == []
    assert missed(counted(1001, at_s=3640, missed=500_001, **other)) == [1.0]


@pytest.mark.parametrize("hole", [{"skipped": 1}, {"busy": 1, "missing": True}])
def test_a_reading_with_a_hole_is_no_baseline(hole: dict[str, Any]) -> None:
    looks = new_looks()
    with pytest.raises(UnsteadyReading):
        counters(looks, counted(1000, at_s=3600, **hole))
    assert counters(looks, counted(1001, at_s=3610)).rows.keys().isdisjoint({WAITS, STATEMENTS})
    after = counters(looks, counted(1004, at_s=3670))
    assert column(after, WAITS, "calls") == [3]
    assert column(after, STATEMENTS, "calls") == [3]


def test_a_reading_with_a_hole_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, session = new_looks(), counted(1000, at_s=3600, skipped=1)
    monkeypatch.setattr("time.sleep", lambda _: session.answers.update(whole.answers))
    whole = counted(1001, at_s=3600)
    counters(looks, session)
    assert column(counters(looks, counted(1004, at_s=3670)), WAITS, "calls") == [3]


def test_a_hole_in_a_later_reading_is_filled_from_the_baseline() -> None:
    looks = new_looks()
    counters(looks, counted(1000, at_s=3600))
    counters(looks, counted(1002, at_s=3610, skipped=1, busy=1, missing=True))
    after = counters(looks, counted(1004, at_s=3670))
    assert column(after, WAITS, "calls") == [4]
    assert sum(column(after, STATEMENTS, "calls")) == 4


@pytest.mark.parametrize("damaged", ["statements", "statements-info", "statements-waits"])
def test_of_a_stored_reading_of_statements_all_parts_are_needed(damaged: str) -> None:
    stored = counters(new_looks(), counted(1000, at_s=3600)).readings
    looks = new_looks({part: table for part, table in stored.items() if part != damaged})
    again = counters(looks, counted(1003, at_s=3660))
    assert column(again, WAITS, "calls") == [3]
    assert column(again, STATEMENTS, "calls") == []
    after = counters(looks, counted(1004, at_s=3720))
    assert column(after, STATEMENTS, "calls") == [1]


MIB = 1 << 20


def with_texts(calls: int, at_s: int, length: int, *, size: int | None = None) -> AnsweredSession:
    """A server with one statement, whose text is in a file of that size; length: of all texts."""
    session = counted(calls, at_s=at_s)
    session.offer.texts, session.offer.may_stat_file = "public", size is not None
    session.answers[queries.TEXTS_SIZE] = [(size,)]
    session.answers[queries.TEXTS] = [(length, [77], ["SELECT $1"])]
    return session


def asked_for(session: AnsweredSession) -> list[Any]:
    return [values for query, *values in session.asked if query == queries.TEXTS]


def test_texts_are_read_when_a_statement_is_unknown() -> None:
    looks = new_looks()
    counters(looks, with_texts(1, 0, 100))
    first = with_texts(2, 60, 100)
    batch = counters(looks, first)
    assert asked_for(first) == [[[77]]]
    assert column(batch, "texts", "text") == ["SELECT $1"]
    assert column(batch, STATEMENTS, "text_hash") == column(batch, "texts", "text_hash")
    again = with_texts(3, 120, 100)
    counters(looks, again)
    assert asked_for(again) == []


@pytest.mark.parametrize("size", [None, 20 * MIB])
def test_a_large_file_is_read_once_in_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    looks = new_looks()
    counters(looks, with_texts(1, 0, 20 * MIB, size=size))
    first = with_texts(2, 60, 20 * MIB, size=size)
    first.answers[queries.TEXTS] = [(20 * MIB, None, None)]  # it was not there yet
    counters(looks, first)
    assert asked_for(first) == [[[77]]]
    looks._texts._asked.clear()
    for later_s, asked in ((1599.0, []), (1600.0, [[[77]]])):
        now = later_s
        session = with_texts(3, 120, 20 * MIB, size=size)
        counters(looks, session)
        assert asked_for(session) == asked


def test_a_huge_file_is_not_read() -> None:
    looks = new_looks()
    counters(looks, with_texts(1, 0, 100, size=600 * MIB))
    session = with_texts(2, 60, 100, size=600 * MIB)
    assert column(counters(looks, session), STATEMENTS, "calls") == [1]
    assert asked_for(session) == []
    assert ["512 MiB" in note for note in looks.notes.values()] == [True]


def test_rows_go_on_if_texts_are_refused() -> None:
    looks = new_looks()
    counters(looks, with_texts(1, 0, 100))
    session = with_texts(2, 60, 100)
    session.refusals[queries.TEXTS] = LookRefused("invalid byte sequence for encoding", slow=True)
    assert column(counters(looks, session), STATEMENTS, "calls") == [1]
    assert ["invalid byte" in note for note in looks.notes.values()] == [True]
    again = with_texts(3, 120, 100)
    assert column(counters(looks, again), STATEMENTS, "calls") == [1]
    assert asked_for(again) == []


def test_a_session_that_ends_while_texts_are_read_is_not_ended_so_again_at_once() -> None:
    looks = new_looks()
    counters(looks, with_texts(1, 0, 100))
    session = with_texts(2, 60, 100)
    session.refusals[queries.TEXTS] = ServerGone("an answer is longer than 64 MiB")
    with pytest.raises(ServerGone):
        counters(looks, session)
    again = with_texts(3, 120, 100)
    assert column(counters(looks, again), STATEMENTS, "calls") == [2]
    assert asked_for(again) == []


def test_activity_is_not_lost_if_the_server_goes_while_recordings_are_read() -> None:
    looks = new_looks()
    activity(looks, 1000, at_s=3600)
    with pytest.raises(ServerGone):
        activity(looks, 1002, at_s=3660, recordings=ServerGone("the session ended"))
    assert column(activity(looks, 1007, at_s=3720), ACTIVITY, "commits") == [7]
    again = activity(looks, 1008, at_s=3780, recordings=LookRefused("no right"))
    assert column(again, ACTIVITY, "commits") == [1]
    assert ["no right" in note for note in looks.notes.values()] == [True]


def kept(number: int, at_us: int) -> tuple[Any, ...]:
    who = (42, 10, "app", 5, "shop", "worker", 77, 4096, None, 3)
    return (number, "slow statement", "12.3 ms", at_us, *who)


def test_a_recording_is_written_once_also_after_the_agents_restart() -> None:
    def look(looks: ServerLooks, *found: tuple[Any, ...]) -> Batch:
        batch = Batch()
        looks._add_recordings(batch, list(found))
        return batch

    looks = new_looks()
    assert look(looks).rows == {}
    first = look(looks, kept(1, 100))
    assert column(first, "recordings", "detail") == ["12.3 ms"]
    assert column(first, "recordings", "incident") == [3]
    assert look(looks, kept(1, 100)).rows == {}
    later = new_looks(first.readings)
    # the server was restarted: its numbers begin anew
    found = look(later, kept(1, 900), kept(2, 100))
    assert column(found, "recordings", "number") == [1, 2]
    assert look(later, kept(1, 900), kept(2, 100)).rows == {}
