"""Who may see the page of `pgtare live`."""

from __future__ import annotations

import contextlib
import resource
import select
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare import cli
from pgtare.cli import live
from pgtare.errors import UsageError
from pgtare.keeping.live import access, connection_limits, page_server
from pgtare.keeping.live.access import AccessRules, ListenAddress, ProxyRules
from tests.commands import refused
from tests.live_pages import ServedPage, served
from tests.sessions import eventually

SECRET = "a-secret-of-the-proxy"  # noqa: S105
PROXY = ProxyRules(secret=SECRET, users=["anna", "bob", "jürgen"], host="live.example.com")


@pytest.fixture(autouse=True)
def _no_cookie(page: ServedPage) -> None:
    page.cookie = ""


@pytest.mark.parametrize(
    "path", ["/", "/activity", "/activity.csv?table=by_type", "/updates", "/static/x", "/?token=no"]
)
def test_nothing_is_shown_without_the_token(page: ServedPage, path: str) -> None:
    assert page.get(path).status == 403


def test_a_token_lets_one_browser_in(page: ServedPage) -> None:
    path = page.token_path()
    first, second = page.get(path), page.get(path)
    assert (first.status, first.headers["location"]) == (303, "/")
    assert page.get("/", {"Cookie": first.headers["set-cookie"]}).headers["location"] == "/activity"
    assert second.status == 403
    assert page.said[-1] == page.rules.login_address()
    assert page.token_path() != path
    cookie = first.headers["set-cookie"]
    assert cookie.startswith(f"pgtare_live_{page.address.port}=")
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    page.cookie = cookie.partition(";")[0]
    assert page.get("/activity").status == 200
    assert page.get("/", {"Cookie": page.cookie + "x"}).status == 403


def test_a_browser_is_let_in_though_nobody_reads_what_is_printed(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "say", closed)
    monkeypatch.setattr(page.rules, "said", live._say_again)
    page.log_in()
    assert page.get("/activity").status == 200


def test_a_link_of_another_site_leads_here(page: ServedPage) -> None:
    """Browsers do not send the cookie then, but if the page loads itself again."""
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    again = page.get("/activity", link)
    assert (again.status, again.headers["connection"]) == (403, "close")
    assert '<meta http-equiv="refresh" content="0">' in again.text
    for path, headers in (
        ("/activity", {**link, "Sec-Fetch-Site": "same-origin"}),
        ("/activity", {**link, "Sec-Fetch-Mode": "no-cors"}),
        ("/activity", {**link, "Cookie": f"{page.rules.cookie}=wrong"}),
        ("/?token=used", link),
    ):
        assert "refresh" not in page.get(path, headers).text


def test_a_head_request_leaves_the_token(page: ServedPage) -> None:
    path = page.token_path()
    refusal = page.get(path, method="HEAD")
    assert (refusal.status, refusal.headers["connection"]) == (403, "close")
    assert page.get(path).status == 303


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
@pytest.mark.usefixtures("few_descriptors")
def test_idle_connections_do_not_keep_a_browser_out(
    spool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_S", 3.0)
    with served(spool) as page, contextlib.ExitStack() as opened:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == hard
        waiting = select.poll()
        for _ in range(1000):
            idle = socket.create_connection((page.address.host, page.address.port))
            opened.callback(idle.close)
            waiting.register(idle, select.POLLIN)
            with contextlib.suppress(ConnectionError):  # others have pushed it out
                idle.send(b"GET / HTTP/1.1\r\n")
        most = connection_limits.MOST_OF_ADDRESS
        eventually(lambda: len(waiting.poll(0)) >= 1000 - most)
        page.log_in()
        assert page.get("/activity").status == 200
        eventually(lambda: len(waiting.poll(0)) == 1000)
    lines = [one for one in caplog.records if one.name == connection_limits.__name__]
    assert 0 < len(lines) <= 2, "one a minute"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "127.0.0.1.:{port}"],
)
def test_the_page_has_no_other_name(page: ServedPage, host: str) -> None:
    page.log_in()
    answer = page.get("/activity", {"Host": host.format(port=page.address.port)})
    assert answer.status == 421
    assert page.get("/activity", {"Host": f"localhost:{page.address.port}"}).status == 200


def test_every_answer_forbids_what_the_page_does_not_need(page: ServedPage) -> None:
    page.log_in()
    for path in ("/activity", "/nothing", "/activity?last=1y"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    assert page.get("/activity", method="POST").status == 405


def test_pages_have_no_script_of_their_own(page: ServedPage) -> None:
    page.log_in()
    for view in ("breakdown", "compare"):
        text = page.get(f"/{view}?last=2h&by=query_id").text
        scripts = [part.partition(">")[0] for part in text.split("<script")[1:]]
        assert len(scripts) == 2
        assert all("src=" in one or "application/json" in one for one in scripts)
        assert "&lt;script&gt;window.pwned" in text
        assert "<img" not in text


def test_a_proxy_names_users(spool: Path) -> None:
    with served(spool, PROXY) as page:
        host = {"Host": "live.example.com"}
        known = {**host, "X-Pgtare-Secret": SECRET, "X-Forwarded-User": "anna"}
        assert page.get("/bill", known).status == 200
        in_utf_8 = "jürgen".encode().decode("latin-1")  # as http.client sends text
        assert page.get("/bill", {**known, "X-Forwarded-User": in_utf_8}).status == 200
        for wrong in (
            host,
            {**known, "X-Forwarded-User": "eve"},
            {**known, "X-Pgtare-Secret": "x" * 21},
            {name: value for name, value in known.items() if name != "X-Forwarded-User"},
        ):
            assert page.get("/bill", wrong).status == 403
        assert page.get("/bill", {**known, "Host": "127.0.0.1"}).status == 421
        assert page.get(f"/?token={page.rules._token}", host).status == 403


@pytest.mark.parametrize("host", ["192.0.2.1", "db.example.com", "::"])
def test_others_come_in_only_by_tls_or_a_proxy(host: str) -> None:
    open_ = ListenAddress(host, 8765)
    with pytest.raises(UsageError, match=r"--tls-cert and --tls-key.*--behind-proxy.*ssh -L"):
        access.check_reach(open_, None)
    access.check_reach(open_, PROXY)
    access.check_reach(ListenAddress(host, 8765, tls=True), None)
    access.check_reach(ListenAddress("127.0.0.2", 8765), None)


def test_hosts_follow_the_address() -> None:
    assert AccessRules(ListenAddress("::1", 80)).hosts >= {"[::1]:80", "[::1]", "localhost"}
    named = AccessRules(ListenAddress("192.0.2.1", 443, tls=True), name="DB.example.com")
    assert named.hosts == {"db.example.com", "db.example.com:443"}
    assert named.login_address().startswith("https://DB.example.com:443/?token=")


def test_the_file_of_a_proxy(tmp_path: Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text(f'secret = "{SECRET}"\nusers = ["anna"]\nhost = "live.example.com"\n')
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        access.proxy_rules(path)
    path.chmod(0o600)
    assert access.proxy_rules(path).user_header == "X-Forwarded-User"
    path.write_text(f'secret = "{SECRET}"\nusers = []\nhost = "live.example.com"\n')
    with pytest.raises(UsageError, match="users") as caught:
        access.proxy_rules(path)
    assert SECRET not in str(caught.value)


def test_the_command_says_what_is_wrong(tmp_path: Path, spool: Path) -> None:
    assert "can be reached from other machines" in refused(
        "live", "--spool", spool, "--listen", "0.0.0.0:0"
    )
    assert "holds no spool" in refused("live", "--spool", tmp_path)
    assert "go together" in refused("live", "--spool", spool, "--tls-cert", tmp_path)
    assert "give an address and a port, as in --listen 127.0.0.1:8765" in refused(
        "live", "--spool", spool, "--listen", "here"
    )
    pem = tmp_path / "pem"
    pem.write_text("nothing")
    tls = ("--tls-cert", pem, "--tls-key", pem)
    assert "cannot be used" in refused("live", "--spool", spool, *tls)


def write_certificate(certificate: Path, key: Path, algorithm: str) -> None:
    """In place of what these files hold: first the certificate, then its key."""
    new = certificate.with_suffix(".new"), key.with_suffix(".new")
    words = ["req", "-x509", "-newkey", algorithm, "-nodes", "-days", "2", "-subj", "/CN=shop"]
    words += ["-pkeyopt", "ec_paramgen_curve:prime256v1"] if algorithm == "ec" else []
    words += ["-out", str(new[0]), "-keyout", str(new[1])]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    new[0].replace(certificate)
    new[1].replace(key)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    """Also if its key is of another kind, and while half of the pair is there."""
    pair = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(*pair, "ec")
    with served(tmp_path, certificate=pair) as page:

        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", page.address.port), timeout=60)

        assert shown() == pair[0].read_text()
        for algorithm in ("rsa:2048", "ec"):
            write_certificate(*pair, algorithm)
            eventually(lambda: shown() == pair[0].read_text())
        renewed = pair[0].read_text()
        pair[1].write_text("nothing")
        time.sleep(1.5)  # it has been looked at
        assert shown() == renewed


@pytest.mark.slow
def test_a_port_in_use_is_said(page: ServedPage) -> None:
    with pytest.raises(UsageError, match="choose another port"):
        page_server.bound(page.address)
