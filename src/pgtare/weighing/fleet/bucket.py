"""Raw data in a bucket, or wherever else fsspec reads: `s3://BUCKET/PREFIX` by s3fs.

Addresses and keys come from where other tools for S3 take them: the environment (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, …) and ~/.aws.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from pgtare.errors import MeasurementError, UsageError
from pgtare.weighing.fleet.raw_data import FLEET_FILE, SERVERS, WHAT, RawData
from pgtare.weighing.weigh import store

EXTRA = "pip install 'pgtare[s3]'"


class BucketData(RawData):
    """Below an address that fsspec understands. The connection is made where it is used."""

    def __getstate__(self) -> dict[str, str]:
        return {"prefix": self.prefix}

    def names(self) -> list[str]:
        path = f"{self._root}/{SERVERS}"
        try:
            listed = self._files.ls(path, detail=True, refresh=True)
        except FileNotFoundError as ex:
            raise UsageError(
                f"there is no {WHAT} at {self.prefix}: there is nothing below {path}"
            ) from ex
        except Exception as ex:
            raise self._failed(path, ex) from ex
        return [_last(one["name"]) for one in listed if one["type"] == "directory"]

    def files(self, server: str) -> list[str]:
        path = f"{self._root}/{SERVERS}/{server}"
        try:
            listed = self._files.ls(path, detail=True, refresh=True)
        except Exception as ex:
            raise self._failed(path, ex) from ex
        return [_last(one["name"]) for one in listed if one["type"] == "file"]

    def text(self) -> str | None:
        path = f"{self._root}/{FLEET_FILE}"
        try:
            found: bytes = self._files.cat_file(path)
            return found.decode()
        except FileNotFoundError:
            return None
        except Exception as ex:
            raise self._failed(path, ex) from ex

    @contextlib.contextmanager
    def fetched(self, server: str, names: Sequence[str] = store.FILES) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="pgtare-fleet-") as temporary:
            directory = Path(temporary) / server
            directory.mkdir()
            for name in names:
                path = f"{self._root}/{SERVERS}/{server}/{name}"
                try:
                    self._files.get_file(path, str(directory / name))
                except Exception as ex:
                    raise self._failed(path, ex) from ex
            yield directory

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        scheme = self.prefix.partition("://")[0]
        try:
            import fsspec

            files, root = fsspec.core.url_to_fs(self.prefix)
        except ImportError as ex:
            raise UsageError(f"reading {scheme}:// needs more packages: {EXTRA}") from ex
        except ValueError as ex:
            raise UsageError(f"{self.prefix} cannot be read: {ex}") from ex
        return files, str(root).rstrip("/")

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    def _failed(self, path: str, ex: Exception) -> MeasurementError:
        """The error for what a store refuses: nothing is left out because of it."""
        cause = str(ex).strip().splitlines()
        why = cause[0] if cause else type(ex).__name__
        return MeasurementError(
            f"{path} could not be read ({why.rstrip('.')}): check the address and the keys, and "
            "try again"
        )


def _last(path: str) -> str:
    return PurePosixPath(path.rstrip("/")).name
