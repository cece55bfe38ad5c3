"""A stand-in for a PostgreSQL server that answers an agent well, and then without end.

It speaks just enough of the protocol for a session of the agent: the login, and canned answers to
what is asked before the first look at sessions. It reads no SQL, so tests that use it say something
about our side of the wire only.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

_BOOL, _INT4, _INT8, _TEXT = 16, 23, 20, 25
_SERVER = (
    *((_TEXT, "18.0"), (_BOOL, "f"), (_TEXT, "shop"), (_TEXT, "watcher"), (_BOOL, "t")),
    *((_TEXT, "watcher"), (_BOOL, "f"), (_BOOL, "f")),
)
#: The one row that answers a query with this in its text; without a value: no row.
_ANSWERS: dict[bytes, tuple[tuple[int, str | None], ...]] = {
    b"pg_try_advisory_lock": ((_BOOL, "t"),),
    b"pg_advisory_unlock": ((_BOOL, "t"),),
    b"FROM pg_locks": ((_INT4, None), (_TEXT, None), (_BOOL, None)),
    b"backend_start": ((_INT4, "1"), (_TEXT, "then")),
    b"server_version": _SERVER,
    b"FROM pg_proc": ((_TEXT, None),) * 8,
    b"pg_postmaster_start_time": ((_INT8, "1000000"), (_INT8, "2000000")),
    b"SELECT pg_catalog.pg_backend_pid()": ((_INT4, "1"),),
}
_LOOK = b"pg_blocking_pids"
_MANY = 10_000


def message(kind: bytes, body: bytes = b"") -> bytes:
    """A message of the protocol."""
    return kind + struct.pack("!i", len(body) + 4) + body


def _row(*values: bytes) -> bytes:
    fields = b"".join(struct.pack("!i", len(value)) + value for value in values)
    return message(b"D", struct.pack("!h", len(values)) + fields)


def _columns(*types: int) -> bytes:
    each = (b"c\0" + struct.pack("!ihihih", 0, 0, oid, -1, -1, 0) for oid in types)
    return message(b"T", struct.pack("!h", len(types)) + b"".join(each))


def _large_row() -> Iterator[bytes]:
    yield _columns(_TEXT) + b"D" + struct.pack("!ihi", (1 << 30) + 10, 1, 1 << 30)
    yield from itertools.repeat(b"x" * (1 << 20))


def _rows() -> Iterator[bytes]:
    yield _columns(_TEXT)
    yield from itertools.repeat(_row(b"x") * _MANY)


def _parameters() -> Iterator[bytes]:
    for first in itertools.count(0, _MANY):
        names = range(first, first + _MANY)
        yield b"".join(message(b"S", f"n{name}\0v\0".encode()) for name in names)


def _trickle() -> Iterator[bytes]:
    for byte in message(b"N", b"M" + b"x" * 1000 + b"\0\0"):
        yield bytes([byte])
        time.sleep(1)


def _repeated(one: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.repeat(one * _MANY)


#: Answers without end.
FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "large row": _large_row,
    "rows": _rows,
    "results": _repeated(message(b"C", b"\0")),
    "notices": _repeated(message(b"N", b"SNOTICE\0C00000\0Mx\0\0")),
    "notifications": _repeated(message(b"A", struct.pack("!i", 1) + b"c\0x\0")),
    "parameters": _parameters,
    "trickle": _trickle,
}


class HostileServer:
    """The stand-in, for `with`. flood: of FLOODS. login: it floods before the login is over.

    directory: it listens on a Unix socket there; None: on a port of 127.0.0.1.
    """

    def __init__(self, flood: str, *, login: bool = False, directory: Path | None = None) -> None:
        self._flood, self._login = FLOODS[flood], login
        if directory is None:
            self._listening = socket.create_server(("127.0.0.1", 0))
            port = self._listening.getsockname()[1]
            self.dsn = f"host=127.0.0.1 port={port} user=watcher dbname=shop"
        else:
            self._listening = socket.socket(socket.AF_UNIX)
            self._listening.bind(str(directory / ".s.PGSQL.5432"))
            self._listening.listen()
            self.dsn = f"host={directory} port=5432 user=watcher dbname=shop"
        self.floods = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as received, contextlib.suppress(OSError, struct.error):
            while True:  # encryption is refused; what follows is the login
                size, code = struct.unpack("!ii", received.read(8))
                received.read(size - 8)
                if code >> 16 == 3:
                    break
                client.sendall(b"N")
            client.sendall(message(b"R", struct.pack("!i", 0)))
            if self._login:
                self._send_without_end(client)
            told = {"client_encoding": "UTF8", "server_version": "18.0", "is_superuser": "off"}
            for name, value in told.items():
                client.sendall(message(b"S", f"{name}\0{value}\0".encode()))
            client.sendall(message(b"K", struct.pack("!ii", 1, 1)) + message(b"Z", b"I"))
            text = b""
            while True:
                kind, size = struct.unpack("!ci", received.read(5))
                body = received.read(size - 4)
                text = body if kind in b"PQ" else text
                if kind == b"S" and _LOOK in text:
                    client.sendall(message(b"1") + message(b"2"))
                    self._send_without_end(client)
                if kind in b"QS":
                    client.sendall(_answer(text, parsed=kind == b"S") + message(b"Z", b"I"))

    def _send_without_end(self, client: socket.socket) -> None:
        self.floods += 1
        for piece in self._flood():
            client.sendall(piece)


def _answer(text: bytes, *, parsed: bool) -> bytes:
    begun = message(b"1") + message(b"2") if parsed else b""
    done = message(b"C", b"OK\0")
    for part, values in _ANSWERS.items():
        if part in text:
            found = [value.encode() for _, value in values if value is not None]
            rows = _columns(*(oid for oid, _ in values)) + (_row(*found) if found else b"")
            several = b"" if parsed or not text.startswith(b"BEGIN") else done
            return begun + several + rows + done
    return begun + done
