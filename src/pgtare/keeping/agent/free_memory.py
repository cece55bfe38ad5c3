"""Gives memory that is no longer used back to the system; what the C library keeps adds up."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

#: From malloc.h: how many arenas threads may take memory from.
_M_ARENA_MAX = -8


def use_one_arena() -> None:
    """Let all threads take memory from one place: each of their own keeps what it once needed."""
    with_glibc = _function("mallopt")
    if with_glibc is not None:
        with_glibc(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return free memory to the system; takes about a millisecond."""
    with_glibc = _function("malloc_trim")
    if with_glibc is not None:
        with_glibc(0)


@functools.cache
def _function(name: str) -> Callable[..., int] | None:
    """A function of the C library; None, if it has none of that name."""
    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found
