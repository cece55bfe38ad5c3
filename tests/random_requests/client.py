"""A client that sends random requests, and notes what a trace of them must tell."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NoReturn

from tests.random_requests import utilities
from tests.random_requests.model import (
    FAILED,
    FINE,
    UNDER_WAY,
    Call,
    Portal,
    Refused,
    Statement,
    Values,
)
from tests.random_requests.statements import statement, usual
from tests.random_requests.transactions import Transactions
from tests.wire_protocol import message, query_message

#: What may be done in a transaction that has failed.
_EXITS = ("COMMIT", "ROLLBACK", "ROLLBACK TO s")
#: Milliseconds after which a statement is ended that would run for longer.
_TIMEOUT_MS = 30

Step = tuple[str, Statement, tuple[object, ...]]


class RandomClient(Transactions):
    """A session that sends requests past libpq, each in one of many ways.

    sent: what the request under way was, in words.
    """

    sent = ""

    # the simple protocol

    def simple(self, *statements: Statement, also: str = "") -> None:
        """A request of some statements."""
        given = [one.literally() for one in statements]
        sql = f"{also}; ".join(one.sql for one in given) + also
        self.sent, self.source = f"simple: {sql}", sql.rstrip(";")
        self._count_shapes(given, "simple" if len(given) < 2 else "several statements")
        self.wire.send(query_message(sql))
        self._simple_answered(given)

    def _simple_answered(self, given: Sequence[Statement]) -> None:
        try:
            self.several, self.alone = len(given) > 1, len(given) == 1 and self.status == "I"
            if any(one.fails == "read" for one in given):
                self._unknown()
            for one in given:
                self._simple(one, last=one is given[-1])
            if not given:
                self.read(b"I")
        except Refused:
            self.aborted()
        self.several = self.alone = False
        self.ready()

    def _count_shapes(self, statements: Sequence[Statement], way: str) -> None:
        self.shapes.update([way if statements else "empty", *(one.shape for one in statements)])

    def _simple(self, one: Statement, last: bool) -> None:
        if (self.status == "E" and one.sql not in _EXITS) or one.fails == "parse":
            self._unknown()
        parsed = self.call("parse", one.sql, outcome=FINE)
        if one.shape == "timeout":
            self._timed_out(one, parsed)
        if one.fails == "plan":
            self.calls_within(one.within)
            self.refused()
        self.drop("")
        made = self.call("utility" if one.kind == "utility" else "execute", one.sql)
        self._run(one, made)
        made.end()
        if last and self.status == "I" and self.open:
            self.over("commit")
        _, tag, rows = self.read(b"C")
        self._count(one, made, tag, rows)

    def _unknown(self) -> NoReturn:
        """A message fails before the trace knows its statement: that word hides everything.

        What statements run later in the same transaction is hidden, too: it may be due to this one.
        """
        self.hidden = "execute" in self.source.lower()
        self.secret = self.secret or (self.hidden and self.level > 0)
        self.refused()

    def _run(self, one: Statement, made: Call) -> None:
        """It runs up to its end, or its error."""
        self.calls_within(one.within, one.caught)
        if one.fails == "run":
            self.fail(made)
        if one.at_commit:
            self.deferred.append((self.savepoints, one))
        if one.act:
            one.act(self, made)

    def _count(self, one: Statement, made: Call, tag: bytes, rows: int) -> None:
        """As many rows as the server says."""
        if one.kind == "utility":
            return
        made.rows = rows if one.kind == "select" else int(tag.rstrip(b"\0").split()[-1])

    def _timed_out(self, one: Statement, parsed: Call) -> None:
        """It was ended while it slept; or earlier, on a machine that is that busy."""
        kind, _, _ = self.read(b"T", b"E")
        made = self.call("execute", one.sql, rows=0, outcome=FAILED)
        if kind == b"E":
            parsed.doubtful = made.doubtful = True
            raise Refused
        self.drop("")
        self.refused()

    def block(self, sql: str) -> None:
        """A request that begins, ends or divides a transaction."""
        self.simple(_block(sql))

    def cancelled(self) -> None:
        """The server ends by an error what is under way: the last calls that had begun."""
        kind, _, _ = self.read(b"E")
        assert kind == b"E"
        under_way = [one for one in self.expected.calls if one.outcome == UNDER_WAY]
        for one in under_way:
            if one.kind in ("execute", "utility", "fetch"):
                one.rows = one.rows or 0
            one.end(FAILED)
        self.aborted()
        self.wire.send(message(b"S"))
        self.ready()

    def send_copy(self, rows: int, end: str) -> None:
        """So many rows for COPY, and an end: done, fail, or a line that is wrong."""
        data = b"".join(b"%d\n" % (i + 1) for i in range(rows))
        if end == "wrong":
            data += b"wrong\n"
        last = message(b"f", b"given up\0") if end == "fail" else message(b"c")
        self.wire.send(message(b"d", data), last)

    # the extended protocol

    def extended(self, *segments: Sequence[Statement]) -> None:
        """Pipelines of statements, each parsed, bound and executed; a Sync after each pipeline."""
        messages: list[bytes] = []
        steps: list[list[Step]] = []
        words = []
        for units in segments:
            steps.append([])
            for one in units:
                self._unit(one, messages, steps[-1])
            self._count_shapes(units, "extended" if len(units) < 2 else "pipeline")
            words.append(", ".join(f"{step} {one.sql} {rest}" for step, one, rest in steps[-1]))
            messages.append(message(b"S"))
        self.sent = "extended: " + "; Sync; ".join(words)
        if len(segments) > 1:
            self.shapes["several pipelines"] += 1
        self.wire.send(*messages)
        for some in steps:
            self._pipeline_answered(some)

    def _pipeline_answered(self, steps: Sequence[Step]) -> None:
        try:
            for step, one, arguments in steps:
                getattr(self, f"_{step}_answered")(one, *arguments)
            if self.status == "I" and self.open:
                self.over("commit")
        except Refused:
            self.aborted()
        self.ready()

    def _unit(self, one: Statement, messages: list[bytes], steps: list[Step]) -> None:
        """One statement in a pipeline, in one of many ways."""

        def step(name: str, sent: bytes, *arguments: object) -> None:
            messages.append(sent)
            steps.append((name, one, arguments))

        old = [
            name
            for name, portal in self.portals.items()
            if name and portal.of.kind == "select" and not portal.of.fails
        ]
        if old and self.rng.random() < 0.1:
            portal, limit = self.rng.choice(old), self.rng.choice((0, 1))
            self.shapes["old portal"] += 1
            one = self.portals[portal].of
            step("execute", execute(portal, limit), portal, limit)
            return
        name = self._parse(one, step)
        describable = one.kind in ("select", "changes") and one.fails not in ("read", "parse")
        if describable and self.rng.random() < 0.2:
            step("describe", message(b"D", b"S" + name.encode() + b"\0"), name)
            if self.rng.random() < 0.1:
                return
        values: tuple[object, ...] = one.values
        if self.rng.random() < 0.05:
            values = (
                ("nonsense", *values[1:]) if values and self.rng.random() < 0.5 else (*values, 1)
            )
        portal = self.rng.choice(("", "", self.new_name("p")))
        if self.rng.random() < 0.01:
            name = "unknown"
        step("bind", bind(portal, name, values), portal, values, name)
        if describable and self.rng.random() < 0.2:
            step("describe", message(b"D", b"P" + portal.encode() + b"\0"))
        for limit in self._limits(one):
            step("execute", execute(portal, limit), portal, limit)
        if self.rng.random() < 0.01:
            step("execute", execute("unknown", 0), "unknown", 0)
        if self.rng.random() < 0.2:
            step("close", message(b"C", b"P" + portal.encode() + b"\0"), portal)
        elif name and self.rng.random() < 0.1:
            step("deallocate", message(b"C", b"S" + name.encode() + b"\0"), name)
        if self.rng.random() < 0.2:
            messages.append(message(b"H"))

    def _parse(self, one: Statement, step: Callable[..., None]) -> str:
        """The name of the prepared statement, which may have been parsed before."""
        known = [name for name, other in self.prepared.items() if other.sql == one.sql]
        if known and self.rng.random() < 0.7:
            return known[0]
        once = one.fails or one.act or self.rng.random() < 0.5
        name = "" if once else self.new_name("s")
        step("parse", parse(one.sql, name, len(one.values)), name)
        return name

    def _limits(self, one: Statement) -> list[int]:
        """Of rows, for each time that a portal is executed."""
        if one.kind == "returning":
            return self.rng.choice(([0], [0], [1, 0], [2, 1]))
        if one.kind != "select":
            return [0] if self.rng.random() < 0.95 else []
        return self.rng.choice(([0], [0], [0], [], [1], [2, 0], [1, 2, 2], [0, 0]))

    def _parse_answered(self, one: Statement, name: str) -> None:
        if one.fails in ("read", "parse") or (self.status == "E" and one.sql not in _EXITS):
            self.refused()
        self.call("parse", one.sql, outcome=FINE)
        self.read(b"1")
        if name:
            self.prepared[name] = one

    def _describe_answered(self, one: Statement, name: str = "") -> None:
        if name and name not in self.prepared:
            self.refused()
        if self.status == "E" and one.kind == "select":
            self.refused()
        self.open = self.open or self.status != "E"
        self.read(b"T", b"n")

    def _bind_answered(self, one: Statement, portal: str, values: Values, name: str = "") -> None:
        unknown = name and name not in self.prepared
        if unknown or len(values) != len(one.values):
            self.refused()
        if (self.status == "E" and one.sql not in _EXITS) or "nonsense" in values:
            # the portal is made before values are read
            if self.status != "E":
                self.drop(portal)
            self.refused()
        self.drop(portal)
        if one.fails == "plan":
            self.calls_within(one.within)
            self.refused()
        made = Portal(one, values, self.savepoints)
        self.portals[portal] = made
        if one.kind == "select" and self.level:
            made.execution = self.call("execute", one.sql, values=values, rows=0)
        self.call("bind", one.sql, outcome=FINE)
        self.read(b"2")

    def _execute_answered(self, one: Statement, name: str, limit: int) -> None:
        portal = self.portals.get(name)
        if portal is None or (self.status == "E" and one.sql not in _EXITS):
            self.refused()
        portal.runs += 1
        if one.kind != "select":
            self._run_portal(one, portal, limit)
            return
        self.stir()
        made = portal.execution
        run = None
        if made and self.level:
            run = made if portal.runs == 1 else self.call("fetch", one.sql, rows=0)
        if portal.runs == 1:
            self.calls_within(one.within, one.caught)
        kind, _, rows = self.read(b"C", b"s", b"E")
        if kind == b"E":
            assert one.fails == "run"
            for failed in (run, made):
                if failed:
                    failed.end(FAILED)
            raise Refused
        if run and made:
            if run is not made:
                run.rows = rows
                run.end()
            made.rows = (made.rows or 0) + rows

    def _run_portal(self, one: Statement, portal: Portal, limit: int) -> None:
        """What is not a query runs to its end, however few rows are asked for."""
        if portal.runs > 1:
            self.read(b"C", b"s")
            return
        kind = "utility" if one.kind == "utility" else "execute"
        self.source = one.sql
        made = self.call(kind, one.sql, values=portal.values if kind == "execute" else ())
        self._run(one, made)
        made.end()
        kind_of, tag, rows = self.read(b"C", b"s")
        if kind_of == b"s":
            made.rows = one.values[0]
        else:
            self._count(one, made, tag, rows)

    def _close_answered(self, one: Statement, portal: str) -> None:
        self.drop(portal)
        self.read(b"3")

    def _deallocate_answered(self, one: Statement, name: str) -> None:
        self.prepared.pop(name, None)
        self.read(b"3")

    # what is sent

    def request(self) -> None:
        """Any request."""
        choice = self.rng.random()
        if self.rng.random() < 0.002 and self.status != "E":
            self._timeout()
        elif self.status == "E":
            self._in_failed(choice)
        elif self.status == "T" and choice < 0.2:
            some = ["COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s"]
            self.block(self.rng.choice(some + ["ROLLBACK TO s", "RELEASE s"] * self.savepoints))
        elif self.status == "I" and choice < 0.12:
            self.block("BEGIN")
        elif choice < 0.6:
            many = self.rng.choice((0, 1, 1, 1, 1, 2, 4))
            also = ";" if self.rng.random() < 0.05 else ""
            self.simple(*(self._any() for _ in range(many)), also=also)
        else:
            self._any_extended()

    def _in_failed(self, choice: float) -> None:
        if choice < 0.3:
            self.simple(usual(self.rng))
        elif choice < 0.5:
            self.extended([usual(self.rng)])
        elif choice < 0.6:
            self.extended([_block(self.rng.choice(_EXITS))])
        elif self.savepoints and choice < 0.8:
            self.block("ROLLBACK TO s")
        else:
            self.block(self.rng.choice(("ROLLBACK", "COMMIT")))

    def _timeout(self) -> None:
        """A statement that the server ends after some time."""
        sleep = Statement("SELECT pg_sleep(20) AS timed", shape="timeout", fails="run")
        self.simple(Statement(f"SET statement_timeout = {_TIMEOUT_MS}", "utility"), sleep)

    def _any(self) -> Statement:
        """A statement of a simple request."""
        choice = self.rng.random()
        if choice < 0.05:
            return _block(self.rng.choice(("BEGIN", *_EXITS, "SAVEPOINT s", "RELEASE s")))
        if choice < 0.1:
            return utilities.copy_in(self.rng)
        return utilities.utility(self) if choice < 0.4 else statement(self.rng)

    def _any_extended(self) -> None:
        many = self.rng.choice((0, 1, 1, 1, 1, 2, 6))
        units = [self._any_unit() for _ in range(many)]
        choice = self.rng.random()
        if choice < 0.05 and self.status == "I":
            ends = self.rng.choice(("COMMIT", "ROLLBACK"))
            self.extended([_block("BEGIN"), *units, _block(ends)])
        elif choice < 0.1:
            self.extended(units, [self._any_unit()])
        else:
            self.extended(units)

    def _any_unit(self) -> Statement:
        """A statement of a pipeline; only within a block one that depends on that."""
        if self.rng.random() < 0.2:
            one = utilities.utility(self)
            # bound, the word hides what runs
            if one.shape != "EXECUTE" and (not one.block or self.status == "T"):
                return one
        return statement(self.rng)


def _block(sql: str) -> Statement:
    """What begins, ends or divides a transaction."""
    if sql == "BEGIN":
        return utilities.begin()
    return utilities.end(sql) if sql in ("COMMIT", "ROLLBACK") else utilities.savepoint(sql)


def parse(sql: str, name: str = "", integers: int = 0) -> bytes:
    """A message Parse; all parameters are integers."""
    types = struct.pack(f"!h{integers}i", integers, *[23] * integers)
    return message(b"P", name.encode() + b"\0" + sql.encode() + b"\0" + types)


def execute(portal: str, limit: int) -> bytes:
    """A message Execute."""
    return message(b"E", portal.encode() + b"\0" + struct.pack("!i", limit))


def bind(portal: str, name: str, values: Sequence[object]) -> bytes:
    """A message Bind."""
    body = portal.encode() + b"\0" + name.encode() + b"\0" + struct.pack("!hh", 0, len(values))
    for value in values:
        if value is None:
            body += struct.pack("!i", -1)
        else:
            text = str(value).encode()
            body += struct.pack("!i", len(text)) + text
    return message(b"B", body + struct.pack("!h", 0))
