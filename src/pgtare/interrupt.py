"""Signals while the command starts, also while the libraries are being loaded."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
INTERRUPTION = "interrupted; nothing of pgtare's own is left running"


def _leave(signum: int, frame: FrameType | None) -> None:
    # libraries of which half is loaded turn a KeyboardInterrupt into errors of their own
    os.write(2, f"pgtare: {INTERRUPTION}\n".encode())
    os._exit(INTERRUPTED)


def leave_at_interrupt() -> None:
    """From now on Ctrl-C ends the process at once: nothing has begun that had to be ended."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def keep_hangup() -> None:
    """Let SIGHUP wait until somebody takes it: to an agent it is a wish, not the end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def unwind_at_interrupt() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def compute_in_one_thread() -> None:
    """Keep the linear algebra of numpy to one thread, unless the environment says more.

    Its threads wait for each other by spinning, which on a busy machine costs several times what
    they do. They are made as the library is loaded, so this comes first.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
