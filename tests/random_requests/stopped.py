"""Points within a request, up to which a client goes: the session ends there, or is cancelled."""

from __future__ import annotations

from dataclasses import replace

from tests.random_requests.client import RandomClient, bind, execute, parse
from tests.random_requests.model import FAILED, FINE, UNDER_WAY, Call, Portal, Statement
from tests.random_requests.statements import BROKEN, DEFERRED, INNER, SLEEPING
from tests.wire_protocol import message, query_message


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
        self._flushed(parse("SELECT 'parsed'"))
        self.client.call("parse", "SELECT 'parsed'", outcome=FINE)
        self.client.read(b"1")

    def bound(self) -> None:
        self.parsed()
        self._flushed(bind("", "", ()))
        self.client.call("execute", "SELECT 'parsed'")
        self.client.call("bind", "SELECT 'parsed'", outcome=FINE)
        self.client.read(b"2")

    def executed(self) -> None:
        self.bound()
        self._flushed(execute("", 0))
        self.client.read(b"C")

    def fetched(self) -> None:
        """All is fetched but the end, by more than one message."""
        self.bound()
        for _ in range(2):
            self._flushed(execute("", 1))
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
        self._flushed(parse(sql) + bind("", "", ()) + execute("", 0))
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
