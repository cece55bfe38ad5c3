"""Serves metrics by HTTP, to few clients at a time: a slow one makes way for the next.

Any account of this machine can connect. If each connection had a thread and a file for as long as
its client likes, the agent could no longer open files, and would have to hold its rows in memory.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

#: Connections at a time. A scrape takes some ms; if there are more, the oldest one is cut.
MOST_CLIENTS = 32
#: A client that sends or takes nothing for this long is given up, s.
_SILENT_S = 30.0


class _Handler(WSGIRequestHandler):
    """One connection; its requests are not logged."""

    timeout = _SILENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def handle(self) -> None:
        """Answer a request, unless the connection is cut meanwhile."""
        with contextlib.suppress(OSError):
            super().handle()


class _Server(ThreadingWSGIServer):
    """A thread for each connection, and no more of them than there may be."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        super().__init__(*args, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a connection; cut the oldest one if there are too many."""
        with self._lock:
            if len(self._open) >= MOST_CLIENTS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads an end, and closes it
            self._open[request] = None
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        """Close a connection that has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().close_request(request)


def serve(host: str, port: int, registry: CollectorRegistry) -> WSGIServer:
    """Serve from now on, by threads that end with the process. Raises OSError."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

    class OfFamily(_Server):
        address_family = family

    server: WSGIServer = make_server(
        str(place[0]), port, make_wsgi_app(registry), OfFamily, _Handler
    )
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
