"""Every command's help: an example, where terms are explained, and groups; on any terminal."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from pgtare.cli import commands
from tests.commands import in_process, pgtare

GROUPS = {
    "Weighing": [
        "weigh",
        "ladder",
        "report",
        "fleet",
        "bill",
        "status",
        "stop",
        "instruments",
        "selftest",
    ],
    "Observing": ["waits", "trace", "flame", "doctor", "clock"],
    "Keeping": ["agent", "findings", "live", "spool", "store"],
    "Set up": ["module", "support", "uninstall"],
}


def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in commands.ORDER:
        found.append((name,))
        app = getattr(importlib.import_module(commands.module_of(name)), "app", None)
        for command in app.registered_commands if app else ():
            found.append((name, command.name or command.callback.__name__))
    return found


def test_the_commands_are_in_groups() -> None:
    lines = in_process("--help").stdout.splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        if title := re.match(r"╭─ ([A-Z][a-z ]+?) ─", line):
            found[title[1]] = group = []
        elif name := re.match(r"│ ([a-z]+) ", line):
            group.append(name[1])
    found.pop("Options")
    assert found == GROUPS


@pytest.mark.parametrize("command", [(), *every_command()], ids=" ".join)
def test_a_help_text_has_an_example_and_names_the_glossary(command: tuple[str, ...]) -> None:
    done = in_process(*command, "--help")
    assert done.returncode == 0
    assert re.search(r"Examples?:", done.stdout), done.stdout
    assert commands.GLOSSARY in done.stdout
    if len(command) == 1:  # the list of commands has the words of each
        (words,) = (group[command[0]] for group in commands._GROUPS.values() if command[0] in group)
        assert words in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("command", "environment", "ascii_only"),
    [
        ("instruments", {"NO_COLOR": "1"}, False),
        ("--help", {"TERM": "dumb"}, False),
        ("instruments", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, True),
        ("--help", {"PYTHONIOENCODING": "ascii"}, True),
    ],
    ids=str,
)
def test_any_terminal_will_do(command: str, environment: dict[str, str], ascii_only: bool) -> None:
    done = pgtare(command, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    if ascii_only:
        assert done.stdout.isascii()


def test_a_document_is_the_same_in_ascii(tmp_path: Path) -> None:
    catalog = tmp_path / "own.toml"
    catalog.write_text(
        '[mine]\ndescription = "µs"\nsafe_in_production = true\nreason = "writes nothing"\n'
        "base = { jit = false }\n[mine.variants.on]\nsettings = { jit = true }\n"
    )
    usual, plain = (
        pgtare("instruments", "--catalog", catalog, "--json", PYTHONIOENCODING=e)
        for e in ("utf-8", "ascii")
    )
    assert not usual.stdout.isascii()
    assert plain.stdout.isascii()
    assert json.loads(plain.stdout) == json.loads(usual.stdout)


@pytest.mark.parametrize("command", [("weigh", "--help"), ("clock",)])
def test_the_width_of_the_terminal_is_kept(command: tuple[str, ...]) -> None:
    done = pgtare(*command, COLUMNS="60")
    assert max(map(len, done.stdout.splitlines())) <= 60
