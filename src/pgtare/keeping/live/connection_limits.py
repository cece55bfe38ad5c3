"""Bounds what clients that have not logged in can take: connections, and time.

A new connection is never refused for those that are idle. It pushes out the oldest one of the
address that has most, so a browser that sends its request at once is served whatever others hold.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import time
from collections import Counter
from typing import Any

from pgtare.kit import files

#: Connections that have not logged in: in all, and of one address.
MOST_STRANGERS, MOST_OF_ADDRESS = 256, 64
#: Within so many s a connection has to send the head of a request that may see the page.
HEAD_S = 10.0
#: An open connection between two requests is kept so long, s.
KEEP_ALIVE_S = 60
#: Connections that the kernel keeps until they are accepted, and the most accepted at a time.
BACKLOG = 128
#: A peer that has vanished is noticed after this time without traffic, s.
_VANISHED_S = 60
#: The log gets at most one line in this time, in s: others may open connections without end.
_WARNED_S = 60.0

_log = logging.getLogger(__name__)


class LimitedListener(socket.socket):
    """A listening socket whose connections are bounded; of one thread, that of its event loop."""

    def __init__(self, family: socket.AddressFamily) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._open: dict[tuple[str, int], _Connection] = {}
        self._strangers: dict[tuple[str, int], _Connection] = {}
        # the other half is for files, and for what the page's workers need
        self._most = files.raise_descriptor_limit() // 2
        self._warned = -_WARNED_S

    def accept(self) -> tuple[socket.socket, Any]:
        """As usual. Raises ConnectionAbortedError, which event loops expect, if too many are open.

        One that has not logged in makes way for a new one.
        """
        accepted, address = super().accept()
        if len(self._open) >= self._most:
            accepted.close()
            self._warn(f"refused a connection: {len(self._open)} are open")
            raise ConnectionAbortedError
        connection = _Connection(self, accepted, address[:2])
        self._open[connection.client] = self._strangers[connection.client] = connection
        of_address = Counter(each.group for each in self._strangers.values())
        if of_address[connection.group] > MOST_OF_ADDRESS:
            self._push_out(connection.group)
        elif len(self._strangers) > MOST_STRANGERS:
            self._push_out(of_address.most_common(1)[0][0])
        return connection, address

    def _push_out(self, group: str) -> None:
        oldest = next(each for each in self._strangers.values() if each.group == group)
        self._warn(f"closed a connection of {group}: too many have not logged in")
        self._end(oldest)

    def _warn(self, words: str) -> None:
        now = time.monotonic()
        if now - self._warned >= _WARNED_S:
            self._warned = now
            _log.warning(words)

    def _end(self, connection: _Connection) -> None:
        self.let_in(connection.client)  # it counts no longer
        with contextlib.suppress(OSError):  # its client was faster
            connection.shutdown(socket.SHUT_RDWR)  # whoever reads it closes it

    def let_in(self, client: tuple[str, int]) -> None:
        """This client may see the page, so it is not counted among strangers any more."""
        self._strangers.pop(client, None)

    def forget(self, connection: _Connection) -> None:
        """It was closed."""
        if self._open.get(connection.client) is connection:
            self.let_in(connection.client)
            del self._open[connection.client]

    async def end_late(self) -> None:
        """End connections that have not logged in in time."""
        latest = time.monotonic() - HEAD_S
        for connection in [each for each in self._strangers.values() if each.began < latest]:
            self._end(connection)


class _Connection(socket.socket):
    """An accepted connection. client: address and port. group: whom it counts for."""

    def __init__(
        self, listener: LimitedListener, accepted: socket.socket, client: tuple[str, int]
    ) -> None:
        family, kind, proto = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, proto, fileno=accepted.detach())
        self.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _VANISHED_S)
        self._listener, self.client, self.began = listener, client, time.monotonic()
        self.group = _group(client[0])

    def close(self) -> None:
        self._listener.forget(self)
        super().close()


def _group(host: str) -> str:
    """An address, or of IPv6 its network of 64 bits: one machine may have all of that."""
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))
