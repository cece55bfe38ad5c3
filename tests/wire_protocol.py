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


#: A parameterless statement of the extended protocol, in two halves.
PARSE_SELECT = message(b"P", b"\0SELECT 1\0" + struct.pack("!h", 0))
BIND_EXECUTE_SYNC = (
    message(b"B", b"\0\0" + struct.pack("!hhh", 0, 0, 0))
    + message(b"E", b"\0" + struct.pack("!i", 0))
    + message(b"S")
)


class Wire:
    """A session's socket, past libpq: what is sent at once arrives in one piece."""

    def __init__(self, connection: Connection) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._socket.setblocking(True)
        self._socket.settimeout(PATIENCE_SECONDS)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *messages: bytes) -> None:
        """Send all in one system call."""
        self._socket.sendall(b"".join(messages))

    def read_until_ready(self, times: int = 1) -> list[bytes]:
        """The kinds of all messages until ReadyForQuery has come as often as given."""
        kinds: list[bytes] = []
        data, at = b"", 0
        while times:
            while len(data) - at < 5 or len(data) - at <= int.from_bytes(data[at + 1 : at + 5]):
                piece = self._socket.recv(1 << 16)
                if not piece:
                    raise ConnectionError("the server closed the connection")
                data, at = data[at:] + piece, 0
            kinds.append(data[at : at + 1])
            times -= kinds[-1] == b"Z"
            at += 1 + int.from_bytes(data[at + 1 : at + 5])
        assert at == len(data)
        return kinds
