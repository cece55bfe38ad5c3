"""Keeps pandas out of the process: pyarrow loads it, if it is installed, to know its types."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


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
