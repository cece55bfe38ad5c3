"""An agent of the page's own, for a first look at one server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pgtare.errors import MeasurementError
from pgtare.keeping.agent.config import ONLY_SERVER, of_dsn
from pgtare.keeping.agent.server_check import check_server
from pgtare.keeping.spool import manifest
from pgtare.kit.interpreter import module_command
from pgtare.postgres.load.process import Child

_FIRST_COMMIT_S = 40.0
#: Looks of an agent that runs only as long as the page: a reader wants to see something move.
_QUICK = {"waits": "2s", "statements": "10s", "sessions": "1s", "activity": "10s"}


def configuration(dsn: str, quick: bool) -> str:
    """The agent's configuration for one server."""
    lines = []
    if quick:
        lines += ["[intervals]", *(f'{name} = "{value}"' for name, value in _QUICK.items())]
    # TOML has no pairs of escapes for one character, as JSON has
    quoted = json.dumps(dsn, ensure_ascii=False).replace("\x7f", "\\u007f")
    lines += [f"[servers.{ONLY_SERVER}]", f"dsn = {quoted}"]
    return "\n".join(lines) + "\n"


class FirstLook:
    """The agent as a process of its own, so that its own figures are its own. It ends with us."""

    def __init__(self, dsn: str, spool: Path, scratch: Path, quick: bool) -> None:
        """Start it. scratch: a private directory for its configuration, which may hold secrets."""
        config = scratch / "agent.toml"
        config.touch(mode=0o600)
        config.write_text(configuration(dsn, quick), encoding="utf-8", errors="surrogateescape")
        command = module_command("pgtare", "agent", "--config", str(config), "--spool", str(spool))
        self._spool = spool
        self._child = Child(command, os.environ)

    def wait_ready(self, steps: Iterable[Callable[[], None]]) -> None:
        """Wait for its first rows. Raises MeasurementError with its own words if it ends.

        steps: what to do meanwhile, again and again.
        """
        deadline = time.monotonic() + _FIRST_COMMIT_S
        while not (self._spool / manifest.NEWEST).exists():
            self.check()
            for step in steps:
                step()
            if time.monotonic() > deadline:
                raise MeasurementError(f"the agent has not read the server yet: {self._said()}")
            time.sleep(0.1)

    def check(self) -> None:
        """Raise MeasurementError if it has ended."""
        if self._child.status is not None:
            self._child.wait(5)
            raise MeasurementError(f"the agent ended: {self._said()}")

    def _said(self) -> str:
        lines = self._child.stderr
        return lines[-1].removeprefix("pgtare: ") if lines else "its log is empty"

    def stop(self) -> None:
        """End it after a last commit."""
        self._child.stop(patience_s=10.0)


def check(dsn: str) -> list[str]:
    """What the agent cannot see of this server, with remedies. Raises PgtareError."""
    return check_server(ONLY_SERVER, of_dsn(dsn).servers[ONLY_SERVER]).notes
