"""Runs the pgtare command as a user does, and reads its results.

The functions take a command's words one by one, or a whole line as `words` does:
`pgtare("weigh track_io_timing --dsn {} --duration 2", dsn)`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pgtare import cli
from tests import forked

PGTARE = forked.PGTARE


def words(template: str, *values: object) -> list[str]:
    """The words of a command line.

    Each {} in it is replaced by the next value, whole; values that are left follow as words.
    """
    left = iter(values)
    found = [re.sub("{}", lambda _: str(next(left)), word) for word in shlex.split(template)]
    return [*found, *map(str, left)]


def _command(arguments: Sequence[object]) -> list[str]:
    """The words of a command after its name."""
    if arguments and " " in str(arguments[0]):
        return words(str(arguments[0]), *arguments[1:])
    return [str(word) for word in arguments]


def pgtare(
    *arguments: object, timeout: float = 120, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = _start(_command(arguments), {"COLUMNS": "120", **env}, new_session=False)
    try:
        out, err = command.communicate(timeout=timeout)
    except BaseException:
        command.kill()
        command.communicate()
        raise
    return subprocess.CompletedProcess(command.args, command.returncode, out, err)


def start_pgtare(*arguments: object) -> subprocess.Popen[str]:
    """Start a command in a process group of its own."""
    return _start(_command(arguments), {}, new_session=True)


def _start(
    command: Sequence[str], changed: Mapping[str, str], *, new_session: bool
) -> subprocess.Popen[str]:
    environment = {**os.environ, **changed}
    return forked.popen([*PGTARE, *command], environment, new_session=new_session)


def read_until(command: subprocess.Popen[str], words: str) -> None:
    """Lines of its standard error, up to one with these words."""
    assert command.stderr is not None
    log = ""
    while words not in log:
        line = command.stderr.readline()
        assert line, log
        log += line


def failed(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The one sentence of a command that failed as it should; no traceback."""
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    assert "Traceback" not in done.stderr
    return done.stderr


def in_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: one of its own takes a second to load what it needs."""
    out, err = io.StringIO(), io.StringIO()
    command = ["pgtare", *_command(arguments)]
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", command)
        # `python -m pytest` would give its package to the name of the command
        patch.setattr(sys.modules["__main__"], "__package__", None)
        patch.setenv("COLUMNS", "120")
        # a process registers its commands once; here it would be once for each call
        patch.setattr(cli.app, "registered_commands", [])
        patch.setattr(cli.app, "registered_groups", [])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    status = int(ended.value.code or 0)
    return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())


def refused(*arguments: object, status: int = 2) -> str:
    """The one sentence of a command that ends before it measures."""
    return failed(in_process(*arguments), status)


def read(path: Path) -> dict[str, Any]:
    """A result document."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def arm(result: dict[str, Any], name: str) -> dict[str, Any]:
    """One arm of a result by name."""
    (found,) = [a for a in result["arms"] if a["name"] == name]
    return dict(found)
