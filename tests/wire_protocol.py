"""Messages of PostgreSQL's protocol, and a session's socket to send them past libpq."""

from __future__ import annotations

import os
import socket
import struct

from tests.sessions import Connection

PATIENCE_SECONDS = 10.0


def message(kind: bytes, body: bytes = b"") -> bytes:
    """A message of PostgreSQL's protocol, version 3."""
    return kind + struct.pack("!i", len(body) + 4) + body


def query_message(sql: str) -> bytes:
    """A simple query."""
    return message(b"Q", sql.encode() + b"\0")


def call_message(function: int, *values: bytes) -> bytes:
    """A call of a function by its OID, with values as text and a result as text."""
    given = b"".join(struct.pack("!i", len(value)) + value for value in values)
    body = struct.pack("!ihh", function, 0, len(values)) + given + struct.pack("!h", 0)
    return message(b"F", body)


#: A parameterless statement of the extended protocol, in two halves.
PARSE_SELECT = message(b"P", b"\0SELECT 1\0" + struct.pack("!h", 0))
BIND_EXECUTE_SYNC = (
    message(b"B", b"\0\0" + struct.pack("!hhh", 0, 0, 0))
    + message(b"E", b"\0" + struct.pack("!i", 0))
    + message(b"S")
)


class Wire:
    """A session's socket, past libpq: what is sent at once arrives in one piece."""

    def __init__(self, connection: Connection, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._socket.setblocking(True)
        self._socket.settimeout(patience_seconds)
        self._data = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *messages: bytes) -> None:
        """Send all in one system call."""
        self._socket.sendall(b"".join(messages))

    def close(self) -> None:
        """Free the descriptor; the session goes on."""
        self._socket.close()

    def close_abruptly(self) -> None:
        """Break the connection off, without the message that ends a session."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def read_message(self) -> tuple[bytes, bytes]:
        """The kind and the body of the next message."""
        while True:
            data = self._data
            if len(data) >= 5 and len(data) > (end := int.from_bytes(data[1:5])):
                self._data = data[end + 1 :]
                return data[:1], data[5 : end + 1]
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the server closed the connection")
            self._data += piece

    def read_until_ready(self, times: int = 1) -> list[bytes]:
        """The kinds of all messages until ReadyForQuery has come as often as given."""
        kinds: list[bytes] = []
        while times:
            kinds.append(self.read_message()[0])
            times -= kinds[-1] == b"Z"
        assert not self._data
        return kinds
