"""Parquet files by DuckDB: columns in, columns out; a local file is all that is ever touched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

# A local file is all that a connection may touch, and extensions come from nowhere.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def write(path: Path, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write equally long columns to `path`, synced and readable by its owner only.

    Raises OSError or duckdb.Error; what was begun is the caller's to remove.
    """
    # DuckDB finds the columns by this variable's name (replacement scan); it needs each column
    # contiguous.
    contiguous = {name: np.ascontiguousarray(values) for name, values in columns.items()}
    assert contiguous
    quoted = str(path).replace("'", "''")
    with duckdb.connect(config=_CONFIG) as connection:
        connection.execute(
            f"COPY (FROM contiguous) TO '{quoted}' (FORMAT parquet, COMPRESSION zstd)"
        )
    os.chmod(path, 0o600)
    sync(path)


def read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of the file at `path`. Raises duckdb.Error."""
    # A path is a glob pattern to DuckDB: "run[1]" would read "run1".
    pattern = "".join(f"[{char}]" if char in "*?[" else char for char in str(path.absolute()))
    with duckdb.connect(config=_CONFIG) as connection:
        columns: dict[str, np.ndarray[Any, Any]] = connection.execute(
            "FROM read_parquet($1)", [pattern]
        ).fetchnumpy()
    return columns


def sync(path: Path) -> None:
    """Make a file or directory safe against a power failure."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
