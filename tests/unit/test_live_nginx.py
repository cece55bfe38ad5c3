"""The page behind a real nginx, with the configuration that the documentation shows."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgtare.keeping.live.access import ProxyRules
from pgtare.keeping.spool.writer import Spool
from tests.live_pages import Answer, ServedPage, served
from tests.unit import live_rows

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "deploy" / "nginx" / "pgtare-live.conf").read_text()
SECRET = "a-secret-of-the-proxy"  # noqa: S105
RULES = ProxyRules(secret=SECRET, users=["anna", "bob"], host="live.example.com")
#: eve may log in to nginx, but is not among the users of the page.
PASSWORDS = {"anna": "apple", "eve": "egg"}

pytestmark = pytest.mark.timeout(180)


@dataclass
class Proxy:
    """nginx on a port of this machine."""

    port: int

    def connection(self) -> http.client.HTTPSConnection:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=unchecked)

    def get(self, path: str, user: str = "", **more: str) -> Answer:
        """Ask as a user, with more headers."""
        with contextlib.closing(self.connection()) as connection:
            connection.request("GET", path, headers=_headers(user, more))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())


def _headers(user: str, more: dict[str, str]) -> dict[str, str]:
    given = {name.replace("_", "-"): value for name, value in more.items()}
    headers = {"Host": "live.example.com", **given}
    if user:
        words = base64.b64encode(f"{user}:{PASSWORDS.get(user, 'x')}".encode()).decode()
        headers["Authorization"] = f"Basic {words}"
    return headers


@pytest.fixture(scope="module")
def own_spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that a test adds rows to."""
    return live_rows.make_spool(tmp_path_factory.mktemp("nginx") / "spool")


@pytest.fixture(scope="module")
def behind(own_spool: Path) -> Iterator[ServedPage]:
    with served(own_spool, RULES) as found:
        yield found


@pytest.fixture(scope="module")
def proxy(behind: ServedPage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx-light)")
    directory = tmp_path_factory.mktemp("proxy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key, certificate = directory / "pgtare-live.key", directory / "pgtare-live.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=live.example.com", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    users = directory / "pgtare-live.users"
    for user, password in PASSWORDS.items():
        done = subprocess.run(
            ["openssl", "passwd", "-6", password], check=True, capture_output=True, text=True
        )
        with users.open("a") as lines:
            lines.write(f"{user}:{done.stdout.strip()}\n")
    (directory / "pgtare-live.secret").write_text(f'proxy_set_header X-Pgtare-Secret "{SECRET}";\n')
    site = CONFIG.replace("/etc/nginx/", f"{directory}/")
    site = site.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    site = site.replace("127.0.0.1:8765", f"127.0.0.1:{behind.address.port}")
    temporary = "".join(
        f"{name}_temp_path {directory}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = directory / "nginx.conf"
    user_line = "user root;\n" if os.getuid() == 0 else ""  # its directory is private
    config.write_text(
        f"{user_line}daemon off;\npid {directory}/pid;\nerror_log {directory}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    command = [program, "-p", str(directory), "-c", str(config), "-e", f"{directory}/error.log"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        found, deadline = Proxy(port), time.monotonic() + 60
        while True:
            try:
                found.get("/")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(process.communicate(timeout=5)) from None
                time.sleep(0.05)
        yield found
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_the_documentation_shows_this_configuration() -> None:
    page = (ROOT / "docs" / "live.md").read_text()
    assert "```{literalinclude} ../deploy/nginx/pgtare-live.conf\n" in page


def test_named_users_see_the_page(proxy: Proxy) -> None:
    page = proxy.get("/activity?last=2h", "anna")
    assert page.status == 200
    assert "Average active sessions" in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert proxy.get("/activity.csv?last=2h&table=by_type", "anna").text.startswith("type,aas")
    script = page.text.split('data-plotly="')[1].partition('"')[0]
    assert len(proxy.get(script, "anna").text) > 1_000_000
    assert proxy.get("/", "anna").headers["location"].endswith("/activity")


def test_nobody_else_does(proxy: Proxy, behind: ServedPage) -> None:
    assert proxy.get("/activity").status == 401
    assert proxy.get("/activity", "bob").status == 401  # a wrong password
    assert proxy.get("/activity", "eve").status == 403
    # what a browser says itself of users and secrets is replaced
    said = {"X_Forwarded_User": "anna", "X_Pgtare_Secret": SECRET}
    assert proxy.get("/activity", "eve", **said).status == 403
    assert proxy.get("/activity", "", **said).status == 401
    # and who goes past nginx does not have the secret
    past = {"Host": "live.example.com", "X-Forwarded-User": "anna"}
    assert behind.get("/activity", past).status == 403


def test_new_rows_are_announced_at_once(proxy: Proxy, own_spool: Path) -> None:
    with contextlib.closing(proxy.connection()) as connection:
        connection.request("GET", "/updates", headers=_headers("anna", {}))
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline() == b"retry: 3000\n"
        with Spool.open(own_spool, live_rows.UNLIMITED) as opened:
            opened.commit({}, {})
        assert answer.readline() == b"\n"
        assert answer.readline() == b"event: commit\n"
