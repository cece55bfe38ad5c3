"""Ctrl-C ends every command with one line and status 130, also while libraries are loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

LINE = "pgtare: interrupted; nothing of pgtare's own is left running\n"

#: Interrupts itself where a module is looked for: at whatever place in the loading that is.
_LOADING = """
import os, signal, sys
class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
sys.argv = ["pgtare", *{words!r}]
from pgtare.__main__ import main
main()
"""
_RUNNING = """
import os, signal, sys
from pgtare.cli import {command}
def interrupt(*arguments, **named):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        return 0
    finally:
        print("unwound")
{command}.{function} = interrupt
sys.argv = ["pgtare", *{words!r}]
from pgtare.__main__ import main
main()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ["--help"]),
        ("numpy._core.multiarray", ["trace", "profile", "nothing"]),
        ("pgtare.observing.trace.output.export", ["trace", "record", "nothing", "--dsn", ""]),
    ],
)
def test_while_it_is_loaded(module: str, words: list[str]) -> None:
    done = run(_LOADING.format(module=module, words=words))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


@pytest.mark.parametrize(
    ("command", "function", "words"),
    [
        ("trace", "load", ["trace", "profile", "nothing"]),
        ("trace", "open_server", ["trace", "record", "nothing", "--dsn", ""]),
    ],
)
def test_while_it_runs(command: str, function: str, words: list[str]) -> None:
    done = run(_RUNNING.format(command=command, function=function, words=words))
    assert (done.returncode, done.stdout) == (130, "unwound\n")
    assert done.stderr.replace("reading nothing: 0 %\n", "") == LINE
