"""Who may see the page: one-time tokens and cookies, or users that a proxy names.

Every answer forbids what a page of ours does not need: other sites, frames, scripts in the page.
"""

from __future__ import annotations

import functools
import hmac
import secrets
import socket
import stat
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgtare.errors import UsageError
from pgtare.kit import option_values

DEFAULT_PORT = 8765
HOW_BEYOND = (
    "give --tls-cert and --tls-key, or let a proxy name the users (--behind-proxy proxy.toml); "
    "or listen on 127.0.0.1 and go there by ssh -L"
)
#: Takes the address and port of a client that may see the page.
LetIn = Callable[[tuple[str, int]], None]
_COOKIE = "pgtare_live"
_MOST_SESSIONS = 1000
_PROXY_SECRET = "x-pgtare-secret"  # noqa: S105
#: Browsers do not send the cookie if a link of another site leads here, as in a mail. They do if
#: the page then loads itself, which is no link of another site: so it happens once.
_AGAIN = '<!DOCTYPE html><title>pgtare live</title><meta http-equiv="refresh" content="0">'
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class ProxyRules(BaseModel):
    """What the file of `--behind-proxy` says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: str = Field(min_length=16)
    users: list[str] = Field(min_length=1)
    host: str = Field(min_length=1)
    user_header: str = "X-Forwarded-User"


@dataclass(frozen=True)
class ListenAddress:
    """Where the page is served."""

    host: str
    port: int
    tls: bool = False

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return option_values.is_loopback(self.host)

    def url(self, name: str | None = None) -> str:
        """The address for a browser."""
        host = name or self.host
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls else 'http'}://{shown}:{self.port}"


def listen_address(text: str, tls: bool) -> ListenAddress:
    """HOST:PORT, or a port of 127.0.0.1. Raises UsageError."""
    return ListenAddress(*option_values.address("--listen", text, DEFAULT_PORT), tls)


def proxy_rules(path: Path) -> ProxyRules:
    """The file of `--behind-proxy`. Raises UsageError; values are secrets and are not shown."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UsageError(f"{path} holds a secret: chmod 600 {path}")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as ex:
        raise UsageError(f"{path} is not TOML") from ex
    try:
        return ProxyRules.model_validate(document)
    except ValidationError as ex:
        error = ex.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in error["loc"])
        raise UsageError(
            f"{path}: {place}: {error['msg'].lower()}; docs/live.md has an example"
        ) from ex


def check_reach(address: ListenAddress, proxy: ProxyRules | None) -> None:
    """Raise UsageError if others could read what is sent, or log in."""
    if not (address.loopback or address.tls or proxy):
        raise UsageError(
            f"{address.host} can be reached from other machines, which would see statements and "
            f"passwords on their way: {HOW_BEYOND}"
        )


@dataclass
class AccessRules:
    """Tokens that were printed and not used yet, sessions of browsers, and hosts by name.

    said: called with the new address after one was used.
    """

    address: ListenAddress
    proxy: ProxyRules | None = None
    name: str | None = None
    said: Callable[[str], None] = lambda _: None
    _token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _sessions: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> set[str]:
        """What a browser may call this page, as in its Host header."""
        if self.proxy is not None:
            return {self.proxy.host.lower()}
        names = {self.name or self.address.host}
        if self.address.loopback:
            names |= {"localhost", "127.0.0.1", "[::1]"}
        elif self.name is None:
            names.add(_own_name())
        found = set()
        for name in names:
            shown = f"[{name}]" if ":" in name and not name.startswith("[") else name
            found.add(f"{shown}:{self.address.port}".lower())
            if self.address.port == (443 if self.address.tls else 80):
                found.add(shown.lower())
        return found

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers do not tell ports apart."""
        return f"{_COOKIE}_{self.address.port}"

    def login_address(self) -> str:
        """The address that lets one browser in, once."""
        if self.proxy is not None:
            return f"https://{self.proxy.host}/"
        name = self.name
        if name is None and self.address.host in ("0.0.0.0", "::"):  # noqa: S104
            name = _own_name()
        return f"{self.address.url(name)}/?token={self._token}"

    def use(self, token: str) -> str | None:
        """A new session for the token, which is used up; None if it is not the one."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        self._token = secrets.token_urlsafe(24)
        session = secrets.token_urlsafe(32)
        self._sessions = [*self._sessions, session][-_MOST_SESSIONS:]
        self.said(self.login_address())
        return session

    def knows(self, session: str) -> bool:
        """Whether a session was begun here."""
        given = session.encode()
        return any(hmac.compare_digest(given, one.encode()) for one in self._sessions)

    def user(self, headers: Headers) -> bool:
        """Whether the proxy names a user who may see the page."""
        assert self.proxy is not None
        given = headers.get(_PROXY_SECRET, "").encode("latin-1")  # as it came: in UTF-8
        named = [one.encode("latin-1") for one in headers.getlist(self.proxy.user_header)]
        return (
            hmac.compare_digest(given, self.proxy.secret.encode())
            and len(named) == 1
            and named[0] in [one.encode() for one in self.proxy.users]
        )


class AccessControl:
    """Lets requests through that may see the page; ASGI middleware."""

    def __init__(self, app: ASGIApp, rules: AccessRules, let_in: LetIn) -> None:
        self._app, self._rules, self._let_in = app, rules, let_in
        self._hosts = rules.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("the page has nothing but HTTP")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        if scope["client"] and (refusal is None or refusal.status_code < 400):
            self._let_in(tuple(scope["client"]))
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            await refusal(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is refused, or that has just logged in; else None."""
        headers = Headers(scope=scope)
        if headers.getlist("host")[1:] or headers.get("host", "").lower() not in self._hosts:
            return _words(421, "This page does not answer to that host name.")
        if scope["method"] not in ("GET", "HEAD"):
            return _words(405, "This page is read-only.")
        if self._rules.proxy is not None:
            if self._rules.user(headers):
                return None
            return _words(403, "The proxy did not name a user who may see this page.")
        token = QueryParams(scope["query_string"]).get("token")
        if token and scope["path"] == "/" and scope["method"] == "GET":
            session = self._rules.use(token)
            if session is not None:
                return self._logged_in(session)
        cookie = HTTPConnection(scope).cookies.get(self._rules.cookie, "")
        if self._rules.knows(cookie):
            return RedirectResponse("/", 303) if token else None
        if not (cookie or token) and _by_link_of_others(headers):
            return HTMLResponse(_AGAIN, 403, {"connection": "close"})
        return _words(
            403,
            "Open this page by the address that pgtare live printed. Each address works once; "
            "after that, pgtare live prints a new one.",
        )

    def _logged_in(self, session: str) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(
            self._rules.cookie,
            session,
            httponly=True,
            samesite="strict",
            secure=self._rules.address.tls,
            path="/",
        )
        return response


@functools.cache
def _own_name() -> str:
    """What this machine is called: asking may take seconds."""
    return socket.getfqdn()


def _by_link_of_others(headers: Headers) -> bool:
    """Whether a link on a page of another site leads here."""
    site, mode = (headers.get(f"sec-fetch-{name}") for name in ("site", "mode"))
    return (site, mode) == ("cross-site", "navigate")


def _words(status: int, words: str) -> Response:
    page = f'<!DOCTYPE html><html lang="en"><title>pgtare live</title><p>{words}</p></html>'
    return HTMLResponse(page, status, {"connection": "close"})
