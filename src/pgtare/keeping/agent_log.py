"""The agent's log: one line an event on standard error, as words that programs can read."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Literal

from pgtare.kit.terminal_text import plain

#: The same event of one server is not repeated for the same reason within this many s, and within
#: them has at most so many reasons.
_REPEATED_S, _MOST_REASONS = 600.0, 20
#: What comes and goes by the second is written once in this many s.
_FORGOTTEN_S = 60.0
#: Letters of a value: a server chooses the text of its errors.
_MOST_LETTERS = 1_000

LogLevel = Literal["info", "warning", "error"]


class AgentLog:
    """Writes events: level, event, server, and more as `name=value`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], dict[str, float]] = {}

    def write(self, level: LogLevel, event: str, server: str = "", **more: object) -> None:
        """Write one line, if standard error takes it."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"at": at, "level": level, "event": event}
        fields |= {"server": server} if server else {}
        fields |= {name: shortened(str(value)) for name, value in more.items()}
        line = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        # a full disk, or a reader that has gone, must not end what is logged
        with self._lock, contextlib.suppress(OSError, ValueError):
            sys.stderr.write(plain(line) + "\n")
            sys.stderr.flush()

    def once(self, level: LogLevel, event: str, server: str, why: str, **more: object) -> None:
        """Write a line, unless the same was written for the same reason a while ago.

        more: what is no part of the reason.
        """
        now, why = time.monotonic(), shortened(why)
        with self._lock:
            written = self._last.setdefault((server, event), {})
            _drop(written, now - _REPEATED_S)
            if why in written or len(written) >= _MOST_REASONS:
                return
            written[why] = now
        self.write(level, event, server, why=why, **more)

    def forget(self, event: str, server: str) -> None:
        """The trouble is over: if it comes back, but for at once, it is written again."""
        now = time.monotonic()
        with self._lock:
            _drop(self._last.get((server, event), {}), now - _FORGOTTEN_S)


def _drop(written: dict[str, float], until: float) -> None:
    """Forget reasons that were written until then."""
    for why in [one for one, at in written.items() if at <= until]:
        del written[why]


def shortened(text: str) -> str:
    """A text that no server makes longer than a line may be."""
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} ..."


def _quoted(value: str) -> str:
    bare = value and all(char.isalnum() or char in "_-.:/,+%" for char in value)
    return value if bare else json.dumps(value, ensure_ascii=False)
