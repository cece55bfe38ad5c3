"""What a trace must tell of calls, transactions, savepoints and levels of one session."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from tests.random_requests.model import (
    ABORTED,
    DROPPED,
    FAILED,
    FINE,
    SOURCE,
    WITH_VALUES,
    Call,
    Cursor,
    Expected,
    Portal,
    Refused,
    Statement,
)
from tests.sessions import Connection
from tests.wire_protocol import Wire

#: Before the name of a cursor that failed, and cannot be used any more.
_DEAD = "dead "
#: On a machine that is busy with other things; longer than any statement sleeps.
_PATIENCE_SECONDS = 120.0


class Transactions:
    """A session over the wire, and what a trace of it must tell.

    status: of the transaction, as the server reports it at the end of a request; I, T or E.
    level: of the trace, in force for the request under way.
    """

    def __init__(self, connection: Connection, level: int) -> None:
        self.connection = connection
        self.rng = random.Random()
        self.expected = Expected()
        self.shapes: Counter[str] = Counter()
        self.wire = Wire(connection, _PATIENCE_SECONDS)
        self.status = "I"
        self.portals: dict[str, Portal] = {}
        self.prepared: dict[str, Statement] = {}
        self.cursors: dict[str, Cursor] = {}
        self.sql_prepared: dict[str, str] = {}
        self.deallocated: set[str] = set()  # or going to be: an EXECUTE of nothing is hidden
        self.open = False  # the server has a transaction
        self.begun = False  # the trace knows of it
        self.unseen = False  # some of it was not traced
        self.hidden = False  # messages of errors may be
        self.secret = False  # so is what runs within the transaction's statements
        self.savepoints = 0
        self.answered = 0
        self.deferred: list[tuple[int, Statement]] = []  # after how many savepoints
        self.named = 0
        self.noticed = 0, 0  # calls and errors up to the request under way
        self.source = ""  # of the statement that runs
        self.stirred = False  # by this request, something that an earlier one began
        self.several = False  # a simple request of several statements is under way
        self.alone = False  # a statement is the only one of its transaction, by the simple protocol
        self.level = self.noted_level = level
        # the setting, and what it is if the transaction commits; at its begin and at savepoints
        self.setting = level, level
        self.settings = [self.setting]

    def new_name(self, prefix: str) -> str:
        """A name that nothing has in this session."""
        self.named += 1
        return f"{prefix}{self.named}"

    @property
    def in_block(self) -> bool:
        """Whether statements that need a transaction block find one."""
        return self.status == "T" or self.several

    @property
    def usable_cursors(self) -> list[str]:
        return [name for name in self.cursors if not name.startswith(_DEAD)]

    # calls

    def call(self, kind: str, text: str, depth: int = 0, **facts: object) -> Call:
        """A call begins."""
        if text == SOURCE:
            text = self.source
        made = Call(kind, text, depth, **facts)  # type: ignore[arg-type]
        self.open = self.open or self.status != "E"
        if not self.level:
            return made
        if self.level not in WITH_VALUES:
            made.values = ()
        if not self.begun and (self.status != "E" or self.savepoints):
            self.begun, self.secret = True, False
            self.event("begin")
        self.expected.calls.append(made)
        return made

    def event(self, event: str, times: int = 1) -> None:
        """Something happens to the transaction."""
        if self.level:
            self.expected.transactions += [event] * times

    def calls_within(self, calls: Sequence[Call], caught: int = 0) -> None:
        """Calls within the one under way begin and end."""
        for one in calls:
            facts = {"rows": one.rows, "outcome": one.outcome, "values": one.values}
            made = self.call(one.kind, one.text, one.depth, fetches=one.fetches, **facts)
            if self.secret and not self._is_sent(made):
                made.text, made.values, self.hidden = "", None, True
        self.event("subabort", caught)

    def _is_sent(self, made: Call) -> bool:
        """Whether the text of a call within another one is, or is part of, what was sent."""
        around = next((one for one in reversed(self.expected.calls) if not one.depth), None)
        return made.text == self.source or (around is not None and made.text == around.text)

    def heard(self) -> bool:
        """Whether the trace knows of the request under way."""
        known = len(self.expected.calls), len(self.expected.errors)
        return self.stirred or known != self.noticed

    def stir(self) -> None:
        """An execution of another request goes on, or ends."""
        self.stirred = self.level > 0

    # portals and cursors

    def drop(self, name: str, outcome: str = FINE) -> None:
        """A portal is dropped, if there is such a one."""
        portal = self.portals.pop(name, None)
        if portal and portal.execution:
            self.stir()
            portal.execution.end(outcome)

    def _drop_all(self, outcome: str, savepoints: int = 0) -> None:
        """Portals and cursors are dropped that were made after so many savepoints."""
        for name, portal in list(self.portals.items()):
            if portal.savepoints >= savepoints:
                self.drop(name, outcome)
        for name, cursor in list(self.cursors.items()):
            if cursor.savepoints < savepoints or cursor.materialised:
                continue
            if cursor.execution:
                cursor.execution.end(outcome)
            del self.cursors[name]

    def cursor_failed(self, name: str) -> None:
        """It is there, but not for anything."""
        self.cursors[self.new_name(_DEAD)] = self.cursors.pop(name)

    def _materialise(self) -> None:
        """A cursor that is to outlast its transaction is read, from its first row on."""
        for name, cursor in list(self.cursors.items()):
            if not cursor.hold or cursor.materialised or name.startswith(_DEAD):
                continue
            fetched = None
            if cursor.execution and self.level:
                rows = None if cursor.fails else cursor.total
                fetched = self.call("fetch", cursor.text, rows=rows)
            if cursor.fails:
                for one in (fetched, cursor.execution if fetched else None):
                    if one:
                        one.rows = None
                        one.end(FAILED)
                # others may have been dropped before, in the order of a hash table
                self._drop_all(DROPPED)
                self.refused()
            if fetched and cursor.execution:
                fetched.end()
                cursor.execution.rows = (cursor.execution.rows or 0) + cursor.total
            if cursor.execution:
                cursor.execution.end()
            cursor.execution, cursor.materialised = None, True

    # transactions

    def over(self, event: str, depth: int = 0) -> None:
        """The transaction is over; a commit runs what was deferred."""
        deferred, self.deferred = self.deferred, []
        if event == "commit":
            self.savepoints = 0
            for _, one in deferred:
                # something that must not be shown may have caused what the trace has not seen
                hidden = [replace(call, text="") if self.unseen else call for call in one.at_commit]
                self.calls_within(hidden)
                if one.commit_fails:
                    self.refused()
            self._materialise()
            if self.heard():
                self.call("commit", "", depth, outcome=FINE)
        self._drop_all(FINE if event == "commit" else ABORTED)
        if event == "abort" and self.begun and self.level:
            self.call("rollback", "", depth, outcome=FINE)
        if self.begun:
            self.event(event)
        self.setting = (self.setting[1],) * 2 if event == "commit" else self.settings[0]
        self.settings = [self.setting]
        self.begun = self.open = False
        self.savepoints = 0

    def aborted(self) -> None:
        """An error has met the transaction."""
        if self.status == "E":
            return
        if self.savepoints:
            self.subaborted()
        else:
            self.over("abort")
        if self.status == "T":
            self.status = "E"

    def subaborted(self) -> None:
        """What came after the last savepoint is undone."""
        if self.begun:
            self.event("subabort")
        self.setting = self.settings[-1]
        self.deferred = [(n, one) for n, one in self.deferred if n < self.savepoints]
        self._drop_all(ABORTED, self.savepoints)

    def ends_block(self, sql: str) -> None:
        """COMMIT or ROLLBACK, wherever."""
        before, self.status = self.status, "I"
        if before == "E" and not self.savepoints:
            self.setting = self.settings[0]
            return
        if before != "E" and sql == "COMMIT":
            self.over("commit")
            return
        if self.begun:
            self.event("subabort", self.savepoints - (before == "E"))
        self.over("abort")

    def savepoint(self) -> None:
        self.savepoints += 1
        self.settings.append(self.setting)

    def release(self) -> None:
        """What came after the last savepoint belongs to what is around it."""
        self.savepoints -= 1
        self.settings.pop()
        self.deferred = [(min(n, self.savepoints), one) for n, one in self.deferred]
        for one in (*self.portals.values(), *self.cursors.values()):
            one.savepoints = min(one.savepoints, self.savepoints)

    def rollback_to(self) -> None:
        if self.status == "T":
            self.subaborted()
        self.status = "T"

    def set_level(self, level: int, local: bool) -> None:
        """The setting changes; it counts from the next request on."""
        self.setting = level, self.setting[1] if local else level

    # what the server answers

    def read(self, *wanted: bytes) -> tuple[bytes, bytes, int]:
        """The next message of these kinds, its body, and how many rows came before it."""
        rows = 0
        while True:
            kind, body = self.wire.read_message()
            rows += kind == b"D"
            self.answered += kind in (b"C", b"s", b"I")
            if kind == b"E":
                self._error(body)
            if kind in wanted:
                return kind, body, rows
            assert kind != b"E", body

    def _error(self, body: bytes) -> None:
        if not self.level:
            return
        parts = {part[:1]: part[1:].decode() for part in body.split(b"\0") if part}
        severity = {"ERROR": 1, "FATAL": 2}[parts[b"V"]]
        message = parts[b"M"] if self.level in WITH_VALUES else ""
        hidden = self.unseen or self.hidden
        self.expected.errors.append((severity, parts[b"C"], None if hidden else message))

    def refused(self) -> NoReturn:
        """The server answers with an error."""
        self.read(b"E")
        raise Refused

    def fail(self, made: Call) -> NoReturn:
        """The call ends with an error, which the server sends."""
        made.rows = made.rows or 0
        made.end(FAILED)
        self.refused()

    def ready(self) -> None:
        """The server answers that it is ready; a request without any call passes unnoticed."""
        _, status, _ = self.read(b"Z")
        assert self.status == status.decode(), f"status {status.decode()}, not {self.status}"
        if self.heard():
            self.expected.requests.append((self.status, self.answered))
        # an empty request counts as one that was not traced
        self.unseen = self.status != "I" and (self.unseen or not self.heard())
        self.answered, self.hidden, self.stirred = 0, False, False
        self.noticed = len(self.expected.calls), len(self.expected.errors)
        self.level = self.setting[0]
        if self.level != self.noted_level:
            self.expected.levels.append(self.level)
            self.noted_level = self.level
