"""Keeps the agent's process small: no pandas, and free memory goes back to the system."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

#: From malloc.h: how many arenas threads may take memory from.
_M_ARENA_MAX = -8


class _NoPandas:
    """A finder ahead of all others, which says that there is no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=name)
        return None


def leave_pandas_out() -> None:
    """Have pyarrow look for pandas once, and miss it: that spares 37 MB.

    pyarrow looks no more afterwards; everybody else finds pandas as before.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def use_one_arena() -> None:
    """Let all threads take memory from one place: each of their own keeps what it once needed."""
    _call("mallopt", _M_ARENA_MAX, 1)


def give_back() -> None:
    """Return free memory to the system; takes about a millisecond."""
    _call("malloc_trim", 0)


def _call(name: str, *values: int) -> None:
    """Call a function of the C library, if it has one of that name: glibc has."""
    function = getattr(_library(), name, None)
    if function is not None:
        function(*values)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
