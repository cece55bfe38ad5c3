"""Names of statements hold no literal that somebody sent."""

import functools
import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgtare.postgres.sql_text import CUT, LITERAL, MOST_READ, normalised
from tests.processor_time import least_s

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
    ('DO $$pw = "Alice"$$ LANGUAGE plpython3u', "DO ? LANGUAGE plpython3u"),
    ('DO $$pw = "Alice"$$ /* her */ LANGUAGE plperl;', "DO ? LANGUAGE plperl;"),
    ('DO $$pw = "Alice"$$ LANGUAGE plpgsql_like', "DO ? LANGUAGE plpgsql_like"),
    ('DO $$pw = "Alice"$$ LANG', "DO ? LANG"),
    ("DO $$PERFORM 'Alice'$$language PLpgSQL; END", "DO $$PERFORM ?$$language PLpgSQL; END"),
    ("DO $$PERFORM 'Alice'$$ /* her */ -- name", "DO $$PERFORM ?$$"),
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
@settings(max_examples=100)
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
@settings(max_examples=100)
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


def _took_s(text: str, read: Callable[[str], object] = normalised) -> float:
    return least_s(functools.partial(read, text))


#: Texts of about n characters that were read again and again, or whose rest was.
LONG: dict[str, Callable[[int], str]] = {
    "literals in a block": lambda n: "DO $$BEGIN PERFORM f(" + "$a$x$a$," * (n // 8) + "1); END$$",
    "literals": lambda n: "SELECT " + "$a$x$a$," * (n // 8),
    "blocks in blocks": lambda n: "".join(f"DO $a{i}$ " for i in range(n // 11)),
    "blocks in blocks that end": lambda n: (
        "".join(f"DO $a{i}$ " for i in range(n // 20))
        + "".join(f"$a{i}$ " for i in reversed(range(n // 20)))
    ),
    "blocks side by side": lambda n: "DO $$SET x = 1$$; " * (n // 18),
    "blocks and comments": lambda n: "DO $$$$ /**/ --\n; " * (n // 19),
    "blocks and comments that nothing ends": lambda n: "DO $$$$ /*; " * (n // 12),
    "tags that are one another's": lambda n: "DO $a$" + "$b" * (n // 2),
    "comments to the end of the line": lambda n: "SELECT 1,--\n" * (n // 12),
    "comments behind a long blank": lambda n: "SELECT" + " " * (n // 2) + "/**/" * (n // 8),
    "literals behind a long blank": lambda n: (
        "SELECT 1; " + " " * (n // 2) + "$a$x$a$," * (n // 16)
    ),
    "comments in comments": lambda n: "/*" * (n // 4) + "*/" * (n // 4),
    "comments that nothing ends": lambda n: "SELECT /* " * (n // 10),
    "settings": lambda n: "SET x TO a" + ", a" * (n // 6) + "; SET x TO a" * (n // 24),
    "settings of a function": lambda n: "ALTER FUNCTION f SET" * (n // 20),
    "quotes that nothing ends": lambda n: "E'" * (n // 2),
    "continued literals": lambda n: "SELECT 'a'" + "\n'a'" * (n // 4),
    "literals and blank lines": lambda n: "SELECT 'a'\n\n--x\n," * (n // 16),
    "quoted names": lambda n: 'SELECT ""' + '"" "a' * (n // 5),
    "dollars": lambda n: "$" * (n // 2) + "$a" * (n // 4),
    "numbers": lambda n: "SELECT $" + "1" * n + "x",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
def test_time_grows_with_the_length(kind: str) -> None:
    short, long = (LONG[kind](n) for n in (MOST_READ // 6, MOST_READ * 4 // 6))
    assert len(long) < MOST_READ
    assert _took_s(long) < 9 * _took_s(short) + 0.02  # four times as long; 16 if it were the square


DEEP = 10_000


def test_blocks_of_any_depth() -> None:
    depth = DEEP // 2
    tags = [f"$a{i}$" for i in range(depth)]
    opened = "".join(f"DO {tag} " for tag in tags)
    name = "DO $$" * depth + "SELECT ?" + "$$" * depth
    for closed in ("", "".join(reversed(tags)), "".join(f" {tag} " for tag in reversed(tags))):
        assert normalised(f"{opened} SELECT 'Alice' {closed}") == name


def test_blocks_of_any_depth_whose_tags_are_few() -> None:
    """The second tag of a kind ends the first, and what is between them with it."""
    deep = DEEP // 2
    assert normalised("DO $$ DO $$; x, " * deep) == "DO $$DO$$; x," + " DO ?; x," * (deep - 1)
    block = "DO $$; DO $$; DO$$$$; "
    assert normalised("DO $a$; DO $b$; " * deep) == block * (2 * deep // 3) + "DO $$;$$"


@pytest.mark.parametrize("closed", [DEEP, DEEP - 1, 0])
def test_comments_of_any_depth(closed: int) -> None:
    name = "SELECT ? kept" if closed == DEEP else "SELECT ?"
    assert normalised("SELECT 1 " + "/* Alice " * DEEP + "*/" * closed + " kept") == name


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("DO $a$SELECT $b$Alice$b$, 1$a$", "DO $$SELECT ?, ?$$"),
        ("DO $a$SELECT $b$Alice$a$; 1$b$", "DO $$SELECT ?$$; ??"),
        ("DO $a$SELECT $b$Alice$a$; $c", "DO $$SELECT ?$$;"),
        ("DO $a$SELECT $b$Alice", "DO $$SELECT ?$$"),
        ("DO $a$SELECT 'Alice$a$", "DO $$SELECT ?$$"),
        ("DO $a$SELECT E'Alice\\$a$; kept", "DO $$SELECT ?$$; kept"),
        ("DO $a$SELECT E'it\\'s', 'x'$a$; kept", "DO $$SELECT ?, ?$$; kept"),
        ("DO $a$SELECT 1 /* Alice $a$; kept", "DO $$SELECT ?$$; kept"),
        ("DO $a$SELECT 1 -- Alice $a$; kept", "DO $$SELECT ?$$; kept"),
        ('DO $a$SELECT "kept$a$; kept', 'DO $$SELECT "kept$$; kept'),
        ("DO $a$SELECT $b$a$; kept", "DO $$SELECT$$; kept"),
        ("DO $a$SET x = Alice; DO $b$SET y = Alice$b$$a$", "DO $$SET x = ?; DO $$SET y = ?$$$$"),
        ("DO $a$x$a$; $b$Alice$b$", "DO $$x$$; ?"),
        ("DO $$1$$; DO $$2$$", "DO $$?$$; DO $$?$$"),
        ("DO $$$$", "DO $$$$"),
        ("DO $$$$;$ x", "DO $$$$;$ x"),
    ],
)
def test_quotes_within_quotes(sql: str, name: str) -> None:
    assert normalised(sql) == name


def test_a_huge_text_is_read_in_part() -> None:
    begin = "SELECT 'Alice', kept "
    block = "DO $$" + begin + "+ a" * (1 << 20)
    assert normalised(normalised(block)) == normalised(block)
    for sql in (begin + "+ a" * (1 << 20), begin + "'" + "Alice" * (1 << 20)):
        name = normalised(sql)
        assert name.startswith(f"SELECT {LITERAL}, kept ")
        assert name.endswith(CUT)
        assert len(name) <= MOST_READ + len(CUT)
        assert normalised(name) == name
