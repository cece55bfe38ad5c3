"""Pages of other commands, served by `pgtare live --pages`."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from pgtare.keeping.live.written_pages import WrittenPages
from pgtare.kit import page_frame
from pgtare.weighing.weigh.report.page import page as weigh_page
from tests.commands import refused
from tests.live_pages import ServedPage, served
from tests.unit.sample_result import sample

STRANGER = (
    "<!DOCTYPE html><title>a &lt;b&gt; c</title>"
    "<script>document.title = 'it ran';</script><p>not one of ours</p>"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    drawn = sample()
    outside = made.parent / "outside.html"
    outside.write_text("<title>secret</title>")
    directory = made / "results"
    (directory / "monday").mkdir(parents=True)
    (directory / "monday" / "report.html").write_text(page(drawn), encoding="utf-8")
    (directory / "it's 100% & more.html").write_text(STRANGER, encoding="utf-8")
    (directory / "away.html").symlink_to(outside)
    (directory / "result.json").write_text("{}")
    for age, name in enumerate(("monday/report.html", "it's 100% & more.html")):
        os.utime(directory / name, (1_800_000_000 - age, 1_800_000_000 - age))
    return directory


def page(drawn: object) -> str:
    return weigh_page(drawn.result, drawn.observations)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def served_pages(directory: Path) -> Iterator[ServedPage]:
    with served(None, pages=directory) as found:
        found.log_in()
        yield found


def test_pages_alone_are_the_first_view(served_pages: ServedPage) -> None:
    assert served_pages.get("/").headers["location"] == "/pages"
    listed = served_pages.get("/pages")
    assert listed.status == 200
    assert 'href="/pages/monday/report.html"' in listed.text
    assert "/activity" not in listed.text
    for path in ("/activity", "/activity.csv?table=by_type", "/updates", "/a/b"):
        answer = served_pages.get(path)
        assert (answer.status, "There is no such page" in answer.text) == (404, True), path


def test_the_list_is_a_csv_as_well(served_pages: ServedPage) -> None:
    assert 'href="/pages.csv"' in served_pages.get("/pages").text
    rows = list(csv.DictReader(io.StringIO(served_pages.get("/pages.csv").text)))
    assert [row["name"] for row in rows] == ["monday/report.html", "it's 100% & more.html"]
    assert rows[0]["written"] == "2027-01-15T08:00:00Z"
    assert rows[1]["title"] == "a <b> c"
    assert int(rows[0]["bytes"]) > len(get_plotlyjs())


def test_a_page_loads_plotly_from_the_shared_file(served_pages: ServedPage) -> None:
    answer = served_pages.get("/pages/monday/report.html")
    assert answer.status == 200
    assert len(answer.text) < 300_000
    assert "What it costs when left on" in answer.text.replace("<wbr>", "")
    scripts = re.findall(r'<script src="([^"]+)">', answer.text)
    contents = [served_pages.get(address).text for address in scripts]
    assert contents == list(page_frame.shared_scripts())
    assert "http-equiv" not in answer.text
    policy = answer.headers["content-security-policy"]
    # it needs nothing of the site but its scripts
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'unsafe-inline';")
    assert "form-action 'none'" in policy
    assert "connect-src" not in policy
    assert "sandbox" not in policy


def test_another_page_is_served_apart_from_the_site(served_pages: ServedPage) -> None:
    answer = served_pages.get("/pages/it%27s%20100%25%20%26%20more.html")
    assert answer.text == STRANGER
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts allow-downloads; default-src 'none';")
    assert "allow-same-origin" not in policy


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("</body>", "<script>alert(1)</script></body>"),
        lambda text: text.replace("</body>", '<SCRIPT SRC="/static/x.js"></SCRIPT></body>'),
        lambda text: text.replace("</body>", '<script type="module">alert(1)</script></body>'),
        lambda text: text.replace("const ", "var ", 1),
    ],
)
def test_a_page_with_any_other_script_is_a_stranger(tmp_path: Path, change: object) -> None:
    plotly, charts = page_frame.shared_scripts()
    text = page(sample())
    assert page_frame.with_scripts_at(text, {plotly: "/p.js", charts: "/c.js"}) is not None
    (tmp_path / "page.html").write_text(change(text), encoding="utf-8")  # type: ignore[operator]
    found = WrittenPages(tmp_path, {plotly: "/p.js", charts: "/c.js"}).served("page.html")
    assert found is not None
    assert found.headers["content-security-policy"].startswith("sandbox")
    assert 'src="/p.js"' not in found.text


@pytest.mark.parametrize(
    "added",
    [
        # the text of srcdoc is a page of the same site, and runs its scripts
        '<iframe srcdoc="&lt;script src=/static/live.js&gt;&lt;/script&gt;"></iframe>',
        '<IFRAME\nSRC="/pages"></IFRAME>',
        '<meta http-equiv="refresh" content="0;url=https://example.com/">',
        '<base href="https://example.com/">',
        '<form action="https://example.com/"><input></form>',
        '<object data="/pages"></object>',
        '<embed src="/pages">',
        '<link rel="preconnect" href="https://example.com/">',
        '<svg><script href="/static/x.js"/></svg>',
        '<scr<meta charset="utf-8">ipt>alert(1)</script>',
        "<script",
    ],
)
def test_a_page_with_more_than_the_frame_has_is_a_stranger(tmp_path: Path, added: str) -> None:
    plotly, charts = page_frame.shared_scripts()
    text = page(sample()).replace("</body>", f"{added}</body>")
    assert page_frame.with_scripts_at(text, {plotly: "/p.js", charts: "/c.js"}) is None
    assert page_frame.with_scripts_at("<title>plain</title>", {}) is None


@pytest.mark.timeout(180)
def test_a_page_of_many_torn_tags_holds_nobody_up(tmp_path: Path) -> None:
    policy = '<meta http-equiv="Content-Security-Policy" content="">\n'
    for torn in ("<script ", "<meta ", '<meta http-equiv="Content-Security-Policy" content='):
        assert page_frame.with_scripts_at(policy + torn * 500_000, {}) is None


def test_names_and_files_of_all_kinds_leave_the_list_whole(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text("<title>good</title>")
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.html"))).write_text("<title>bytes</title>")
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "directory.html").mkdir()
    (tmp_path / "device.html").symlink_to("/dev/zero")
    (tmp_path / "loop.html").symlink_to("loop.html")
    for name in ("new\nline.html", ".hidden.html"):
        (tmp_path / name).write_text(STRANGER)
    with served(None, pages=tmp_path) as site:
        site.log_in()
        for address in ("/pages", "/pages.csv"):
            answer = site.get(address)
            assert (answer.status, "good.html" in answer.text) == (200, True)
            assert ".html" not in answer.text.replace("good.html", "")
        for name in ("pipe", "directory", "device", "loop", "good.html/x", "x" * 5000):
            assert site.get(f"/pages/{name}.html").status == 404
        for address in ("%FF.html", "new%0Aline.html", ".hidden.html", "x%00.html"):
            assert site.get(f"/pages/{address}").status == 404


def test_a_large_page_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.html").open("wb") as file:
        file.truncate(1 << 40)  # a file of holes
    with served(None, pages=tmp_path) as site:
        site.log_in()
        answer = site.get("/pages/large.html")
        assert answer.status == 503
        assert "The page large.html is larger than 64 MiB: open it as a file" in answer.text
        assert "large.html" in site.get("/pages").text


def test_a_file_that_is_swapped_for_a_link_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, outside = tmp_path / "pages", tmp_path / "outside.html"
    directory.mkdir()
    outside.write_text("<title>secret</title>")
    (directory / "page.html").write_text("<title>good</title>")
    pages = WrittenPages(directory, {})
    opens = os.open

    def swapped(path: Any, *more: Any) -> int:
        (directory / "page.html").unlink()
        (directory / "page.html").symlink_to(outside)
        return opens(path, *more)

    monkeypatch.setattr(os, "open", swapped)
    assert pages.served("page.html") is None
    assert pages.listed()[0] == []


def test_the_newest_of_very_many_are_listed(tmp_path: Path) -> None:
    for number in range(1002):
        path = tmp_path / f"{number}.html"
        path.write_text("<title>one</title>")
        os.utime(path, (1_800_000_000 + number, 1_800_000_000 + number))
    with served(None, pages=tmp_path) as site:
        site.log_in()
        text = site.get("/pages").text
        assert "2 older ones are not listed" in text
        assert ("1001.html" in text, '"/pages/1.html"' in text) == (True, False)
        assert site.get("/pages/1.html").status == 200


@pytest.mark.parametrize(
    "name",
    [
        "away.html",
        "../outside.html",
        "%2e%2e/outside.html",
        "..%2foutside.html",
        "monday/../../outside.html",
        "result.json",
        "monday",
        "",
        "x.html",
    ],
)
def test_nothing_else_is_served(served_pages: ServedPage, name: str) -> None:
    answer = served_pages.get(f"/pages/{name}")
    assert answer.status in (303, 307, 404)
    assert "secret" not in answer.text


def test_pages_need_the_token(served_pages: ServedPage) -> None:
    cookie, served_pages.cookie = served_pages.cookie, ""
    try:
        for path in ("/pages", "/pages.csv", "/pages/monday/report.html"):
            assert served_pages.get(path).status == 403
    finally:
        served_pages.cookie = cookie


def test_an_unreadable_page_is_a_sentence(served_pages: ServedPage, directory: Path) -> None:
    (directory / "torn.html").write_bytes(b"<title>torn</title>\xff")
    try:
        answer = served_pages.get("/pages/torn.html")
    finally:
        (directory / "torn.html").unlink()
    assert answer.status == 503
    assert "The page torn.html cannot be read: it is not UTF-8" in answer.text


def test_a_result_that_is_being_written_is_not_listed(tmp_path: Path) -> None:
    """Commands write to a hidden directory, and rename it when it is whole."""
    (tmp_path / ".monday.new").mkdir()
    (tmp_path / ".monday.new" / "report.html").write_text(STRANGER)
    pages = WrittenPages(tmp_path, {})
    assert pages.listed() == ([], 0)
    assert pages.served(".monday.new/report.html") is None
    (tmp_path / ".monday.new").rename(tmp_path / "monday")
    assert [page.name for page in pages.listed()[0]] == ["monday/report.html"]
    assert pages.served("monday/report.html") is not None


def test_one_page_does_not_look_at_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "monday").mkdir()
    (tmp_path / "monday" / "report.html").write_text(STRANGER)
    pages = WrittenPages(tmp_path, {})

    def looked(*_: object, **__: object) -> None:
        raise AssertionError("it read a directory")

    monkeypatch.setattr(os, "scandir", looked)
    monkeypatch.setattr(os, "listdir", looked)
    assert pages.served("monday/report.html") is not None


def test_links_within_the_directory_are_followed(tmp_path: Path) -> None:
    (tmp_path / "monday").mkdir()
    (tmp_path / "monday" / "report.html").write_text(STRANGER)
    (tmp_path / "latest").symlink_to("monday")
    (tmp_path / "away").symlink_to("/")
    (tmp_path / "round.html").symlink_to("round.html")
    pages = WrittenPages(tmp_path, {})
    names = {page.name for page in pages.listed()[0]}
    assert names == {"monday/report.html", "latest/report.html"}
    assert all(pages.served(name) is not None for name in names)
    assert pages.served("away/etc/x.html") is None
    assert pages.served(str(tmp_path / "monday" / "report.html")) is None


def test_a_directory_must_exist(tmp_path: Path) -> None:
    said = refused("live", "--pages", str(tmp_path / "none"), "--listen", "127.0.0.1:0")
    assert "no such directory" in said
    assert "--out" in said
