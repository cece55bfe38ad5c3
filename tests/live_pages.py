"""A page of `pgtare live` that is served for a test, and asked as a browser asks it."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pgtare.keeping.live.access import AccessRules, ListenAddress, ProxyRules, listen_address
from pgtare.keeping.live.page_server import PageServer, bound
from pgtare.keeping.store.address import StoreAddress

#: On a busy machine the first query alone may take longer than users are kept waiting, s.
_LIMIT_S = 60.0


@dataclass
class Answer:
    """What the page answered."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class ServedPage:
    """Where it is served, and its rules. said: addresses that were printed again."""

    address: ListenAddress
    rules: AccessRules
    said: list[str] = field(default_factory=list)
    cookie: str = ""

    @property
    def url(self) -> str:
        return self.address.url()

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Answer:
        """Ask; with the cookie, once there is one."""
        given = {"Cookie": self.cookie} if self.cookie else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=_LIMIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, headers={**given, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())

    def token_path(self) -> str:
        """The newest address that lets a browser in, without the host."""
        return self.rules.login_address().removeprefix(self.url)

    def log_in(self) -> None:
        """Become a browser that was let in."""
        answer = self.get(self.token_path())
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]


@contextlib.contextmanager
def served(
    source: Path | StoreAddress,
    proxy: ProxyRules | None = None,
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[ServedPage]:
    """Serve a spool or a store on a free port of 127.0.0.1."""
    tls = certificate is not None
    listening = bound(listen_address("127.0.0.1:0", tls=tls))
    address = ListenAddress("127.0.0.1", listening.getsockname()[1], tls)
    said: list[str] = []
    rules = AccessRules(address, proxy, said=said.append)
    with PageServer(source, rules, listening, certificate, limit_s=_LIMIT_S):
        yield ServedPage(address, rules, said)
