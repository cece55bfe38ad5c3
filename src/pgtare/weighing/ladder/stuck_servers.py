"""Ends what a step would wait for without end: servers that are there and do not answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def watched(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    """Call `end`, in another thread, if the block takes longer than this.

    A statement that waits for its answer cannot be given up by its client; it fails as soon as its
    server is gone.
    """
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
