"""A connection whose server takes no more than a bounded part of the agent's time and memory.

libpq reads a message of 1 GB as fast as it comes, and cannot be stopped meanwhile. So it gets one
end of a pair of sockets instead of the server's socket, and each byte of the server passes here
first, in small pieces: by TCP or a Unix socket, encrypted or not, from the login on.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import time
from typing import Any, TypeVar

import psycopg
from psycopg import generators
from psycopg.abc import PQGen, PQGenConn
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

from pgtare.kit import numbers
from pgtare.postgres import pooler

#: The most bytes and rows of an answer, and how long one may take, in s; a login is one answer.
MOST_BYTES, MOST_ROWS, ANSWER_S = 8 << 20, 100_000, 10.0
#: How many bytes libpq gets at a time.
_PIECE = 1 << 13
#: A result is a message of 6 bytes, and more than 1 KiB in memory. So many pieces may end results:
#: that of a query of ours, or of several that are sent at once.
_MOST_ENDS = 24
#: What SCRAM lets a server ask for in one call of libpq, which nothing interrupts: a million rounds
#: take a second, and PostgreSQL asks for 4096.
_ITERATIONS = re.compile(rb",s=[A-Za-z0-9+/=]+,i=(\d{7,})")
_GONE = select.POLLHUP | select.POLLERR
_T = TypeVar("_T")


class AnswerBeyondBounds(psycopg.OperationalError):
    """An answer was too long, or took too long; the session has been ended."""


class BoundedConnection(pooler.Connection):
    """A session of the agent. most_bytes: of one answer."""

    #: A name may lead to another host than it did when the last session began.
    alone = True
    most_bytes: int = MOST_BYTES
    _relay: _Relay

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.cursor_factory = _BoundedCursor
        self.add_notify_handler(lambda _: None)  # psycopg would keep them

    @classmethod
    def _connect_gen(cls, conninfo: str = "", **_: Any) -> PQGenConn[Any]:
        relay = _Relay()
        try:
            conn = cls(relay.drive(generators.connect(conninfo), MOST_BYTES))
        except BaseException:
            relay.close()
            raise
        conn._relay = relay
        return conn
        yield  # nothing: psycopg wants a generator

    def wait(self, gen: PQGen[_T], *_: Any, **__: Any) -> _T:
        """Send and receive until this is done. Raises AnswerBeyondBounds."""
        try:
            found: _T = self._relay.drive(gen, self.most_bytes, self.pgconn)
            return found
        except (AnswerBeyondBounds, KeyboardInterrupt):
            self.end()
            raise

    def readable(self, seconds: float) -> bool:
        """Whether there is something to read within that time."""
        return self._relay.ready(self.pgconn.socket, Wait.R, time.monotonic() + seconds) != 0

    def end(self) -> None:
        """Close it without another word to the server."""
        self._relay.close()
        self.close()

    def close(self) -> None:
        """As usual."""
        super().close()
        self._relay.close()


class _BoundedCursor(psycopg.Cursor[Any]):
    def fetchall(self) -> list[Any]:
        if self.rowcount > MOST_ROWS:
            self.connection.close()
            raise AnswerBeyondBounds(f"an answer has more than {MOST_ROWS} rows")
        return super().fetchall()


class _Relay:
    """Stands between libpq and the server's socket, and counts what that sends."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._ours: socket.socket | None = None
        """the other end of the pair whose first end libpq has"""
        self._pair = 0
        """the inode of that first end"""
        self._ended = self._login = False
        self._unsent = b""
        self._most = self._received = self._ends = 0

    def drive(self, gen: Any, most: int, connected: PGconn | None = None) -> Any:
        """Run one of psycopg's generators to its end. connected: None for a login.

        Raises AnswerBeyondBounds, and ConnectionTimeout if a server does not answer at all.
        """
        self._most, self._received, self._ends = most, 0, 0
        self._login = connected is None
        deadline = time.monotonic() + ANSWER_S
        try:
            wanted = next(gen)
            while True:
                fd, wait = wanted if connected is None else (connected.socket, wanted)
                ready = self.ready(fd, wait, deadline)
                if not ready and connected is None and not self._received:
                    raise psycopg.errors.ConnectionTimeout("connection timeout expired")
                if not ready:
                    raise AnswerBeyondBounds(f"an answer took longer than {ANSWER_S:g} s")
                if connected is not None and ready & Ready.R and not self._ended:
                    self._count_end(connected)
                wanted = gen.send(ready)
        except StopIteration as ex:
            return ex.value

    def _count_end(self, connected: PGconn) -> None:
        connected.consume_input()
        self._ends += not connected.is_busy()
        if self._ends > _MOST_ENDS:
            raise AnswerBeyondBounds("an answer has too many results")

    def ready(self, fd: int, wait: Wait, deadline: float) -> int:
        """For what of this libpq's socket is ready; 0: for nothing until the deadline."""
        if not self._stands_before(fd, wait):
            return _polled(fd, wait, deadline)
        while (now := time.monotonic()) < deadline:
            self._send_on()
            if found := _polled(fd, wait, now):
                return found
            assert self._server is not None
            # libpq has read all that it was given
            both = Wait.RW if self._unsent else Wait.R
            if _polled(self._server.fileno(), both, deadline) & Ready.R:
                self._hand_on()
        return 0

    def _stands_before(self, fd: int, wait: Wait) -> bool:
        """Take the place of a new socket once it is connected, and libpq waits for an answer."""
        if self._ours is not None and os.fstat(fd).st_ino == self._pair:
            return True
        self.close()
        if wait != Wait.R:
            return False
        theirs, self._ours = socket.socketpair()
        self._server = socket.socket(fileno=os.dup(fd))
        for each in (theirs, self._ours, self._server):
            each.setblocking(False)
        os.dup2(theirs.fileno(), fd, inheritable=False)
        theirs.close()
        self._pair, self._ended, self._unsent = os.fstat(fd).st_ino, False, b""
        return True

    def _send_on(self) -> None:
        """Send what libpq has written. If that fails, reading shows why."""
        assert self._server is not None
        assert self._ours is not None
        with contextlib.suppress(OSError):
            while self._unsent or (piece := self._ours.recv(_PIECE)):
                self._unsent = self._unsent or piece
                self._unsent = self._unsent[self._server.send(self._unsent) :]

    def _hand_on(self) -> None:
        """Give libpq the next piece, or the end."""
        assert self._server is not None
        assert self._ours is not None
        try:
            piece = self._server.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._ended = True
            self._ours.shutdown(socket.SHUT_WR)
            return
        if self._login and (asked := _ITERATIONS.search(piece)):
            raise AnswerBeyondBounds(f"the login asks for {asked[1].decode()} rounds of hashing")
        self._received += len(piece)
        if self._received > self._most:
            raise AnswerBeyondBounds(f"an answer is longer than {numbers.volume(self._most)}")
        self._ours.sendall(piece)

    def close(self) -> None:
        """Close both ends; what libpq wrote last is sent."""
        if self._server is not None and self._ours is not None:
            self._send_on()
            self._server.close()
            self._ours.close()
        self._server = self._ours = None


def _polled(fd: int, wait: Wait, deadline: float) -> int:
    """For what of this a socket is ready; 0: for nothing until the deadline."""
    poll = select.poll()
    reads, writes = bool(wait & Wait.R), bool(wait & Wait.W)
    poll.register(fd, select.POLLIN * reads | select.POLLOUT * writes)
    found = poll.poll(max(0.0, 1000 * (deadline - time.monotonic())))
    event = found[0][1] if found else 0
    ready = Ready.R if reads and event & (select.POLLIN | _GONE) else 0
    return ready | (Ready.W if writes and event & (select.POLLOUT | _GONE) else 0)
