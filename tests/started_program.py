"""A program of others that a test starts, and waits for until it answers."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_ANSWERS_S = 60.0


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class StartedProgram:
    """Runs during `with`. answers: raises OSError as long as the program does not answer."""

    def __init__(self, command: Sequence[str], log: Path, answers: Callable[[], object]) -> None:
        self._command, self._log_path, self._answers = command, log, answers

    def __enter__(self) -> Self:
        self._log = self._log_path.open("w")
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + _ANSWERS_S
        while True:
            try:
                self._answers()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise
                time.sleep(0.1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the program."""
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
