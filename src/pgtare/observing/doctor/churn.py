"""What fills the table of statements: families of entries that differ in one respect only."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pgtare.observing.findings.queries import TEXT_CHARACTERS
from pgtare.observing.findings.remedies import set_at_once
from pgtare.postgres.sql_text import normalised

# A text may be cut within a comment, which ends there: else its rest is read again for each /*.
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)|--[^\n]*", re.DOTALL)
_LITERAL = re.compile(r"'(?:[^']|'')*'|\$\d+|\b\d+(?:\.\d+)?\b")
_ITEM = r"(?:\?|\(\s*\?(?:\s*,\s*\?)*\s*\)|NULL|DEFAULT)"
_LIST = re.compile(rf"{_ITEM}(?:\s*,\s*{_ITEM})+", re.IGNORECASE)
# What is left if a text was cut within a list.
_LIST_CUT = re.compile(r"(\?, \.\.\.)[\s,(?$]*$")
_SCHEMA = re.compile(r'(?<![\w".])(?:"[^"]+"|[A-Za-z_]\w*)\.(?=["A-Za-z_])')
# From a word's first letter, or a quote, on; a word may be long, so it is not tried from within.
_NUMBERED = re.compile(r'("|\b\d*+[^\W\d])[^\W\d]*+\d\w*')
_SPACE = re.compile(r"\s+")
_OBJECT = re.compile(
    r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|ONLY|EXISTS)\s+(\"?[\w$]+\"?(?:\.\"?[\w$]+\"?)?)", re.I
)
_TEMPORARY = re.compile(r"\bCREATE\s+(?:LOCAL\s+|GLOBAL\s+)?TEMP(?:ORARY)?\b|\bpg_temp", re.I)
_UTILITY = re.compile(
    r"\s*(?:CREATE|DROP|ALTER|TRUNCATE|SET|RESET|SHOW|DECLARE|FETCH|CLOSE|MOVE|SAVEPOINT|RELEASE"
    r"|ROLLBACK|PREPARE|EXECUTE|DEALLOCATE|LISTEN|UNLISTEN|NOTIFY|COPY|VACUUM|ANALYZE|REINDEX"
    r"|GRANT|REVOKE|CLUSTER|LOCK|COMMENT|CALL|REFRESH|EXPLAIN|BEGIN|START|COMMIT|END)\b",
    re.I,
)

#: Families with fewer members are no churn.
FEWEST = 10
ROLES, DATABASES = "one role for each tenant", "one database for each tenant"


class StatementEntry(NamedTuple):
    """An entry of the table: the role and the database that it is of, its text, and calls."""

    user: int
    database: int
    text: str
    calls: int


@dataclass(frozen=True)
class Family:
    """Entries that are one statement but for what `kind` says; pattern: what they share."""

    kind: str
    members: int
    calls: int
    pattern: str
    example: str


#: By kind of churn: why it makes entries, and what to do.
REMEDIES = {
    "temporary tables": (
        "a temporary table that is made anew has another identity each time, so the same text "
        "becomes a new entry",
        "-- make the temporary table once a session and TRUNCATE it, use a CTE or an array, or go "
        "to PostgreSQL 18, which goes by the table's name",
    ),
    "tables made anew, or one text in many schemas": (
        "entries go by the identity of the tables, not by their names: a table that is dropped and "
        "made anew, or found through another search_path, makes a new entry of the same text",
        "-- keep the tables and TRUNCATE them; for one schema a customer, raise "
        "pg_stat_statements.max, or go to PostgreSQL 18, which goes by the tables' names",
    ),
    "lists of values": (
        "an IN list or VALUES of another length is another statement (PostgreSQL 18 counts IN "
        "lists of constants as one)",
        "-- write = ANY($1) with an array, INSERT ... SELECT FROM unnest($1, ...), or go to "
        "PostgreSQL 18",
    ),
    "utility statements": (
        "utility statements are distinguished by their text, numbers, names and comments in it",
        set_at_once("pg_stat_statements.track_utility", "off"),
    ),
    "comments": (
        "the texts differ in their comments, which make no entry of their own; what does is most "
        "likely that tables are made anew, or found through another search_path",
        "-- keep the tables and TRUNCATE them; for one schema a customer, raise "
        "pg_stat_statements.max",
    ),
    ROLES: (
        "entries go by the role that runs a statement: each role has an entry of its own for the "
        "same text",
        "-- raise pg_stat_statements.max to statements × roles, or let all tenants use one role "
        "and tell them apart by a setting and row-level security (SET ROLE makes entries as well)",
    ),
    DATABASES: (
        "entries go by the database: each database has an entry of its own for the same text",
        "-- raise pg_stat_statements.max to statements × databases, or leave databases out: "
        "ALTER DATABASE name SET pg_stat_statements.track = 'none';",
    ),
    "numbered names": (
        "each table, column, cursor or savepoint with a name of its own is a statement of its own",
        "-- give generated names back (partitions by their parent, one cursor name), or raise "
        "pg_stat_statements.max",
    ),
    "schemas": (
        "the same statement in each schema is a statement of its own",
        "ALTER SYSTEM SET pg_stat_statements.max = {max};  -- statements × schemas; then a restart",
    ),
}


def _plain(text: str) -> str:
    return _SPACE.sub(" ", text).strip().rstrip(";")


def _uncommented(text: str) -> str:
    return _COMMENT.sub(" ", text)


#: Each makes alike what the one before left apart; the first that does so names the family.
_STEPS: Sequence[tuple[str, Callable[[str], str]]] = (
    ("identical", _plain),
    ("comments", lambda text: _plain(_uncommented(text))),
    ("literals", lambda text: _LITERAL.sub("?", text)),
    ("lists of values", lambda text: _LIST_CUT.sub(r"\1", _LIST.sub("?, ...", text))),
    ("numbered names", lambda text: _NUMBERED.sub(r"\1#", text)),
    ("schemas", lambda text: _SCHEMA.sub("", text)),
)


def families(entries: Iterable[StatementEntry]) -> list[Family]:
    """The families among entries, the largest first.

    An entry belongs to the family in which the last step joined it with others.
    """
    by_text: dict[str, list[StatementEntry]] = defaultdict(list)
    for entry in entries:
        by_text[_plain(entry.text)].append(entry)
    found = []
    for kind, owner in ((ROLES, 0), (DATABASES, 1)):
        texts = [text for text, alike in by_text.items() if _are_apart(alike, owner)]
        tenants = [entry for text in texts for entry in by_text[text]]
        if len({entry[owner] for entry in tenants}) >= FEWEST:
            largest = max((by_text[text] for text in texts), key=len)
            found.append(_family(kind, tenants, largest[0].text))
            for text in texts:
                del by_text[text]
    rest = [entry for alike in by_text.values() for entry in alike]
    return sorted([*found, *_alike(rest)], key=lambda family: -family.members)


def _are_apart(alike: Sequence[StatementEntry], owner: int) -> bool:
    """Whether entries of one text are of many roles, or databases: of two entries most differ."""
    return len(alike) > 1 and 2 * len({entry[owner] for entry in alike}) > len(alike)


def _family(kind: str, members: Sequence[StatementEntry], example: str) -> Family:
    calls = sum(entry.calls for entry in members)
    return Family(kind, len(members), calls, _pattern(example), _plain(normalised(example)))


def _alike(entries: Sequence[StatementEntry]) -> Iterator[Family]:
    """Families of texts that differ in one respect."""
    # tables whose making is itself among the statements
    made = [entry.text for entry in entries if _TEMPORARY.search(entry.text)]
    temporary = {name for text in made for name in _objects(text)}
    patterns = [entry.text for entry in entries]
    size_before = Counter(range(len(entries)))
    kind_of = [""] * len(entries)
    for kind, step in _STEPS:
        patterns = [step(text) for text in patterns]
        sizes = Counter(patterns)
        for i, pattern in enumerate(patterns):
            if sizes[pattern] > size_before[i]:
                kind_of[i] = kind
                size_before[i] = sizes[pattern]
    members: dict[str, list[int]] = defaultdict(list)
    for i, pattern in enumerate(patterns):
        members[pattern].append(i)
    for pattern, indexes in members.items():
        if len(indexes) < FEWEST:
            continue
        texts = [entries[i].text for i in indexes]
        kind = Counter(kind_of[i] for i in indexes).most_common(1)[0][0]
        cut = all(len(text) >= TEXT_CHARACTERS for text in texts)
        if kind == "identical" and cut and _LIST_CUT.search(pattern):
            kind = "lists of values"  # alike only as far as they were fetched, within a list
        named = _named(kind, texts, temporary)
        yield _family(named, [entries[i] for i in indexes], texts[0])


def _pattern(example: str) -> str:
    """What is left of a text after all steps, of which that one which finds literals is certain.

    Those of utility statements are in the table as they were sent.
    """
    pattern = normalised(example)
    for _, step in _STEPS:
        pattern = step(pattern)
    return pattern


def _named(kind: str, texts: Sequence[str], temporary: set[str]) -> str:
    """The kind of a family, in words for people."""
    if any(_TEMPORARY.search(text) or _objects(text) & temporary for text in texts):
        return "temporary tables"
    if _UTILITY.match(_uncommented(texts[0])):
        return "utility statements"
    if kind in ("identical", "literals"):
        return "tables made anew, or one text in many schemas"
    return kind


def _objects(text: str) -> set[str]:
    return {name.strip('"').lower() for name in _OBJECT.findall(text)}
