"""What a command loads before it does anything: the time that every call of it takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pgtare.cli import commands

HEAVY = ("duckdb", "scipy.optimize", "scipy.special", "scipy.stats")


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("name", commands.ORDER)
def test_a_command_loads_no_statistics_before_it_needs_them(name: str) -> None:
    module = commands._COMMANDS[name].module
    assert not loaded(f"import pgtare.cli.{module}") & set(HEAVY)


def test_the_list_of_commands_loads_none_of_them() -> None:
    code = "import sys; sys.argv = ['pgtare', '--help']\nfrom pgtare import cli\n"
    found = loaded(f"{code}try: cli.main()\nexcept SystemExit: pass")
    assert "pgtare.cli.commands" in found
    assert not found & {"numpy", "psycopg", "pgtare.cli.weigh"}
