"""What a command loads before it does anything: the time that every call of it takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pgtare.cli import EXTRAS, commands

#: Commands that need the extra `agent`.
NEED_AGENT = {"agent", "live", "spool", "store"}
HEAVY = ("plotly", "scipy")


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("agent", [False, True])
def test_no_command_loads_statistics_or_extras_before_it_needs_them(agent: bool) -> None:
    names = [name for name in commands.ORDER if (name in NEED_AGENT) == agent]
    lines = (f"import {commands.module_of(name)}" for name in names)
    found = loaded("\n".join(lines))
    assert not found & {*HEAVY, "duckdb", *(() if agent else EXTRAS["agent"])}


def test_the_list_of_commands_loads_none_of_them() -> None:
    code = "import sys; sys.argv = ['pgtare', '--help']\nfrom pgtare import cli\n"
    found = loaded(f"{code}try: cli.main()\nexcept SystemExit: pass")
    assert "pgtare.cli.commands" in found
    assert not found & {"numpy", "psycopg", "pgtare.cli.weigh"}


@pytest.mark.parametrize("command", [["agent", "check"], ["live"], ["spool", "info", "/nowhere"]])
def test_a_missing_package_is_named_with_its_extra(command: list[str]) -> None:
    code = (
        "import sys\n"
        "for package in ('pyarrow', 'starlette', 'uvicorn', 'prometheus_client'):\n"
        "    sys.modules[package] = None\n"
        f"sys.argv = ['pgtare', *{command}]\n"
        "from pgtare.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"pgtare: `pgtare {command[0]}` needs packages that are not installed: "
        "install pgtare's wheel with its extra, pip install 'WHEEL[agent]'\n"
    )
