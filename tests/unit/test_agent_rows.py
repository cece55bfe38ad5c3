"""Readings as tables and back; arrays from a server; texts that may be kept."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pgtare.keeping.agent import texts as agent_texts
from pgtare.keeping.agent.baseline import counter_columns, counters, moment, moment_table
from pgtare.keeping.agent.reading import statements_table, waits_table
from pgtare.keeping.agent.server_looks import activity_difference
from pgtare.keeping.agent.server_session import _Int8Array
from pgtare.keeping.agent.texts import StatementTexts, storable, text_hash
from pgtare.observing.findings.statement_texts import TextFile
from pgtare.postgres.wait_counters import steady_clock
from pgtare.postgres.wait_counters.counter_table import BUCKETS, SUMS
from pgtare.postgres.wait_counters.epoch import Origin, Taken


def matrix(*rows: list[int]) -> np.ndarray:
    return np.array([[*row, *range(BUCKETS)] for row in rows], np.int64)


def test_a_reading_is_the_same_after_it_was_stored() -> None:
    names = b"client backend\x1fIO\x1fDataFileRead\x1eclient backend\x1f\x1f\x1ewalwriter\x1fIO"
    found, unread = waits_table(
        names, matrix([1, 2, 3, 4, 5, 6, 1, 0], [0, 9, 0, 0, 0, 2, 0, 1], [1, 1, 1, 1, 1, 1, 0, 0])
    )
    assert unread.tolist() == ["client backend"]
    assert found.keys["event"].tolist() == ["DataFileRead", "", ""]
    assert found.sums[0, :5].tolist() == [1, 2, 5, 0, 1]
    again = counters(counter_columns(found))
    for name, column in found.keys.items():
        assert (again.keys[name] == column).all()
    assert (again.sums == found.sums).all()
    assert again.processes.tolist() == [6, 2, 1]
    assert waits_table(None, None)[0].sums.shape == (0, len(SUMS))


def test_rows_of_one_statement_become_one_entry() -> None:
    rows = [
        [1, 10, 0, 10, 0, 0, 5, 6, -7, 0],
        [0, 0, 3, 0, 1, 0, 5, 6, -7, 0],
        [0] * 5 + [4] + [0] * 4,
    ]
    found, busy = statements_table(b"IO\x1fx\x1eIO\x1fx\x1e\x1f", matrix(*rows))
    assert busy == 4
    assert len(found) == 1
    assert found.sums[0, :3].tolist() == [1, 10, 13]
    assert found.keys["query_id"].tolist() == [-7]


@pytest.mark.parametrize("memory", [None, 7])
def test_the_moment_of_a_reading_is_the_same_after_it_was_stored(memory: int | None) -> None:
    origin, taken = Origin(-1, 2, memory, 3, None), Taken(4, 5)
    assert moment(moment_table(origin, taken)) == (origin, taken)


def test_a_clock_that_nobody_sets_counts_until_the_machine_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a server's clock that was set while no agent ran would count."""
    origin, taken = Origin(-1, 2), Taken(4, 5, 6)
    stored = moment_table(origin, taken)
    assert moment(stored) == (origin, taken)
    monkeypatch.setattr(steady_clock, "boot", lambda: "another")
    assert moment(stored) == (origin, Taken(4, 5))


def test_arrays_of_bigint_are_decoded() -> None:
    values = [[1, -2, 2**62], [4, 5, 6]]
    data = struct.pack(">iiIiiii", 2, 0, 20, 2, 1, 3, 1)
    data += b"".join(struct.pack(">iq", 8, value) for row in values for value in row)
    assert _Int8Array(1016).load(data).tolist() == values
    assert _Int8Array(1016).load(struct.pack(">iiI", 0, 0, 20)).tolist() == []


@pytest.mark.parametrize(
    "text",
    [
        "ALTER ROLE a PASSWORD 'x'",
        "/* x */ create /* y */ user b password 'x'",
        "CREATE USER MAPPING FOR a SERVER s OPTIONS (password 'x')",
        "ALTER SUBSCRIPTION s CONNECTION 'password=x'",
        "SELECT 1; CREATE GROUP g",
    ],
)
def test_texts_of_statements_with_secrets_are_left_out(text: str) -> None:
    assert storable(text) is None


def test_literals_are_taken_out() -> None:
    assert storable("SET app.key = 'secret'") == "SET app.key = ?"
    assert storable("SELECT $1 FROM users") == "SELECT $1 FROM users"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER SYSTEM SET app.key = {}",
        "alter system set app.key to {}",
        "/* x */ ALTER DATABASE app SET app.key = {}",
        "ALTER DATABASE app\n  SET app.key = {}",
        'ALTER FUNCTION f(a int, "b c" text) SET app.key TO {}',
        "SELECT 1; ALTER SYSTEM SET app.key = {}",
    ],
)
@pytest.mark.parametrize("value", ["hush", "'hush'", '"hush"', "hush, hush"])
def test_values_of_settings_are_taken_out(statement: str, value: str) -> None:
    plain = storable(statement.format(value))
    assert plain is not None
    assert plain.endswith("?")
    assert "hush" not in plain


def test_statements_that_set_nothing_stay_as_they_are() -> None:
    for text in (
        "UPDATE t SET a = b",
        "ALTER DATABASE a SET TABLESPACE b",
        "ALTER TABLE t SET (fillfactor = ?)",
        "ALTER FUNCTION f(int) SET SCHEMA s",
    ):
        assert storable(text) == text


def test_a_text_is_given_once_and_asked_for_once() -> None:
    texts = StatementTexts(TextFile())
    assert texts.unknown([0, 1, 2, 3]) == [1, 2, 3]
    new = texts.learn([1, 2, 3], [(1, "SELECT 1"), (2, "SELECT ?"), (3, "CREATE ROLE a")])
    assert new == {text_hash("SELECT ?"): "SELECT ?"}
    assert texts.hashes[1] == texts.hashes[2]
    assert texts.unknown([1, 2, 3, 4]) == [4]


def test_only_so_many_texts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_texts, "_MOST", 5)
    texts = StatementTexts(TextFile())
    for number in range(100):
        new = texts.learn([number], [(number, f"SELECT FROM t{number}")])
        assert list(new.values()) == [f"SELECT FROM t{number}"]
    remembered = (texts.hashes, texts._asked, texts._given)
    assert max(map(len, remembered)) <= 6
    assert texts.learn([99], [(99, "SELECT FROM t99")]) == {}


def test_databases_that_were_reset_or_crashed_count_from_zero() -> None:
    def row(database: int, reset: int, count: int) -> list[int]:
        return [database, reset, *[count] * 12, 3]

    first = np.array([row(1, 0, 10), row(2, 5, 10), row(3, 5, 10), row(5, 0, 10)])
    last = np.array([row(1, 0, 15), row(2, 9, 4), row(3, 5, 7), row(4, 0, 2), row(5, 0, 10)])
    found = activity_difference(first, last)
    assert [(row[0], row[1]) for row in found.tolist()] == [(1, 5), (2, 4), (3, 7), (4, 2)]
