"""Names of statements hold no literal that somebody sent."""

import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgtare.server.sql_text import normalised

CASES = [
    ("SELECT 1", "SELECT ?"),
    ("SELECT 'Alice'", "SELECT ?"),
    ("SELECT 'O''Brien', E'a\\'b', N'x', B'01', X'ff', U&'\\0061'", "SELECT ?, ?, ?, ?, ?, ?"),
    ("SELECT $1, $2::int", "SELECT $1, $2::int"),
    ("SELECT $$Alice$$, $q$ it's $$ her $q$", "SELECT ?, ?"),
    ("SELECT a$1$b, t1.c2, _x9 FROM t1", "SELECT a$1$b, t1.c2, _x9 FROM t1"),
    ('SELECT "O\'Brien", "a""b" FROM "T 1"', 'SELECT "O\'Brien", "a""b" FROM "T 1"'),
    ("SELECT 1.5e-3, .5, 0x1F, 1_000, -2, 1e5+3", "SELECT ?, ?, ?, ?, -?, ?+?"),
    ("SELECT a[1:2], x.y", "SELECT a[?:?], x.y"),
    ("/* for Alice */ SELECT /* a /* b */ Alice */ 1 -- Alice\n FROM t", "SELECT ?\n FROM t"),
    ("SELECT 'a' -- x\n 'Alice', 2", "SELECT ?, ?"),
    ("SELECT E'a'\n'it\\'s', 2", "SELECT ?, ?"),
    ("SELECT 'a\\', 'Alice'", "SELECT ?"),
    ("SELECT 'Alice", "SELECT ?"),
    ("SELECT $a$Alice", "SELECT ?"),
    ("SELECT $ali", "SELECT"),
    ("SELECT 1 /* Alice", "SELECT ?"),
    ("SET app.user = alice", "SET app.user = ?"),
    ("set local search_path to a, b; SELECT 1", "set local search_path to ?; SELECT ?"),
    ("SET x = $1", "SET x = $1"),
    ("DO $$BEGIN PERFORM 'Alice' /* her */; END$$", "DO $$BEGIN PERFORM ? ; END$$"),
    ("DO LANGUAGE plpython3u $$print('Alice')$$", "DO LANGUAGE plpython3u ?"),
    ("DO 'BEGIN END'", "DO ?"),
    (
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $$SELECT 7$$",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS ?",
    ),
    ("EXECUTE p('Alice', 5)", "EXECUTE p(?, ?)"),
    ("SELECT żółć, 'żółć'", "SELECT żółć, ?"),
    ("", ""),
]


@pytest.mark.parametrize(("sql", "name"), CASES)
def test_literals_and_comments_go(sql: str, name: str) -> None:
    assert normalised(sql) == name
    assert normalised(name) == name


# Hidden: what is data, whatever is around it.  m is the marker.
_DATA = st.text(alphabet="m'\\$\"-/*; \n0e", max_size=8).map(lambda s: s + "MARK")


def _plain(data: str) -> str:
    return "'" + data.replace("\\", "").replace("'", "''") + "'"


def _escaped(data: str) -> str:
    return "E'" + data.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _unicode(data: str) -> str:
    return "U&'" + data.replace("\\", "\\\\").replace("'", "''") + "'"


def _dollars(data: str) -> str:
    return "$t$" + data.replace("$t$", "") + "$t$"


def _comment(data: str) -> str:
    return "/*" + data.replace("*/", "").replace("/*", "").replace("/", "") + "*/"


def _line(data: str) -> str:
    return "--" + data.replace("\n", "") + "\n"


_PIECES = st.one_of(
    st.tuples(st.sampled_from([_plain, _escaped, _unicode, _dollars, _comment, _line]), _DATA).map(
        lambda pair: pair[0](pair[1])
    ),
    st.sampled_from(
        ["kept", '"kept ""1"', "$1", "12.5e-3", "=", "(", ")", "a$b", "::", ".", "AS", "{", "->"]
    ),
)


@given(st.lists(_PIECES, max_size=12))
@settings(max_examples=300, deadline=None)
def test_no_data_is_left(pieces: list[str]) -> None:
    """Of any statement, also one that is cut anywhere."""
    sql = " ".join(pieces)
    name = normalised(sql)
    assert "MARK" not in name
    assert normalised(name) == name
    assert name.count("kept") == sum(p.count("kept") for p in pieces)
    for end in range(len(sql)):
        assert "MARK" not in normalised(sql[:end])


@given(st.text(max_size=60))
@example("$\x85")
@example("SELECT $a $b -- what")
@settings(max_examples=300, deadline=None)
def test_any_text_has_a_name(text: str) -> None:
    name = normalised(text)
    assert normalised(name) == name


def test_a_long_text_takes_no_long_time() -> None:
    sql = "SELECT " + ", ".join("'x''y' -- z\n" for _ in range(20_000)) + "/*" * 5_000 + "$" * 5_000
    assert "x" not in normalised(sql)


@pytest.mark.parametrize("quote", ["'", "E'", "U&'", "$q$", '"'])
def test_a_long_literal_is_not_walked_letter_by_letter(quote: str) -> None:
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    text = f"SELECT {quote}{'x' * 100_000}{quote.removeprefix('E').removeprefix('U&')}, 2"
    sys.setprofile(count)
    try:
        normalised(text)
    finally:
        sys.setprofile(None)
    assert calls < 200
