"""Where the page's rows are: a spool on this machine, or a store of many agents."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pgtare.keeping.spool import manifest
from pgtare.keeping.store.address import StoreAddress

#: A store is assumed to have new rows this often, s: agents send about once a minute.
_NEWS_S = 30


@dataclass(frozen=True)
class LiveSource:
    """module: the process that answers queries, started with one argument. what: its name."""

    module: str
    argument: str
    what: str
    directory: Path | None = None

    @staticmethod
    def of(source: Path | StoreAddress) -> LiveSource:
        """The source for a directory or an address."""
        if isinstance(source, StoreAddress):
            return LiveSource("pgtare.keeping.live.store_worker", source.url, "store")
        return LiveSource("pgtare.keeping.live.query_worker", str(source), "spool", source)

    def news(self) -> int:
        """A number that changes when there may be new rows."""
        if self.directory is None:
            return int(time.time() // _NEWS_S)
        try:
            return (self.directory / manifest.NEWEST).stat().st_mtime_ns
        except OSError:
            return 0
