"""Parquet files by DuckDB: columns in, columns out; a local file is all that is ever touched.

What DuckDB says of a failure is for those who write DuckDB; it is translated here, for all callers.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pgtare.errors import MeasurementError, PgtareError, UsageError

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

#: What to do about a damaged file.
REMEDY = "restore it from a copy, or measure again"


def write(path: Path, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write equally long columns to `path`, whole or not at all, synced, for its owner only.

    Raises OSError with the system's number of the cause.
    """
    import duckdb

    # DuckDB finds the columns by this variable's name (replacement scan); it needs each column
    # contiguous.
    contiguous = {name: np.ascontiguousarray(values) for name, values in columns.items()}
    assert contiguous
    staging = path.with_name(f".{path.name}.partial")
    quoted = str(staging).replace("'", "''")
    try:
        staging.unlink(missing_ok=True)
        staging.touch(mode=0o600)  # nobody else reads what is only half written either
        with duckdb.connect(config=_CONFIG) as connection:
            connection.execute(
                f"COPY (FROM contiguous) TO '{quoted}' (FORMAT parquet, COMPRESSION zstd, "
                "USE_TMP_FILE false)"
            )
        sync(staging)
        os.replace(staging, path)
        sync(path.absolute().parent)
    except duckdb.Error as ex:
        number = _number(ex)
        raise OSError(number, os.strerror(number), str(path)) from ex
    finally:
        staging.unlink(missing_ok=True)


def _number(ex: duckdb.Error) -> int:
    """The system's number of what stopped DuckDB writing; EIO if it does not tell."""
    import duckdb

    message = str(ex)
    if isinstance(ex, duckdb.OutOfMemoryException):
        return errno.ENOMEM
    if found := re.search(r'"errno"\s*:\s*"(\d+)"', message):
        return int(found[1])
    return next((number for number in _CAUSES if os.strerror(number) in message), errno.EIO)


def read(path: Path, wanted: Iterable[str] = ()) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of the file at `path`, with all that are wanted.

    Raises UsageError if the file cannot be read, PgtareError if it is damaged, and MeasurementError
    if it needs too much memory.
    """
    import duckdb

    # A path is a glob pattern to DuckDB: "run[1]" would read "run1".
    pattern = "".join(f"[{char}]" if char in "*?[" else char for char in str(path.absolute()))
    try:
        with path.open("rb"):
            pass  # DuckDB says no more than that nothing matches the pattern
        with duckdb.connect(config=_CONFIG) as connection:
            columns: dict[str, np.ndarray[Any, Any]] = connection.execute(
                "FROM read_parquet($1)", [pattern]
            ).fetchnumpy()
    except OSError as ex:
        raise UsageError(
            f"{path} cannot be read: {ex.strerror}; check that it is there, and yours to read"
        ) from ex
    except duckdb.OutOfMemoryException as ex:
        raise MeasurementError(f"{path} needs more memory than this machine can give") from ex
    except duckdb.Error as ex:
        raise PgtareError(f"{path} is damaged: it cannot be read as Parquet; {REMEDY}") from ex
    if missing := [name for name in wanted if name not in columns]:
        raise PgtareError(f"{path} is damaged: it lacks the column {missing[0]}; {REMEDY}")
    return columns


def sync(path: Path) -> None:
    """Make a file or directory safe against a power failure."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
