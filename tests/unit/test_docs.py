"""The documentation has a place for every page and a man page for every command."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.interrupt import INTERRUPTED
from pgtare.weighing.weigh import limit

DOCS = Path(__file__).parents[2] / "docs"
ROOMS = ["Tutorial", "How to", "Reference", "Explanation"]


def toctrees(page: Path) -> list[tuple[str, list[str]]]:
    """Caption and entries of each list of pages that a page holds."""
    found = []
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.M | re.S):
        captions = re.findall(r"^:caption: (.*)$", block, re.M)
        lines = [line for line in block.splitlines() if line and not line.startswith(":")]
        found.append((captions[0] if captions else "", lines))
    return found


@pytest.fixture(scope="module")
def conf() -> dict[str, Any]:
    """The settings that Sphinx reads."""
    pytest.importorskip("sphinx", reason="the documentation is built with Sphinx (make setup-dev)")
    return runpy.run_path(str(DOCS / "conf.py"))


def test_what_examples_import_is_there() -> None:
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    found = re.findall(r"^>>> from (\S+) import (.+)$", text, re.M)
    assert found
    for module, names in found:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_the_first_page_leads_through_four_rooms() -> None:
    assert [caption for caption, _ in toctrees(DOCS / "index.md")] == ROOMS


def test_every_page_is_in_one_room_and_every_entry_is_a_page() -> None:
    entries = [entry for _, some in toctrees(DOCS / "index.md") for entry in some]
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert sorted(entries) == sorted({*pages, "commands/index"})


def pages_of_commands(conf: dict[str, Any]) -> list[str]:
    """As the command line itself lists them."""
    return ["pgtare", *(f"pgtare-{name}" for name in conf["command_pages"].names())]


def test_every_command_has_a_page_that_shows_its_help(conf: dict[str, Any], tmp_path: Path) -> None:
    stale = tmp_path / "pgtare-gone.md"
    stale.write_text("# a command that is no more\n")
    conf["command_pages"].write_pages(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"index", *pages_of_commands(conf)}
    ((_, entries),) = toctrees(tmp_path / "index.md")
    assert sorted(entries) == sorted(pages_of_commands(conf))
    for entry in entries:
        name = entry.removeprefix("pgtare").removeprefix("-")
        directive = f"```{{command-help}} {name}".rstrip()
        assert directive in (tmp_path / f"{entry}.md").read_text().splitlines(), entry


def test_every_command_has_a_man_page_in_plain_words(conf: dict[str, Any]) -> None:
    pages = {name: (source, summary) for source, name, summary, _, _ in conf["man_pages"]}
    assert {"pgtare-weigh", "pgtare-waits"} < set(pages)
    assert set(pages) == set(pages_of_commands(conf))
    for name, (source, summary) in pages.items():
        assert source.removeprefix("commands/") in conf["command_pages"].pages(), name
        assert 10 < len(summary) < 200, (name, summary)
        assert "`" not in summary, name


def walks() -> dict[str, list[tuple[str, list[str]]]]:
    """The walks through the code in CONTRIBUTING.md: the file and the functions of each stop."""
    text = (DOCS.parent / "CONTRIBUTING.md").read_text()
    (part,) = re.findall(r"^## Three walks\n(.*?)^## ", text, re.M | re.S)
    found = {}
    for walk in part.split("\n### ")[1:]:
        title, _, body = walk.partition("\n")
        stops = re.findall(r"^\d+\. `([^`]+)`, (.*)$", body, re.M)
        assert len(stops) == len(re.findall(r"^\d+\.", body, re.M)), title
        found[title] = [(path, re.findall(r"`(\w+)\(\)`", rest)) for path, rest in stops]
    return found


def test_each_walk_has_at_most_twelve_stops_and_each_stop_its_function() -> None:
    assert len(walks()) == 3
    for title, stops in walks().items():
        assert len(stops) <= 12, title
        for path, functions in stops:
            text = (DOCS.parent / path).read_text()
            assert functions, path
            # the first one is of this file; later ones may be named as callers
            assert re.search(rf"(?m)^(?:\s*(?:async )?def )?{functions[0]}\(", text) or re.search(
                rf"(?m)^static .*\b{functions[0]}\(", text
            ), (path, functions[0])


def test_what_shows_in_the_list_of_processes_is_said_where_a_connection_string_is_given() -> None:
    for page in (DOCS.parent / "README.md", *DOCS.glob("*.md")):
        text = page.read_text()
        if '--dsn "$DSN"' in text or ("--dsn service=" in text and page.name == "README.md"):
            assert "list of processes" in text, page.name


def test_every_exit_status_of_a_weighing_with_a_limit_is_listed() -> None:
    listed = re.findall(r"^\| (\d+) \|", (DOCS / "ci.md").read_text(), re.M)
    ends = (limit.BELOW, limit.ABOVE, limit.UNDECIDED, MeasurementError.exit_status)
    wanted = {*ends, UsageError.exit_status, INTERRUPTED}
    assert sorted(map(int, listed)) == sorted(wanted)


def test_every_option_that_keeps_the_command_line_is_named_with_its_literals() -> None:
    (line,) = [
        line for line in (DOCS / "outside.md").read_text().splitlines() if "literals of" in line
    ]
    for option in ("--json", "--output", "--out"):
        assert f"`{option}`" in line
