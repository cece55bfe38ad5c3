"""The page's routes behind the access control, and the server that runs them."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pgtare.errors import MeasurementError, UsageError
from pgtare.keeping.live import connection_limits, view_routes
from pgtare.keeping.live.access import AccessControl, AccessRules, LetIn, ListenAddress
from pgtare.keeping.live.connection_limits import LimitedListener
from pgtare.keeping.live.page_shell import PageShell
from pgtare.keeping.live.view_routes import ViewRoutes
from pgtare.keeping.live.worker_process import TIME_LIMIT_S
from pgtare.keeping.store.address import StoreAddress

_STARTED_S = 60.0
_STOPPED_S = 5.0


def bound(address: ListenAddress) -> LimitedListener:
    """A socket for the page there. Raises UsageError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    found = LimitedListener(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address.host, address.port))
    except OSError as ex:
        found.close()
        why = ex.strerror or str(ex)
        raise UsageError(
            f"--listen {address.host}:{address.port}: {why}; choose another port, as in --listen "
            f"{address.host}:{address.port + 1}"
        ) from ex
    return found


def _application(
    source: Path | StoreAddress, rules: AccessRules, limit_s: float, let_in: LetIn
) -> ASGIApp:
    shell = PageShell(dict(view_routes.MENU))
    first = next(iter(view_routes.MENU))
    views = ViewRoutes(source, shell, limit_s)

    async def to_first(request: Request) -> Response:
        return RedirectResponse(first, 303)

    async def nowhere(request: Request, error: Exception) -> Response:
        return shell.failure("There is no such page.", 404)

    routes = [Route("/", to_first), Route("/static/{name}", shell.static), *views.routes()]
    served = Starlette(
        routes=routes, exception_handlers={404: nowhere}, lifespan=lambda app: views.running()
    )
    return AccessControl(served, rules, let_in)


class PageServer:
    """The page, served by a thread of its own; a context manager. Raises UsageError.

    source: the spool or store that it shows. certificate: files of a certificate and its key, for
    TLS. limit_s: of one query.
    """

    def __init__(
        self,
        source: Path | StoreAddress,
        rules: AccessRules,
        listening: LimitedListener,
        certificate: tuple[Path, Path] | None = None,
        limit_s: float = TIME_LIMIT_S,
    ) -> None:
        app = _application(source, rules, limit_s, listening.let_in)
        config = uvicorn.Config(
            app,
            log_level="error",  # a client chooses how many warnings there are
            access_log=False,  # addresses hold tokens
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            loop="asyncio",  # which accepts by the socket's own method
            backlog=connection_limits.BACKLOG,
            timeout_keep_alive=connection_limits.KEEP_ALIVE_S,
            timeout_notify=1,
            callback_notify=self._each_second,
            timeout_graceful_shutdown=1,
        )
        if certificate is not None:
            config.ssl_certfile, config.ssl_keyfile = certificate[0], str(certificate[1])
        self._certificate, self._loaded = certificate, _versions(certificate or ())
        self._server = uvicorn.Server(config)
        self._listening = listening
        self._thread = threading.Thread(target=self._serve, name="page", daemon=True)

    def _serve(self) -> None:
        self._server.run([self._listening])

    async def _each_second(self) -> None:
        await self._listening.end_late()
        with contextlib.suppress(OSError, UsageError):  # tried again: its key may not be there yet
            self._take_renewed()

    def _take_renewed(self) -> None:
        """From now on, show new connections a certificate that was renewed."""
        found, first = _versions(self._certificate or ()), self._server.config.ssl
        if self._certificate is None or first is None or found == self._loaded:
            return
        renewed = tls_context(*self._certificate)

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = renewed

        first.sni_callback = choose
        self._loaded = found

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + _STARTED_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise MeasurementError("the page's server could not start")
            time.sleep(0.02)
        return self

    @property
    def alive(self) -> bool:
        """Whether it still serves."""
        return self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_STOPPED_S)
        self._listening.close()


def _versions(files: Iterable[Path]) -> list[tuple[int, int]]:
    """Something that changes when files are written or replaced. Raises OSError."""
    return [(state.st_ino, state.st_mtime_ns) for state in map(os.stat, files)]


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What serves by a certificate. Raises UsageError if these files are none with its key."""
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        return context
    except (OSError, ssl.SSLError) as ex:
        why = ex.strerror or str(ex)
        raise UsageError(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used: {why}"
        ) from ex
