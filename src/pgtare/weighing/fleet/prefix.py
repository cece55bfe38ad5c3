"""Which kind of raw data a path or an address means."""

from __future__ import annotations

from pathlib import Path

from pgtare.weighing.fleet.raw_data import LocalData, RawData


def open_prefix(prefix: str) -> RawData:
    """The raw data at a path or an address such as s3://BUCKET/PATH. Raises UsageError."""
    if "://" not in prefix:
        # whoever else reads it may have another working directory
        return LocalData(str(Path(prefix).absolute()))
    from pgtare.weighing.fleet.bucket import BucketData

    return BucketData(prefix)
