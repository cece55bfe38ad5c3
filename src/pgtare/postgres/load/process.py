"""A child process that never outlives its owner, with the tail of what it says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from pgtare.postgres import signals

_KEPT_LINES = 200
_LOOK_S = 0.01
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Child:
    """A program in a process group of its own, its standard error read line by line.

    Ctrl-C at the terminal does not reach it: its owner stops it. It ends with the thread that
    started it, even if that is killed (Linux only), so start it from a thread that lives as long
    as the load.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """Start it. Raises OSError if the program cannot be run."""
        self._on_line = on_line
        self._lock = threading.Lock()
        self._stderr: deque[str] = deque(maxlen=_KEPT_LINES)
        self._stdout: deque[str] = deque(maxlen=_KEPT_LINES)
        with contextlib.ExitStack() as failed:
            # an exception of a signal that comes while Python forks is printed, and lost
            with signals.deferred():
                self._popen = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    env=dict(env),
                    start_new_session=True,
                    preexec_fn=die_with(os.getpid()),
                )
                self._readers = [
                    threading.Thread(target=self._read, args=(pipe, kept), daemon=True)
                    for pipe, kept in (
                        (self._popen.stderr, self._stderr),
                        (self._popen.stdout, self._stdout),
                    )
                ]
                failed.callback(self._kill)
                for reader in self._readers:
                    reader.start()
            failed.pop_all()

    @property
    def pid(self) -> int:
        """Its process id, which is its group's as well."""
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._popen.poll()

    @property
    def stderr(self) -> list[str]:
        """The last lines of its standard error."""
        with self._lock:
            return list(self._stderr)

    @property
    def stdout(self) -> list[str]:
        """The last lines of its standard output."""
        with self._lock:
            return list(self._stdout)

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end and the last of its output.

        Raises subprocess.TimeoutExpired. If anything interrupts the wait, the child is killed.
        """
        try:
            status = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise
        except BaseException:
            self._kill()
            raise
        self._join()
        return status

    def stop(self, patience_s: float = 5.0) -> None:
        """End it: SIGINT, after `patience_s` seconds SIGKILL, for its whole group. Never raises."""
        try:
            if self._popen.poll() is None:
                self._signal(signal.SIGINT)
                self._end_group(patience_s)
        finally:
            self._kill()

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._popen.wait()
        self._join()

    def _end_group(self, patience_s: float) -> None:
        """Wait for its end, and kill what it leaves: a shell's background jobs ignore SIGINT."""
        pid, deadline = self._popen.pid, time.monotonic() + patience_s
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            # Not reaped, so that the number stays its group's.
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(_LOOK_S)
            os.killpg(pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Only while it is not reaped: afterwards the number may be another process's.
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)

    def _join(self) -> None:
        for reader in self._readers:
            if reader.ident is not None:
                reader.join(timeout=2.0)

    def _read(self, pipe: IO[str] | None, kept: deque[str]) -> None:
        if pipe is None:
            return
        with pipe:
            for line in pipe:
                with self._lock:
                    kept.append(line.rstrip("\n"))
                if self._on_line is not None and kept is self._stderr:
                    self._on_line(line.rstrip("\n"))


def die_with(owner: int) -> Callable[[], None]:
    """For preexec_fn: a signal to the child when the thread that started it is gone."""

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != owner:  # it was gone before the call above
            os._exit(1)

    return prepare
