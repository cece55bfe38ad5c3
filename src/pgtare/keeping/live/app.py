"""The application of `pgtare live`: its routes behind the access control."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pgtare.keeping.live import page_routes, view_routes
from pgtare.keeping.live.access import AccessControl, AccessRules, LetIn
from pgtare.keeping.live.page_routes import PageRoutes
from pgtare.keeping.live.page_shell import PageShell
from pgtare.keeping.live.view_routes import ViewRoutes
from pgtare.keeping.store.address import StoreAddress


def application(
    source: Path | StoreAddress | None,
    pages: Path | None,
    rules: AccessRules,
    limit_s: float,
    let_in: LetIn,
) -> ASGIApp:
    """Views of a spool or store, a directory with pages that other commands wrote, or both.

    limit_s: the longest time that a query may take. let_in: called with each client that may see
    the page. Raises UsageError.
    """
    menu = {} if source is None else dict(view_routes.MENU)
    if pages is not None:
        menu |= page_routes.MENU
    shell = PageShell(menu)
    first = next(iter(menu))
    views = None if source is None else ViewRoutes(source, shell, limit_s)

    async def to_first(request: Request) -> Response:
        return RedirectResponse(first, 303)

    async def nowhere(request: Request, error: Exception) -> Response:
        return shell.failure("There is no such page.", 404)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with views.running() if views is not None else contextlib.nullcontext():
            yield

    routes = [Route("/", to_first), Route("/static/{name}", shell.static)]
    if pages is not None:
        routes += PageRoutes(pages, shell).routes()
    if views is not None:
        routes += views.routes()
    served = Starlette(routes=routes, exception_handlers={404: nowhere}, lifespan=lifespan)
    return AccessControl(served, rules, let_in)
