"""Start PostgreSQL's programs under the server's account, apart from our terminal."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from pgtare.errors import MeasurementError
from pgtare.postgres import signals
from pgtare.postgres.os_account import Account, environment


def start_program(
    program: Path,
    arguments: Sequence[str],
    account: Account,
    output: int | IO[Any],
    directory: Path = Path("/"),
) -> subprocess.Popen[bytes]:
    """Start a program with its output and errors in one place.

    It works in `directory`, where a sweep can find it, and gets a session of its own: Ctrl-C at
    the terminal must not end it before we do. MeasurementError says why it cannot be run.
    """
    with signals.deferred():
        try:
            return subprocess.Popen(
                [str(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                umask=0o077,
                start_new_session=True,
                env=environment(),
                **account.run_as,
            )
        except OSError as ex:
            who = f" as {account.name}" if account.switch else ""
            raise MeasurementError(
                f"cannot run {program}{who} ({ex.strerror}): the server's account needs to read "
                f"it, and its file system must allow programs"
            ) from ex
