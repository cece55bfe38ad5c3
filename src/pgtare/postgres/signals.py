"""Signals leave no server behind: SIGTERM unwinds, and none cuts a clean-up short."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

# SIGINT already raises KeyboardInterrupt; these two would end Python without unwinding.
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_ALL = (signal.SIGINT, *_ENDING)
# Someone who presses Ctrl-C twice means it once. The second press would otherwise cut short a
# clean-up that the first has only just begun and that does not yet hold signals back.
_SAME_WISH_S = 0.3
_acted_s = -_SAME_WISH_S
_may_let_finish = False


def _again() -> bool:
    """Whether a signal belongs to one that was acted on just now; notes the time if not."""
    global _acted_s
    now_s = time.monotonic()
    again = now_s - _acted_s < _SAME_WISH_S
    if not again:
        _acted_s = now_s
    return again


def _exit(signum: int, frame: FrameType | None) -> None:
    if not _again():
        raise SystemExit(128 + signum)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if not _again():
        raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def unwind_at_exit_signals() -> contextlib.ExitStack:
    """Turn SIGTERM and SIGHUP into SystemExit until the returned stack is closed.

    Those that follow at once on one that was acted on, Ctrl-C included, do nothing.
    Handlers of the application (and an ignored SIGHUP, as under nohup) are left alone, and outside
    the main thread, where Python allows no handlers, nothing is done.
    """
    undo = contextlib.ExitStack()
    if _in_main_thread():
        for signum in _ALL:
            before = signal.getsignal(signum)
            if before is signal.default_int_handler:
                signal.signal(signum, _interrupt)
                undo.callback(_restore, signum, before)
            elif before is signal.SIG_DFL and signum in _ENDING:
                signal.signal(signum, _exit)
                undo.callback(_restore, signum, before)
    return undo


@contextlib.contextmanager
def like_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP do what Ctrl-C does, so that what was measured is kept."""
    global _may_let_finish
    if not _in_main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in _ALL}
    for signum in _ENDING:
        if before[signum] is signal.SIG_DFL:
            signal.signal(signum, signal.default_int_handler)
    _may_let_finish = True
    try:
        yield
    finally:
        _may_let_finish = False
        for signum, handler in before.items():
            if handler is not None:
                signal.signal(signum, handler)


def let_finish() -> None:
    """What was measured is estimated and written: the next signal says how to give that up.

    It does nothing else, until the end of `like_interrupt`, and so does this outside of it.
    """
    if not (_may_let_finish and _in_main_thread()):
        return
    for signum in _ALL:
        if signal.getsignal(signum) not in (None, signal.SIG_IGN):
            signal.signal(signum, _say_that_it_ends)


def _say_that_it_ends(signum: int, frame: FrameType | None) -> None:
    if _again():
        return
    with contextlib.suppress(OSError):
        os.write(2, b"\npgtare: the result is on its way; interrupt once more to give it up\n")
    for each in _ALL:
        if signal.getsignal(each) is _say_that_it_ends:
            signal.signal(each, _interrupt)


def _restore(signum: signal.Signals, before: Any) -> None:
    # Clusters may close in another order than they opened: only our own handler is taken away.
    if _in_main_thread() and signal.getsignal(signum) in (_exit, _interrupt):
        signal.signal(signum, before)


@dataclass
class StopRequest:
    """Whether a signal has asked to stop.

    Not a threading.Event: its wait() holds a lock that set(), called by a handler in the same
    thread, would wait for.
    """

    made: bool = False


@contextlib.contextmanager
def asked_to_stop() -> Iterator[StopRequest]:
    """A request that the first ending signal makes; a later one ends the block.

    One that follows at once, as Ctrl-C pressed twice, is the same request.
    """
    asked = StopRequest()
    if not _in_main_thread():
        yield asked
        return
    with unwind_at_exit_signals():
        before = {signum: signal.getsignal(signum) for signum in _ALL}
        changed = [s for s in _ALL if before[s] is not None and before[s] is not signal.SIG_IGN]

        def restore() -> None:
            for signum in changed:
                signal.signal(signum, before[signum])

        def note(signum: int, frame: FrameType | None) -> None:
            asked.made = True
            _again()
            restore()

        for signum in changed:
            signal.signal(signum, note)
        try:
            yield asked
        finally:
            restore()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Hold back ending signals for a short, bounded piece of work; they act when it is done.

    Handlers are swapped rather than signals blocked: a blocked signal is delivered to one of the
    threads of numpy or DuckDB instead, and Python then acts in the main thread all the same.
    """
    if not _in_main_thread():
        yield
        return
    arrived: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in _ALL}
    changed = [s for s in _ALL if before[s] is not None and before[s] is not signal.SIG_IGN]
    for signum in changed:
        signal.signal(signum, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for signum in changed:
            signal.signal(signum, before[signum])
        if arrived:
            signal.raise_signal(arrived[0])
