"""Whatever a server answers, the watch goes on, and the next good answers count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtare.keeping.agent import queries
from pgtare.keeping.agent.config import Intervals
from pgtare.keeping.agent.reading import waits_table
from pgtare.keeping.agent.rows import Batch
from pgtare.keeping.agent.server_looks import ACTIVITY, SESSIONS, STATEMENTS, WAITS, ServerLooks
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.keeping.agent.server_watch import ServerWatch
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool import tables
from pgtare.postgres import own_session
from pgtare.postgres.inventory import InventoryServer
from pgtare.postgres.wait_counters.counter_table import BUCKETS
from pgtare.postgres.wait_counters.difference import difference, processor_rows
from pgtare.postgres.wait_counters.epoch import ReadingBaseline, Transition
from tests.unit.test_agent_looks import BOOT_US, SECOND_US, AnsweredSession, column, counted

SAME = Transition(ReadingBaseline.SAME, 1)


def answering(calls: int, at_s: int) -> AnsweredSession:
    """A server that answers all questions well: so many waits and commits by then."""
    session = counted(calls, at_s=at_s)
    session.offer.texts = session.offer.trace = "public"
    who = (9, 42, 1, 10, "w", 5, "app", "shop", "client backend", "active", None, None, 77)
    session.answers |= {
        queries.STARTED: [(BOOT_US, BOOT_US + at_s * SECOND_US)],
        queries.ACTIVITY: [(np.array([[5, 0, calls, *[0] * 12]], np.int64),)],
        queries.SETTINGS: [("{}",)],
        queries.SESSIONS: [(*who, 8, 8, 8, None, None)],
        queries.TEXTS: [(10, [77], ["SELECT $1"])],
        queries.RECORDINGS: [
            (1, "error", "x", 5, 42, 10, "w", 5, "app", "shop", 77, 4096, None, None)
        ],
    }
    return session


class Watched:
    """A watch that makes its looks at made-up sessions, and what each look handed on."""

    def __init__(self, most: int = 10) -> None:
        self.batches: list[Batch] = []
        looks = ServerLooks("shop", "agent", lambda part: None, most)
        self.watch = ServerWatch(
            looks,
            InventoryServer(dsn="host=nowhere"),
            Intervals(),
            lambda _, batch: self.batches.append(batch),
            AgentLog(),
        )

    def tick(self, answered: AnsweredSession) -> dict[str, Batch]:
        """Make all looks but the doctor's; returns what they handed on."""
        session = cast(ServerSession, answered)
        watch, found = self.watch, {}
        for name, look in {
            WAITS: lambda: watch._counters(session, with_statements=True),
            SESSIONS: lambda: watch.looks.sessions(session, 1.0),
            ACTIVITY: lambda: watch._activity(session),
        }.items():
            self.batches.clear()
            watch._make([name, STATEMENTS] if name == WAITS else [name], look)
            (found[name],) = self.batches
            for table, parts in found[name].rows.items():
                joined = pa.concat_tables(parts)
                joined.validate(full=True)
                assert not any(
                    joined[field.name].null_count
                    for field in tables.TABLES[table].row_schema
                    if not field.nullable
                )
        return found


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=30),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=2)), max_size=3),
    st.just(np.zeros(0, np.int64)),
    st.just(np.array([[np.nan] * (8 + BUCKETS)])),
)


@st.composite
def answers(draw: st.DrawFn, good: AnsweredSession) -> AnsweredSession:
    """The same session, with some answers replaced, cut off, given twice or turned back."""
    for query in draw(st.lists(st.sampled_from(sorted(good.answers)), min_size=1, max_size=4)):
        rows = [list(row) for row in good.answers[query]]
        how = draw(st.sampled_from(["none", "twice", "short", "long", "value", "array", "text"]))
        row = draw(st.sampled_from(rows)) if rows else []
        place = draw(st.integers(0, max(0, len(row) - 1)))
        if how == "none":
            rows = []
        elif how == "twice":
            rows *= 2
        elif how == "short":
            del row[place:]
        elif how == "long":
            row.append(draw(VALUES))
        elif how == "value" and row:
            row[place] = draw(VALUES)
        else:
            damage(draw, row, how)
        good.answers[query] = [tuple(row) for row in rows]
    return good


def damage(draw: st.DrawFn, row: list[Any], how: str) -> None:
    """Give rows of an array twice or turn values back; have names repeated, or separators."""
    for place, value in enumerate(row):
        if how == "array" and isinstance(value, np.ndarray) and value.ndim == 2 and value.size:
            changed = np.concatenate([value] * draw(st.integers(0, 3)) or [value[:0]])
            change = draw(st.sampled_from([0, 1, -1, -1000, 2**62, -(2**62)]))
            row[place] = changed + np.int64(change)
        elif how in ("array", "text") and isinstance(value, bytes):
            row[place] = value + draw(
                st.sampled_from([b"\x1e", b"\x1f", b"\xff", b"\x1e" + value, b"\x1e\x1f\x1f"])
            )


@settings(max_examples=60)
@given(st.data())
@pytest.mark.slow
def test_the_next_good_tick_counts(data: st.DataObject) -> None:
    watched = Watched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", lambda _: None)
        watched.tick(answering(1000, 3600))
        watched.tick(data.draw(answers(answering(1002, 3610))))
        watched.tick(answering(1004, 3670))
        last = watched.tick(answering(1007, 3730))
    assert column(last[WAITS], WAITS, "calls") == [3]
    assert sum(column(last[WAITS], STATEMENTS, "calls")) == 3
    assert column(last[ACTIVITY], ACTIVITY, "commits") == [3]
    assert column(last[SESSIONS], SESSIONS, "pid") == [42]
    assert not any(batch.rows.get("gaps") for batch in last.values())


def test_an_answer_that_cannot_be_used_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It is a gap in the rows and one line in the log, however often it comes."""
    watched = Watched()
    watched.tick(answering(1000, 3600))
    for at_s in (3610, 3620):
        bad = answering(1002, at_s)
        bad.answers[queries.INFO] = []
        bad.answers[queries.ACTIVITY] = [(None,)]
        bad.answers[queries.SESSIONS] = [(None,) * 14]
        found = watched.tick(bad)
        for batch in found.values():
            assert column(batch, "gaps", "kind") == ["unexpected"]
            assert batch.readings == {}
    logged = capsys.readouterr().err
    assert [logged.count(f"event=unexpected_{name}") for name in found] == [1, 1, 1]
    after = watched.tick(answering(1007, 3670))
    assert column(after[WAITS], WAITS, "calls") == [7]
    assert sum(column(after[WAITS], STATEMENTS, "calls")) == 7
    assert column(after[ACTIVITY], ACTIVITY, "commits") == [7]


def test_a_text_that_was_lost_with_its_look_is_given_again() -> None:
    watched = Watched()
    watched.tick(answering(1000, 3600))
    bad = answering(1002, 3660)
    bad.answers[queries.INFO] = [(*bad.answers[queries.INFO][0][:9], "many")]
    watched.tick(bad)
    assert watched.watch.looks._texts.hashes == {}
    looks = watched.watch.looks
    look_texts = looks._own_figures
    looks._own_figures = None  # type: ignore[method-assign,assignment]
    watched.tick(answering(1003, 3720))
    looks._own_figures = look_texts  # type: ignore[method-assign]
    after = watched.tick(answering(1004, 3780))[WAITS]
    assert column(after, "texts", "text") == ["SELECT $1"]
    assert sum(column(after, STATEMENTS, "calls")) == 4


def test_counters_that_fell_are_a_gap(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched()
    for calls, at_s, grown, gaps in (
        (1000, 3600, [], []),
        (990, 3610, [-10], ["unexpected"]),
        (1003, 3620, [13], []),
    ):
        batch = watched.tick(answering(calls, at_s))[WAITS]
        assert column(batch, WAITS, "calls") == grown
        assert column(batch, "gaps", "kind") == gaps
    assert capsys.readouterr().err.count("event=counters_fell") == 1


def test_a_name_given_twice_is_one_entry() -> None:
    """Two tranches of one name; the time of processes may come twice as well."""

    def read(*calls: int) -> Any:
        names = [b"client backend\x1fLWLock\x1fextension"] * len(calls)
        names += [b"client backend\x1f\x1f"] * 2
        values = [[n, 10 * n, 0, 10, 0, 1, 0, 0, n, *[0] * (BUCKETS - 1)] for n in calls]
        values += [[0, 500 * sum(calls), 0, 0, 0, 1, 0, 0, *[0] * BUCKETS]] * 2
        return waits_table(b"\x1e".join(names), np.array(values, np.int64))[0]

    for first, last in (((5, 7), (6, 9)), ((5,), (6, 9)), ((5, 7), (15,)), ((), (1, 2, 3))):
        grown = processor_rows(difference(read(*first), read(*last), SAME), SAME)
        waits = grown.keys["type"] == "LWLock"
        more = sum(last) - sum(first)
        assert grown.sums[waits, :3].tolist() == [[more, 10 * more, 10 * more]]
        assert grown.sums[~waits, 1].tolist() == [990 * more]


def test_a_value_that_psycopg_cannot_read_does_not_end_the_session() -> None:
    conn = cast(Any, SimpleNamespace(closed=False, broken=False))
    assert not own_session.is_lost(conn, psycopg.DataError("date too large (after year 10K)"))
    assert not own_session.is_lost(conn, psycopg.errors.UndefinedTable())
    assert own_session.is_lost(conn, psycopg.errors.AdminShutdown())
    assert own_session.is_lost(conn, psycopg.OperationalError("the connection is lost"))
    conn.closed = True
    assert own_session.is_lost(conn, psycopg.DataError())


def test_a_long_name_does_not_lengthen_all_others() -> None:
    """Each would take as much memory as the longest."""

    def read(event: str) -> Any:
        names = f"client backend\x1fExtension\x1f{event}".encode()
        values = [[1, 10, 0, 10, 0, 1, 0, 0, 1, *[0] * (BUCKETS - 1)]]
        return waits_table(names, np.array(values, np.int64))[0]

    assert read("x" * 400).keys["event"] == ["x" * 400]
    with pytest.raises(ValueError, match="has 5025 letters"):
        read("x" * 5_000)
