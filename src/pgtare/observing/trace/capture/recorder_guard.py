"""A small process next to a recorder that gives sessions back if the recorder is killed.

The server keeps tracing what it was asked to trace. A recorder that ends by itself undoes that;
one that is killed cannot. Its guard sees the pipe between them close and does it instead.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Self

from pgtare.kit.interpreter import module_command

_MODULE = "pgtare.observing.trace.capture.recorder_guard"
#: How long the guard tries to reach the server after the recorder has died, in s.
_PATIENCE_S = 30.0


class Guard:
    """The recorder's end of the pipe. recorder: the process of the server that serves it.

    calls: it has calls traced, too, not only waits.
    """

    def __init__(self, dsn: str, recorder: int, *, calls: bool) -> None:
        self._process = subprocess.Popen(
            module_command(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends the recorder does not end its guard
        )
        # not as an argument: it may hold a password
        self._tell({"dsn": dsn, "recorder": recorder, "calls": calls})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Without a dismissal before, the guard does its work now; we await it, but no server."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_S if kind is None else 1.0)

    def armed(self, pid: int, started: str) -> None:
        """A session, begun then, is about to be traced on our behalf."""
        self._tell({"pid": pid, "started": started})

    def let_go(self, pid: int) -> None:
        """That session has ended."""
        self._tell({"ended": pid})

    def dismiss(self) -> None:
        """All has been given back."""
        self._tell({"done": True})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it was killed: nothing guards us then
            if self._process.stdin is not None and not self._process.stdin.closed:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()


@dataclass
class _Left:
    """What a dead recorder left: sessions by when each began."""

    dsn: str = ""
    recorder: int = 0
    calls: bool = True
    sessions: dict[int, str] = field(default_factory=dict)


def _watch() -> None:
    """Read what the recorder says until its end of the pipe closes; then give back what it left.

    Tried again for a while if that fails, as the server may be restarting.
    """
    left = _Left()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        left.dsn = message.get("dsn", left.dsn)
        left.recorder = message.get("recorder", left.recorder)
        left.calls = message.get("calls", left.calls)
        if "pid" in message:
            left.sessions[int(message["pid"])] = str(message["started"])
        left.sessions.pop(message.get("ended", 0), None)
        if message.get("done"):
            left.sessions = {}
    until = time.monotonic() + _PATIENCE_S
    while left.sessions and time.monotonic() < until:
        try:
            _give_back(left)
            return
        except Exception:
            time.sleep(1.0)


def _give_back(left: _Left) -> None:
    # loaded only if it is needed: most guards are dismissed
    from pgtare.observing.trace.capture.recorder_locks import give_back
    from pgtare.observing.trace.capture.server import Need, open_server

    need = Need.CALLS if left.calls else Need.WAITS
    with open_server(left.dsn, need, any_version=True) as server:
        give_back(server, left.sessions, left.recorder)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _watch()
