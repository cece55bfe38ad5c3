"""What a trace of random requests must tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.random_requests.client import RandomClient

FINE, FAILED, ABORTED = "fine", "failed", "aborted"
#: Fine or aborted.
DROPPED = "dropped"
#: Of a call that has no record, as the session ended before the call did.
UNDER_WAY = "under way"
#: Levels at which values and messages are recorded.
WITH_VALUES = (4, 12)

#: The text of what runs in some utility statements: all that was sent as one string.
SOURCE = "the source"

Values = tuple[int | None, ...]


@dataclass
class Call:
    """A call that a trace must have. rows, values: None if they do not matter.

    fetches: of a fetch within a statement, how often it was called. doubtful: it may be missing.
    """

    kind: str
    text: str
    depth: int = 0
    rows: int | None = None
    outcome: str = UNDER_WAY
    values: Values | None = ()
    fetches: int = 1
    doubtful: bool = field(default=False, compare=False)

    def end(self, outcome: str = FINE) -> None:
        """It has ended, if it had not before."""
        if self.outcome == UNDER_WAY:
            self.outcome = outcome


@dataclass
class Expected:
    """What a trace must have; calls in the order in which they began."""

    calls: list[Call] = field(default_factory=list)
    requests: list[tuple[str, int]] = field(default_factory=list)
    #: The message is None if it may be hidden.
    errors: list[tuple[int, str, str | None]] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)


class Refused(Exception):
    """The server has answered with an error, and skips the rest of the request."""


@dataclass(frozen=True)
class Statement:
    """A statement, and what it does.

    shape: by which it is counted. kind: select, changes (a count comes back), returning, utility.
    values: of its parameters, all integers. fails: None, or while it is read, parsed, planned, run.
    within: calls in it. at_commit: calls of deferred triggers. caught: errors that its functions
    catch. act: what else it does, and to whom. block: it asks whether it is in a transaction block,
    which depends on more than we know within a pipeline.
    """

    sql: str
    kind: str = "select"
    values: Values = ()
    fails: str | None = None
    within: tuple[Call, ...] = ()
    at_commit: tuple[Call, ...] = ()
    commit_fails: bool = False
    caught: int = 0
    shape: str = "other"
    act: Callable[[RandomClient, Call], None] | None = None
    block: bool = False

    def literally(self) -> Statement:
        """The same with the values in place, for the simple protocol."""
        sql = self.sql
        for number in range(len(self.values), 0, -1):
            value = self.values[number - 1]
            sql = sql.replace(f"${number}", "NULL" if value is None else str(value))
        return replace(self, sql=sql, values=())


@dataclass
class Portal:
    """A portal that the server has. execution: if that begins with it. savepoints: around it."""

    of: Statement
    values: Values
    savepoints: int
    execution: Call | None = None
    runs: int = 0


@dataclass
class Cursor:
    """A cursor. execution: None if the trace knows of none, or no longer. total: rows.

    hold: it outlasts its transaction, at whose end it is read. fails: after all its rows.
    """

    text: str
    total: int
    savepoints: int
    execution: Call | None
    hold: bool = False
    fails: bool = False
    position: int = 0
    materialised: bool = False
