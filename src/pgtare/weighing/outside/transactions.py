"""What the driver runs: transactions of a pgbench script, or look-ups in the catalogue."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from pgtare.errors import UsageError
from pgtare.postgres import pooler
from pgtare.postgres.load.script import (
    Assignment,
    Operation,
    Statement,
    Variable,
    compile_script,
    outline,
)

#: The look-ups that need no table of the user's.
LOOK_UP = (
    "SELECT relname FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) $1::pg_catalog.oid"
)
_FIRST_OF_USERS = 16_384
#: What pgbench's variables are before a script sets any.
_KNOWN = {"scale": 1, "client_id": 0}
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Sql:
    """One statement to be sent: its text with $1, $2 …, and whether it is prepared beforehand."""

    text: bytes
    prepared: bool


#: A statement with its parameters, as text.
Bound = tuple[Sql, Sequence[bytes]]


class Source(Protocol):
    """Where transactions come from."""

    @property
    def name(self) -> str:
        """What it is, in a few words."""

    @property
    def statements(self) -> Sequence[Sql]:
        """All statements that there may be."""

    def next(self) -> Sequence[Bound]:
        """The statements of the next transaction."""


class LookUps:
    """Look-ups by key in the catalogue, one a transaction; every second one is prepared."""

    name = "look-ups by key in the catalogue"

    def __init__(self, keys: Sequence[int], rng: random.Random) -> None:
        self.statements = (Sql(LOOK_UP.encode(), True), Sql(LOOK_UP.encode(), False))
        self._keys = [str(key).encode() for key in keys]
        self._rng, self._turn = rng, 0

    @classmethod
    def of(cls, conns: Sequence[psycopg.Connection[Any]], rng: random.Random) -> LookUps:
        """Keys of the servers' own catalogues that all of them have, and any role may read."""
        query = "SELECT oid FROM pg_catalog.pg_class"
        each = [{int(row[0]) for row in pooler.rows(conn, query)} for conn in conns]
        return cls(sorted(key for key in set.intersection(*each) if key < _FIRST_OF_USERS), rng)

    def next(self) -> Sequence[Bound]:
        self._turn += 1
        return ((self.statements[self._turn % 2], [self._rng.choice(self._keys)]),)


class ScriptTransactions:
    r"""Transactions of a pgbench script: each runs it from its first command to its last.

    prepared: every statement is prepared once; else each is parsed whenever it is sent. weighed:
    settings that are the arms', which a script must leave alone.
    """

    def __init__(
        self,
        text: str,
        name: str,
        rng: random.Random,
        *,
        prepared: bool,
        writes: bool = False,
        weighed: Collection[str] = (),
    ) -> None:
        """Raises UsageError, with the line, for what cannot be run, or writes and may not."""
        program = compile_script(text, name, _KNOWN)
        for command in program.commands:
            if isinstance(command, Statement):
                _check(command, name, writes, weighed)
        self.name, self._rng = name, rng
        self._commands = [_compiled(command, prepared) for command in program.commands]
        self.statements = [c.sql for c in self._commands if isinstance(c, _Bind)]

    def next(self) -> Sequence[Bound]:
        values = dict(_KNOWN)
        found: list[Bound] = []
        for command in self._commands:
            if isinstance(command, _Bind):
                found.append((command.sql, [str(values[n]).encode() for n in command.names]))
            else:
                values[command.variable] = evaluate(command.operations, values, self._rng)
        return found


class Weighted:
    """Several sources, each drawn by its weight."""

    def __init__(
        self, sources: Sequence[Source], weights: Sequence[int], rng: random.Random
    ) -> None:
        self.name = " + ".join(source.name for source in sources)
        self.statements = [sql for source in sources for sql in source.statements]
        self._sources, self._weights, self._rng = sources, weights, rng

    def next(self) -> Sequence[Bound]:
        return self._rng.choices(self._sources, self._weights)[0].next()


_QUERY = r"(?:\(\ )*(?:select|with|values|table)\b"
#: What only reads, as `outline` has it. PostgreSQL's read-only mode does not refuse what EXPLAIN
#: ANALYZE runs if that is no query, nor the ends of prepared transactions.
_READING = re.compile(
    rf"""{_QUERY}
    |(?:show|declare|fetch|move|close|savepoint|release)\b
    |(?:begin|start|commit|end|rollback|abort)\b(?!.*\b(?:write|prepared)\b)
    |explain\ (?:\((?!\ {_QUERY})[^()]*\)\ |analy[sz]e\ |verbose\ )*{_QUERY}(?!.*\binto\b)
    |explain\ (?:\((?![^)]*\banaly)[\w\ ,.'-]*\)\ |verbose\ )?(?!analy|verbose|\()
    |set\ local\ (?!session\b|transaction)
    |set\ (?:constraints\b|transaction\b(?!.*\bwrite\b))
    """,
    re.VERBOSE | re.DOTALL,
)
#: Statements that do more than read.
_WRITING = re.compile(
    "insert|update|delete|merge|truncate|copy|create|alter|drop|comment|grant|revoke|reassign"
    "|security|import|vacuum|analyze|reindex|cluster|refresh|checkpoint|lock|do|call|execute|notify"
)
#: The first words of those that may do either.
_EITHER = re.compile("begin|start|commit|end|rollback|abort|explain|set")
#: Statements that change the session, which the driver does itself.
_OF_SESSION = {"set", "reset", "discard", "deallocate", "prepare", "listen", "unlisten", "load"}
#: Those that do so for a transaction only.
_OF_TRANSACTION = re.compile(r"set (?:constraints|transaction)\b")
_LOCAL = re.compile(r"set local ([\w$]+(?: \. [\w$]+)*)(?! &)")
#: Settings that SET gives another name.
_SPELT = {"time": "timezone", "schema": "search_path", "names": "client_encoding"}
#: What a transaction can say of itself, by the setting that says it.
_MODES = {
    "transaction_isolation": "isolation level",
    "transaction_read_only": "read (?:only|write)",
    "transaction_deferrable": "deferrable",
}
#: Letters of a statement that an error shows.
_SHOWN = 40


def _check(statement: Statement, name: str, writes: bool, weighed: Collection[str]) -> None:
    """Raise UsageError for what is not to be in a script.

    The session is read-only unless it may write, but a statement can ask for the contrary, and some
    that do work on the server, such as VACUUM, count as reading.
    """
    whole = "".join(part if isinstance(part, str) else "$1" for part in statement.parts)
    text = outline(whole)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    word = text.lstrip("( ").partition(" ")[0] or shown
    local = _LOCAL.match(text)
    if word in _OF_SESSION and not local and not _OF_TRANSACTION.match(text):
        raise UsageError(
            f"{name}: {word.upper()} changes the session, which pgtare switches itself"
        )
    setting = local[1].replace(" ", "") if local else ""
    # what set_config() sets is only in a literal, if it is not computed
    named = whole.lower() if "set_config (" in text else ""
    if any(
        _SPELT.get(setting, setting) == each or each in named or _is_mode(text, each)
        for each in map(str.lower, weighed)
    ):
        raise UsageError(
            f"{name}: {shown!r} overrides a setting that is weighed, in all arms: leave it out"
        )
    reads, writing = _READING.match(text), _WRITING.fullmatch(word)
    if not (reads or writing or _EITHER.fullmatch(word)):
        raise UsageError(f"{name}: no statement of PostgreSQL begins with {word[:_SHOWN].upper()}")
    if not writes and (not reads or "transaction_read_only" in named):
        what = word.upper() if writing else repr(shown)
        raise UsageError(
            f"{name}: {what} does more than read: add --writes if it may; what it does stays done"
        )


def _is_mode(text: str, setting: str) -> bool:
    """Whether a transaction says of itself what the setting says for all of them."""
    own = setting.removeprefix("default_")
    if own not in _MODES:
        return False
    said = rf"(?:begin|start|set)\b.* {_MODES[own]}\b|set local {own}\b"
    return re.match(said, text, re.DOTALL) is not None


@dataclass(frozen=True)
class _Bind:
    """A statement, and the variables that its parameters are."""

    sql: Sql
    names: tuple[str, ...]


def _compiled(command: Assignment | Statement, prepared: bool) -> Assignment | _Bind:
    if isinstance(command, Assignment):
        return command
    text, names = "", []
    for part in command.parts:
        if isinstance(part, Variable):
            names.append(part.name)
            text += f"${len(names)}"
        else:
            text += part
    return _Bind(Sql(text.encode(), prepared), tuple(names))


def evaluate(operations: Sequence[Operation], values: Mapping[str, int], rng: random.Random) -> int:
    """The value of an expression in postfix order, in 64-bit whole numbers as pgbench has them.

    Raises UsageError for what pgbench refuses too: division by zero, an empty range.
    """
    stack: list[int] = []
    for operation in operations:
        if operation.kind == "constant":
            stack.append(int(operation.operand or 0))
        elif operation.kind == "variable":
            stack.append(values[str(operation.operand)])
        elif operation.kind == "negate":
            stack.append(_wrapped(-stack.pop()))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(_wrapped(_BINARY[operation.kind](left, right, rng)))
    return stack.pop()


def _wrapped(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _divided(left: int, right: int, rng: random.Random) -> int:
    """Towards zero, as in C."""
    if right == 0:
        raise UsageError("the script divides by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _drawn(left: int, right: int, rng: random.Random) -> int:
    if right < left:
        raise UsageError(f"the script draws from an empty range: random({left}, {right})")
    return rng.randint(left, right)


_BINARY: Mapping[str, Callable[[int, int, random.Random], int]] = {
    "add": lambda left, right, rng: left + right,
    "subtract": lambda left, right, rng: left - right,
    "multiply": lambda left, right, rng: left * right,
    "divide": _divided,
    "modulo": lambda left, right, rng: left - right * _divided(left, right, rng),
    "random": _drawn,
}
