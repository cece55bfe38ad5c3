"""The thread that sends: it waits for the store, and nothing waits for it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

from pgtare.errors import PgtareError
from pgtare.keeping.agent_log import AgentLog, LogLevel
from pgtare.keeping.spool.writer import Spool
from pgtare.keeping.store import address
from pgtare.keeping.store.address import StoreAddress
from pgtare.keeping.store.connection import connect, require_client
from pgtare.keeping.store.pusher import SpoolPusher

#: How much time the commits of a window cover, s.
EVERY_S = 60.0
#: How often it looks for a complete window, s.
_LOOK_S = 5.0
#: After an error it waits this long, then twice as long, and so on, s.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 2.0, 60.0
#: What the store has in part is looked at again after this, s.
_PARTIAL_S = 60.0
#: At the end, an insert under way may take this much longer, s.
_LAST_S = 5.0


def wait_s(failures: int) -> float:
    """How long to wait after this many errors in a row, s."""
    return float(min(_FIRST_WAIT_S * 2 ** min(failures - 1, 10), _LONGEST_WAIT_S))


def address_of(url: str) -> StoreAddress:
    """The store of a configuration. Raises UsageError if it or the client cannot be used."""
    found = address.read(url, "store.url")
    found.password()
    require_client()
    return found


class PushThread(threading.Thread):
    """Sends a spool until it is stopped; as a context manager, from its start to its stop.

    commits: how many are sent at a time. spool: its writer, which keeps what is not sent yet.
    """

    def __init__(
        self,
        directory: Path,
        store: StoreAddress,
        commits: int,
        spool: Spool,
        log: AgentLog,
    ) -> None:
        super().__init__(name="store", daemon=True)
        self._pusher = SpoolPusher(directory, lambda: connect(store), commits, self._report)
        self._spool, self._log = spool, log
        self._stopping = threading.Event()
        self._failures = 0
        # before the first upkeep: rows that were not sent do not go by age
        spool.sent_seq = self._pusher.kept_seq

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _report(self, level: LogLevel, why: str) -> None:
        self._log.write(level, "store", why=why)

    def run(self) -> None:
        """Send window after window."""
        since_partial_s = 0.0
        while not self._stopping.is_set():
            pause_s = self._once()
            since_partial_s += pause_s
            if since_partial_s >= _PARTIAL_S:
                since_partial_s = 0.0
                if self._pusher.memory is not None and self._pusher.memory.partial:
                    self._pusher.look_at_partial()
            self._stopping.wait(pause_s)
        self._pusher.close()

    def _once(self) -> float:
        """One window; how long to wait before the next one, s."""
        try:
            more = self._pusher.step()
        except PgtareError as ex:
            return self._failed(str(ex))
        except Exception as ex:  # whatever it is: the agent goes on
            return self._failed(f"{type(ex).__name__}: {ex}")
        self._spool.sent_seq = self._pusher.kept_seq
        if self._failures:
            self._log.forget("store", "")
            self._log.write(
                "info", "store", why="the store answers again", behind=self._pusher.behind
            )
            self._failures = 0
        return 0.0 if more else _LOOK_S

    def _failed(self, why: str) -> float:
        self._failures += 1
        self._log.once("error", "store", "", f"{why}; rows stay in the spool and are sent later")
        return wait_s(self._failures)

    def stop(self) -> None:
        """End it; what is not sent is sent after the next start."""
        self._stopping.set()
        if self.is_alive():
            self.join(_LAST_S)
