"""Random requests over the wire, and what a trace of them must tell.

Each statement says which calls it makes and where it fails; the client sends it in one way or
another, asserts that the server answers accordingly, and takes rows and errors from the answers.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.sessions import Connection
from tests.wire_protocol import Wire, message, query_message

#: Once for a server: what the statements below use. What is analysed is parsed once more.
TABLES = """
DROP TABLE IF EXISTS shapes, late CASCADE;
CREATE TABLE shapes (key int) WITH (autovacuum_enabled = off);
CREATE TABLE late (key int) WITH (autovacuum_enabled = off);
CREATE OR REPLACE FUNCTION nest(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN FOR i IN 1..n LOOP PERFORM 'inner' FROM pg_am LIMIT 2; END LOOP; RETURN n; END $$;
CREATE OR REPLACE FUNCTION caught(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..n LOOP
    BEGIN PERFORM 1 / (g - 2) FROM generate_series(1, 3) g;
    EXCEPTION WHEN division_by_zero THEN PERFORM 'handled' FROM pg_am LIMIT 1;
    END;
  END LOOP;
  RETURN n;
END $$;
CREATE OR REPLACE FUNCTION uncaught() RETURNS int LANGUAGE plpgsql AS $$
BEGIN PERFORM 1 / (g - 2) FROM generate_series(1, 3) g; RETURN 1; END $$;
CREATE OR REPLACE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 'deferred' FROM pg_am LIMIT 1;
  IF NEW.key = 2 THEN RAISE 'too late'; END IF;
  IF NEW.key = 3 THEN PERFORM pg_sleep(20); END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION at_commit();
CREATE OR REPLACE FUNCTION slow_constant() RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(20); RETURN 1; END $$;
"""

FINE, FAILED, ABORTED = "fine", "failed", "aborted"
#: Of a call that has no record, as the session ended before the call did.
UNDER_WAY = "under way"


@dataclass
class Call:
    """A call that a trace must have. rows: None if they do not matter."""

    kind: str
    text: str
    depth: int = 0
    rows: int | None = None
    outcome: str = UNDER_WAY
    values: tuple[int | None, ...] = ()

    def end(self, outcome: str = FINE) -> None:
        """It has ended, if it had not before."""
        if self.outcome == UNDER_WAY:
            self.outcome = outcome


#: Calls within statements: those of functions, and of a deferred trigger.
INNER = Call("execute", "SELECT 'inner' FROM pg_am LIMIT 2", 1, 2, FINE)
BROKEN = Call("execute", "SELECT 1 / (g - 2) FROM generate_series(1, 3) g", 1, 0, FAILED)
HANDLED = Call("execute", "SELECT 'handled' FROM pg_am LIMIT 1", 1, 1, FINE)
DEFERRED = Call("execute", "SELECT 'deferred' FROM pg_am LIMIT 1", 0, 1, FINE)
SLEEPING = Call("execute", "SELECT pg_sleep(20)", 1)


@dataclass(frozen=True)
class Statement:
    """A statement, and what it does.

    kind: select, changes (a count comes back), returning, utility. values: of its parameters, all
    integers. fails: None, or while it is read, parsed, planned, run. within: calls in it.
    at_commit: calls of deferred triggers. caught: errors that its functions catch.
    """

    sql: str
    kind: str = "select"
    values: tuple[int | None, ...] = ()
    fails: str | None = None
    within: tuple[Call, ...] = ()
    at_commit: tuple[Call, ...] = ()
    commit_fails: bool = False
    caught: int = 0

    def literally(self) -> Statement:
        """The same with the values in place, for the simple protocol."""
        sql = self.sql
        for number in range(len(self.values), 0, -1):
            value = self.values[number - 1]
            sql = sql.replace(f"${number}", "NULL" if value is None else str(value))
        return replace(self, sql=sql, values=())


def _usual(rng: random.Random) -> Statement:
    n = rng.choice((0, 1, 2, 5))
    many = tuple(rng.choice((None, 7, -123456)) for _ in range(rng.choice((1, 4, 60))))
    parameters = ", ".join(f"${i + 1}" for i in range(len(many)))
    inserted = "INSERT INTO shapes SELECT g FROM generate_series(1, $1) g"
    return rng.choice(
        (
            Statement(f"SELECT {rng.randrange(1000)} AS literal"),
            Statement("SELECT g FROM generate_series(1, $1) g", values=(n,)),
            Statement(f"SELECT {parameters}", values=many),
            Statement(inserted, "changes", (n,)),
            Statement(f"{inserted} RETURNING key", "returning", (n,)),
            Statement("SELECT nest($1)", values=(n,), within=(INNER,) * n),
        )
    )


def _other(rng: random.Random) -> Statement:
    n = rng.choice((1, 3))
    late = "INSERT INTO late VALUES (1)", "changes"
    nest = Call("execute", "SELECT nest(1)", 1, 1, FINE)
    return rng.choice(
        (
            Statement("SELECT 10 / (3 - g) AS broken FROM generate_series(1, 5) g", fails="run"),
            Statement("SELECT 1 / 0 AS folded", fails="plan"),
            Statement("SELECT nothing", fails="parse"),
            Statement("SELEC 1", fails="read"),
            Statement("DELETE FROM shapes", "changes"),
            Statement("SELECT caught($1)", values=(n,), within=(BROKEN, HANDLED) * n, caught=n),
            Statement("SELECT uncaught()", within=(BROKEN,), fails="run"),
            Statement(
                "DO $$BEGIN PERFORM nest(1); END$$",
                "utility",
                within=(nest, replace(INNER, depth=2)),
            ),
            Statement("SET work_mem = '5MB'", "utility"),
            Statement("SHOW work_mem", "utility"),
            Statement(*late, at_commit=(DEFERRED,)),
            Statement(late[0].replace("1", "2"), late[1], at_commit=(DEFERRED,), commit_fails=True),
        )
    )


def statement(rng: random.Random) -> Statement:
    """Any statement; the usual ones more often."""
    return (_usual if rng.random() < 0.6 else _other)(rng)


@dataclass
class Portal:
    """A portal that the server has. execution: if that begins with it. savepoints: around it."""

    of: Statement
    values: tuple[int | None, ...]
    savepoints: int
    execution: Call | None = None
    runs: int = 0


@dataclass
class Expected:
    """What a trace must have; calls in the order in which they began."""

    calls: list[Call] = field(default_factory=list)
    requests: list[tuple[str, int]] = field(default_factory=list)
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)


class Refused(Exception):
    """The server has answered with an error, and skips the rest of the request."""


class RandomClient:
    """A session that sends requests past libpq, and notes what a trace of it must tell."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection = connection
        self.rng = random.Random(seed)
        self.expected = Expected()
        self.wire = Wire(connection)
        self.status = "I"
        self.portals: dict[str, Portal] = {}
        self.prepared: dict[str, Statement] = {}
        self.begun = False  # the trace knows of the transaction
        self.savepoints = 0
        self.answered = 0
        self.deferred: list[tuple[int, Statement]] = []  # after how many savepoints
        self.named = 0
        self.noticed = 0, 0  # calls and errors up to the request under way

    # what the trace must tell

    def call(self, kind: str, text: str, depth: int = 0, **facts: object) -> Call:
        """A call begins."""
        if not self.begun and self.status != "E":
            self.begun = True
            self.expected.transactions.append("begin")
        made = Call(kind, text, depth, **facts)  # type: ignore[arg-type]
        self.expected.calls.append(made)
        return made

    def calls_within(self, calls: Sequence[Call], caught: int = 0) -> None:
        """Calls within the one under way begin and end."""
        for one in calls:
            self.call(one.kind, one.text, one.depth, rows=one.rows, outcome=one.outcome)
        self.expected.transactions += ["subabort"] * caught

    def drop(self, name: str, outcome: str = FINE) -> None:
        """A portal is dropped, if there is such a one."""
        portal = self.portals.pop(name, None)
        if portal and portal.execution:
            portal.execution.end(outcome)

    def over(self, event: str) -> None:
        """The transaction is over; a commit runs what was deferred."""
        deferred, self.deferred = self.deferred, []
        if event == "commit":
            self.savepoints = 0
            for _, one in deferred:
                self.calls_within(one.at_commit)
                if one.commit_fails:
                    self.refused()
        for name in list(self.portals):
            self.drop(name, FINE if event == "commit" else ABORTED)
        if self.begun:
            self.expected.transactions.append(event)
        self.begun, self.savepoints = False, 0

    def aborted(self) -> None:
        """An error has met the transaction."""
        if self.status == "E":
            return
        if self.savepoints:
            self.subaborted()
        else:
            self.over("abort")

    def subaborted(self) -> None:
        """What came after the last savepoint is undone."""
        self.expected.transactions.append("subabort")
        self.deferred = [(n, one) for n, one in self.deferred if n < self.savepoints]
        for name, portal in list(self.portals.items()):
            if portal.savepoints == self.savepoints:
                self.drop(name, ABORTED)

    # what the server answers

    def read(self, *wanted: bytes) -> tuple[bytes, bytes, int]:
        """The next message of these kinds, its body, and how many rows came before it."""
        rows = 0
        while True:
            kind, body = self.wire.read_message()
            rows += kind == b"D"
            self.answered += kind in (b"C", b"s", b"I")
            if kind == b"E":
                parts = {part[:1]: part[1:].decode() for part in body.split(b"\0") if part}
                severity = {"ERROR": 1, "FATAL": 2}[parts[b"V"]]
                self.expected.errors.append((severity, parts[b"C"], parts[b"M"]))
            if kind in wanted:
                return kind, body, rows
            assert kind != b"E", body

    def refused(self) -> None:
        """The server answers with an error."""
        self.read(b"E")
        raise Refused

    def ready(self) -> None:
        """The server answers that it is ready; a request without any call passes unnoticed."""
        _, status, _ = self.read(b"Z")
        self.status = status.decode()
        noticed = len(self.expected.calls), len(self.expected.errors)
        if noticed != self.noticed:
            self.expected.requests.append((self.status, self.answered))
        self.answered, self.noticed = 0, noticed

    # the simple protocol

    def simple(self, *statements: Statement) -> None:
        """A request of some statements."""
        given = [one.literally() for one in statements]
        self.wire.send(query_message("; ".join(one.sql for one in given)))
        try:
            if any(one.fails == "read" for one in given):
                self.refused()
            for one in given:
                self._simple(one, last=one is given[-1])
            if not given:
                self.read(b"I")
        except Refused:
            self.aborted()
        self.ready()

    def _simple(self, one: Statement, last: bool) -> None:
        if self.status == "E" or one.fails == "parse":
            self.refused()
        self.call("parse", one.sql, outcome=FINE)
        if one.fails == "plan":
            self.refused()
        self.drop("")
        made = self.call("utility" if one.kind == "utility" else "execute", one.sql)
        self._run(one, made)
        made.end()
        if last and self.status == "I":
            self.over("commit")
        _, tag, rows = self.read(b"C")
        self._count(one, made, tag, rows)

    def _run(self, one: Statement, made: Call) -> None:
        """It runs up to its end, or its error."""
        self.calls_within(one.within, one.caught)
        if one.fails == "run":
            made.rows = made.rows or 0
            made.end(FAILED)
            self.refused()
        if one.at_commit:
            self.deferred.append((self.savepoints, one))

    def _count(self, one: Statement, made: Call, tag: bytes, rows: int) -> None:
        """As many rows as the server says."""
        if one.kind == "utility":
            return
        made.rows = rows if one.kind == "select" else int(tag.rstrip(b"\0").split()[-1])

    def block(self, sql: str) -> None:
        """A request that begins, ends or divides a transaction; it does not fail."""
        self.wire.send(query_message(sql))
        self.call("parse", sql, outcome=FINE)
        self.drop("")
        self.call("utility", sql, outcome=FINE)
        try:
            if sql == "COMMIT" and self.status == "T":
                self.over("commit")
            elif sql in ("COMMIT", "ROLLBACK"):
                if self.status == "T" or self.savepoints:
                    undone = self.savepoints - (self.status == "E")
                    self.expected.transactions += ["subabort"] * undone
                    self.over("abort")
            elif sql == "SAVEPOINT s":
                self.savepoints += 1
            elif sql == "ROLLBACK TO s" and self.status == "T":
                self.subaborted()
            self.read(b"C")
        except Refused:
            self.over("abort")
        self.ready()

    def cancelled(self) -> None:
        """The server ends by an error what is under way: the last calls that had begun."""
        kind, _, _ = self.read(b"E")
        assert kind == b"E"
        for one in self.expected.calls:
            if one.outcome == UNDER_WAY and one.kind in ("execute", "utility", "fetch"):
                one.rows = one.rows or 0
        under_way = [one for one in self.expected.calls if one.outcome == UNDER_WAY]
        for one in under_way:
            one.end(FAILED)
        self.aborted()
        self.wire.send(message(b"S"))
        self.ready()

    # the extended protocol

    def extended(self, units: Sequence[Statement]) -> None:
        """A request of some statements in a pipeline, each parsed, bound and executed."""
        messages: list[bytes] = []
        steps: list[tuple[str, Statement, tuple[object, ...]]] = []
        for one in units:
            name = self._parse(one, messages, steps)
            values = one.values
            if values and self.rng.random() < 0.05:
                values = ("nonsense", *values[1:])  # type: ignore[assignment]
            portal = self.rng.choice(("", "", f"p{self.named}"))
            self.named += 1
            messages.append(_bind(portal, name, values))
            steps.append(("bind", one, (portal, values)))
            for limit in self._limits(one):
                messages.append(_execute(portal, limit))
                steps.append(("execute", one, (portal, limit)))
            if self.rng.random() < 0.2:
                messages.append(message(b"C", b"P" + portal.encode() + b"\0"))
                steps.append(("close", one, (portal,)))
            if self.rng.random() < 0.2:
                messages.append(message(b"H"))
        self.wire.send(*messages, message(b"S"))
        try:
            for step, one, arguments in steps:
                getattr(self, f"_{step}_answered")(one, *arguments)
            if self.status == "I":
                self.over("commit")
        except Refused:
            self.aborted()
        self.ready()

    def _parse(self, one: Statement, messages: list[bytes], steps: list) -> str:  # type: ignore[type-arg]
        """The name of the prepared statement, which may have been parsed before."""
        known = [name for name, other in self.prepared.items() if other.sql == one.sql]
        if known and self.rng.random() < 0.7:
            return known[0]
        name = "" if one.fails or self.rng.random() < 0.5 else f"s{self.named}"
        types = struct.pack(f"!h{len(one.values)}i", len(one.values), *[23] * len(one.values))
        messages.append(message(b"P", name.encode() + b"\0" + one.sql.encode() + b"\0" + types))
        steps.append(("parse", one, (name,)))
        return name

    def _limits(self, one: Statement) -> list[int]:
        """Of rows, for each time that a portal is executed."""
        if one.kind != "select":
            return [0] if self.rng.random() < 0.95 else []
        return self.rng.choice(([0], [0], [0], [], [1], [2, 0], [1, 2, 2], [0, 0]))

    def _parse_answered(self, one: Statement, name: str) -> None:
        if self.status == "E" or one.fails in ("read", "parse"):
            self.refused()
        self.call("parse", one.sql, outcome=FINE)
        self.read(b"1")
        if name:
            self.prepared[name] = one

    def _bind_answered(self, one: Statement, portal: str, values: tuple[int | None, ...]) -> None:
        if self.status == "E" or "nonsense" in values or one.fails == "plan":
            # the portal is made before values are read
            if self.status != "E":
                self.drop(portal)
            self.refused()
        self.drop(portal)
        made = Portal(one, values, self.savepoints)
        self.portals[portal] = made
        if one.kind == "select":
            made.execution = self.call("execute", one.sql, values=values, rows=0)
        self.call("bind", one.sql, outcome=FINE)
        self.read(b"2")

    def _execute_answered(self, one: Statement, name: str, limit: int) -> None:
        portal = self.portals[name]
        portal.runs += 1
        made = portal.execution
        if made is None:
            kind = "utility" if one.kind == "utility" else "execute"
            made = self.call(kind, one.sql, values=portal.values if kind == "execute" else ())
            self._run(one, made)
            made.end()
            _, tag, rows = self.read(b"C")
            self._count(one, made, tag, rows)
            return
        run = made if portal.runs == 1 else self.call("fetch", one.sql, rows=0)
        if portal.runs == 1:
            self.calls_within(one.within, one.caught)
        kind, _, rows = self.read(b"C", b"s", b"E")
        if kind == b"E":
            assert one.fails == "run"
            run.end(FAILED)
            made.end(FAILED)
            raise Refused
        if run is not made:
            run.rows = rows
            run.end()
        made.rows = (made.rows or 0) + rows

    def _close_answered(self, one: Statement, portal: str) -> None:
        self.drop(portal)
        self.read(b"3")

    # what is sent

    def request(self) -> None:
        """Any request."""
        choice = self.rng.random()
        if self.status == "E":
            if choice < 0.4:
                self.simple(_usual(self.rng))
            elif choice < 0.5:
                self.extended([_usual(self.rng)])
            elif self.savepoints and choice < 0.8:
                self.block("ROLLBACK TO s")
            else:
                self.block(self.rng.choice(("ROLLBACK", "COMMIT")))
        elif self.status == "T" and choice < 0.3:
            some = ["COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s"]
            self.block(self.rng.choice(some + ["ROLLBACK TO s"] * (self.savepoints > 0)))
        elif self.status == "I" and choice < 0.15:
            self.block("BEGIN")
        elif choice < 0.5:
            many = self.rng.choice((0, 1, 1, 1, 1, 2, 4))
            self.simple(*(statement(self.rng) for _ in range(many)))
        else:
            many = self.rng.choice((0, 1, 1, 1, 1, 2, 6))
            self.extended([statement(self.rng) for _ in range(many)])


class Stopped:
    """Sends one more request up to a point, where the session is going to end.

    Each method is such a point. What it has begun and not ended has no record. Where the server
    runs, it sleeps there.
    """

    def __init__(self, client: RandomClient) -> None:
        self.client = client
        self.wire = client.wire

    def idle(self) -> None:
        """Between requests."""

    def parsed(self) -> None:
        """A statement has been parsed, and the answer has come; no Sync."""
        self._flushed(_parse("SELECT 'parsed'"))
        self.client.call("parse", "SELECT 'parsed'", outcome=FINE)
        self.client.read(b"1")

    def bound(self) -> None:
        self.parsed()
        self._flushed(_bind("", "", ()))
        self.client.call("execute", "SELECT 'parsed'")
        self.client.call("bind", "SELECT 'parsed'", outcome=FINE)
        self.client.read(b"2")

    def executed(self) -> None:
        self.bound()
        self._flushed(_execute("", 0))
        self.client.read(b"C")

    def fetched(self) -> None:
        """All is fetched but the end, by more than one message."""
        self.bound()
        for _ in range(2):
            self._flushed(_execute("", 1))
            self.client.read(b"s", b"C")
        self.client.call("fetch", "SELECT 'parsed'", rows=0, outcome=FINE)

    def second(self) -> None:
        """Within the second statement of a pipeline."""
        self.executed()
        self.client.portals[""] = Portal(Statement(""), (), 0, self.client.expected.calls[-2])
        self.client.expected.calls[-2].rows = 1
        self._sleeping("SELECT pg_sleep(20) AS piped")

    def running(self) -> None:
        """Within a statement, by the simple protocol."""
        self._slept("SELECT pg_sleep(20) AS long")

    def next_running(self) -> None:
        """Within the second statement of a simple request."""
        sql = "SELECT 'first'", "SELECT pg_sleep(20) AS second"
        self.wire.send(query_message("; ".join(sql)))
        self._ran(sql[0])
        self.client.call("parse", sql[1], outcome=FINE)
        self.client.call("execute", sql[1])

    def planning(self) -> None:
        """As a function's result is found out that is constant."""
        self.wire.send(query_message("SELECT slow_constant()"))
        self.client.call("parse", "SELECT slow_constant()", outcome=FINE)
        self.client.call("execute", "SELECT pg_sleep(20)", 1)

    def nested(self) -> None:
        sql = "DO $$BEGIN PERFORM nest(1); PERFORM pg_sleep(20); END$$"
        self.wire.send(query_message(sql))
        self.client.call("parse", sql, outcome=FINE)
        self.client.call("utility", sql)
        nest = Call("execute", "SELECT nest(1)", 1, 1, FINE)
        self.client.calls_within([nest, replace(INNER, depth=2), SLEEPING])

    def caught(self) -> None:
        """Within the handler of an error."""
        sql = (
            "DO $$BEGIN PERFORM uncaught(); "
            "EXCEPTION WHEN division_by_zero THEN PERFORM pg_sleep(20); END$$"
        )
        self.wire.send(query_message(sql))
        self.client.call("parse", sql, outcome=FINE)
        self.client.call("utility", sql)
        failed = Call("execute", "SELECT uncaught()", 1, 0, FAILED)
        self.client.calls_within([failed, replace(BROKEN, depth=2)], caught=1)
        self.client.calls_within([SLEEPING])

    def committing(self) -> None:
        """As a deferred trigger runs."""
        sql = "INSERT INTO late VALUES (3)"
        self.wire.send(query_message(sql))
        self._ran(sql)
        parse = Call("parse", SLEEPING.text, outcome=FINE)
        self.client.calls_within([DEFERRED, parse, replace(SLEEPING, depth=0)])

    def copying(self) -> None:
        """The server waits for the client's data."""
        sql = "COPY shapes FROM STDIN"
        self.wire.send(query_message(sql))
        self.client.call("parse", sql, outcome=FINE)
        self.client.call("utility", sql)
        self.client.read(b"G")

    def in_transaction(self) -> None:
        """Idle in a transaction, with a portal that is still open."""
        self.client.block("BEGIN")
        self.client.simple(Statement("SELECT 'within'"))
        sql = "DECLARE c CURSOR FOR SELECT generate_series(1, 20)"
        self.wire.send(query_message(sql))
        self.client.call("parse", sql, outcome=FINE)
        self.client.call("utility", sql, outcome=FINE)
        self.client.call("execute", sql, 1)
        self.client.read(b"C")
        self.client.ready()

    def in_failed_transaction(self) -> None:
        self.client.block("BEGIN")
        self.client.simple(Statement("SELECT 1 / 0 AS folded", fails="plan"))

    def fetching(self) -> None:
        """Within a fetch from a cursor."""
        self.client.block("BEGIN")
        sql = "DECLARE c CURSOR FOR SELECT pg_sleep(20 * (g - 1)) FROM generate_series(1, 2) g"
        for text, rows in ((sql, None), ("FETCH c", 1), ("FETCH c", None)):
            self.wire.send(query_message(text))
            self.client.call("parse", text, outcome=FINE)
            last = text != sql and rows is None
            self.client.call("utility", text, outcome=UNDER_WAY if last else FINE, rows=rows)
            if text == sql:
                self.client.call("execute", sql, 1, rows=1)
            elif last:
                self.client.call("fetch", sql, 1)
            else:
                self.client.call("fetch", sql, 1, outcome=FINE, rows=1)
            if not last:
                self.client.read(b"C")
                self.client.ready()

    def _flushed(self, sent: bytes) -> None:
        self.wire.send(sent, message(b"H"))

    def _slept(self, sql: str) -> None:
        self.wire.send(query_message(sql))
        self.client.call("parse", sql, outcome=FINE)
        self.client.call("execute", sql)

    def _ran(self, sql: str) -> None:
        """The first part of a simple request, of one row."""
        self.client.call("parse", sql, outcome=FINE)
        self.client.call("execute", sql, rows=1, outcome=FINE)

    def _sleeping(self, sql: str) -> None:
        self._flushed(_parse(sql) + _bind("", "", ()) + _execute("", 0))
        self.client.call("parse", sql, outcome=FINE)
        self.client.drop("")
        self.client.call("execute", sql)
        self.client.call("bind", sql, outcome=FINE)


#: Where the server runs, and sleeps.
SLEEPS = (
    *("second", "running", "next_running", "planning", "nested", "caught", "committing"),
    "fetching",
)
#: Where it waits for the client.
WAITS = (
    *("idle", "parsed", "bound", "executed", "fetched", "copying", "in_transaction"),
    "in_failed_transaction",
)


def _parse(sql: str) -> bytes:
    return message(b"P", b"\0" + sql.encode() + b"\0" + struct.pack("!h", 0))


def _execute(portal: str, limit: int) -> bytes:
    return message(b"E", portal.encode() + b"\0" + struct.pack("!i", limit))


def _bind(portal: str, name: str, values: Sequence[object]) -> bytes:
    body = portal.encode() + b"\0" + name.encode() + b"\0" + struct.pack("!hh", 0, len(values))
    for value in values:
        if value is None:
            body += struct.pack("!i", -1)
        else:
            text = str(value).encode()
            body += struct.pack("!i", len(text)) + text
    return message(b"B", body + struct.pack("!h", 0))
