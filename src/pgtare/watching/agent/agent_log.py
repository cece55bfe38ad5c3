"""The agent's log: one line an event on standard error, as words that programs can read."""

from __future__ import annotations

import json
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Literal

from pgtare.kit.terminal_text import plain

#: The same event of one server is not repeated within this many s.
_REPEATED_S = 600.0

LogLevel = Literal["info", "warning", "error"]


class AgentLog:
    """Writes events: level, event, server, and more as `name=value`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], tuple[str, float]] = {}

    def write(self, level: LogLevel, event: str, server: str = "", **more: object) -> None:
        """Write one line."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"at": at, "level": level, "event": event}
        fields |= {"server": server} if server else {}
        fields |= {name: str(value) for name, value in more.items()}
        line = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        with self._lock:
            sys.stderr.write(plain(line) + "\n")
            sys.stderr.flush()

    def once(self, level: LogLevel, event: str, server: str, why: str, **more: object) -> None:
        """Write a line, unless the same was written for the same reason a while ago.

        more: what is no part of the reason.
        """
        now = time.monotonic()
        with self._lock:
            before = self._last.get((server, event))
            if before is not None and before[0] == why and now - before[1] < _REPEATED_S:
                return
            self._last[server, event] = why, now
        self.write(level, event, server, why=why, **more)

    def forget(self, event: str, server: str) -> None:
        """The trouble is over: if it comes back, it is written again."""
        with self._lock:
            self._last.pop((server, event), None)


def _quoted(value: str) -> str:
    bare = value and all(char.isalnum() or char in "_-.:/,+%" for char in value)
    return value if bare else json.dumps(value, ensure_ascii=False)
