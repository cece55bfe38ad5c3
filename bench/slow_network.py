"""A stand-in for a network: passes on what client and server send, each piece late by chance.

It looks for pieces at intervals: to wait for them would have each send wake a process on the
server's own processors, which a network does not do.
"""

from __future__ import annotations

import random
import select
import signal
import socket
import threading
import time
from collections import deque

#: How often it looks for what was sent, in s.
_LOOKS_S = 0.0002
#: How long nothing was passed on until it waits for the next piece.
_RESTS_S = 0.05


class _Way:
    """What goes from one end to the other: pieces in order, each with the time when it arrives."""

    def __init__(self, source: socket.socket, to: socket.socket, late_s: tuple[float, float]):
        self._source, self._to, self._late_s = source, to, late_s
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._latest = 0.0
        self._ends = False

    def look(self, now: float) -> bool:
        """Take what was sent, and deliver what is due; whether there is anything under way."""
        try:
            while not self._ends:
                piece = self._source.recv(1 << 16, socket.MSG_DONTWAIT)
                self._ends = not piece
                self._latest = max(self._latest, now + random.uniform(*self._late_s))
                self._pieces.append((self._latest, piece))
        except BlockingIOError:
            pass
        while self._pieces and self._pieces[0][0] <= now:
            _, piece = self._pieces.popleft()
            if not piece:
                raise ConnectionError
            self._to.sendall(piece)
        return bool(self._pieces)


def _pass_on(client: socket.socket, server: socket.socket, late_ms: tuple[float, float]) -> None:
    late_s = (late_ms[0] / 1000, late_ms[1] / 1000)
    ways = (_Way(client, server, late_s), _Way(server, client, late_s))
    busy_s = time.monotonic()
    with client, server:
        try:
            while True:
                now = time.monotonic()
                if any([way.look(now) for way in ways]):
                    busy_s = now
                if now - busy_s > _RESTS_S:
                    select.select((client, server), (), ())
                    busy_s = time.monotonic()
                else:
                    time.sleep(_LOOKS_S)
        except OSError:
            return


def run(port: int, to_port: int, late_ms: tuple[float, float]) -> None:
    """Serve until the process is ended. late_ms: shortest and longest delay each way."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what the command's own process does
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", to_port))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(client, server, late_ms), daemon=True).start()
