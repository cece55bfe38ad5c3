"""Parquet files by DuckDB, which is in the extra `agent`; a local file is all that is ever touched.

What DuckDB says of a failure is for those who write DuckDB; it is translated here.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pgtare.kit import files

if TYPE_CHECKING:  # most commands start without it: it takes a while to load
    import duckdb

# A local file is all that a connection may touch, and extensions come from nowhere.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
#: Causes by the words of the system, if DuckDB gives no number.
_CAUSES = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
)


def load() -> None:
    """Load DuckDB, or raise ModuleNotFoundError: before anything is read that is to be written."""
    import duckdb  # noqa: F401


def write(path: Path, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write equally long columns to `path`, whole or not at all, synced, for its owner only.

    Raises OSError with the system's number of the cause.
    """
    import duckdb

    # DuckDB finds the columns by this variable's name (replacement scan); it needs each column
    # contiguous.
    contiguous = {name: np.ascontiguousarray(values) for name, values in columns.items()}
    assert contiguous
    try:
        with files.staged(path) as staging, duckdb.connect(config=_CONFIG) as connection:
            quoted = str(staging).replace("'", "''")
            connection.execute(
                f"COPY (FROM contiguous) TO '{quoted}' (FORMAT parquet, COMPRESSION zstd, "
                "USE_TMP_FILE false)"
            )
    except duckdb.Error as ex:
        number = _number(ex)
        raise OSError(number, os.strerror(number), str(path)) from ex


def _number(ex: duckdb.Error) -> int:
    """The system's number of what stopped DuckDB writing; EIO if it does not tell."""
    import duckdb

    message = str(ex)
    if isinstance(ex, duckdb.OutOfMemoryException):
        return errno.ENOMEM
    if found := re.search(r'"errno"\s*:\s*"(\d+)"', message):
        return int(found[1])
    return next((number for number in _CAUSES if os.strerror(number) in message), errno.EIO)
