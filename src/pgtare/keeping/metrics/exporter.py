"""Keeps the metrics of all servers in step with the commits of the agent, and serves them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry, Info, ProcessCollector

import pgtare
from pgtare.errors import UsageError
from pgtare.keeping.metrics import scrape_server
from pgtare.keeping.metrics.collector import SnapshotCollector
from pgtare.keeping.metrics.server_totals import (
    LOSSES_PART,
    WAITS_PART,
    ServerSnapshot,
    ServerTotals,
)
from pgtare.keeping.metrics.wait_totals import MOST_SERIES, WaitTotals

#: The stored reading of a server and a part, or None.
Stored = Callable[[str, str], pa.Table | None]
#: Tables whose rows become metrics.
_TABLES = ("waits", "sessions", "activity", "ticks", "agent", "gaps", "findings")
#: The agent's reading of its open findings.
_FINDINGS_PART = "findings"


class MetricsExporter:
    """The agent's metrics: totals that are part of every commit, and what was committed, served.

    stored: of the spool. most: time series of a server. All methods but those of the collector are
    called by the thread that commits. A total is shown only after the commit that holds it has been
    written; so what was ever shown is what the next agent goes on from, at least.
    """

    def __init__(
        self,
        stored: Stored,
        clock: Callable[[], float] = time.monotonic,
        most: int = MOST_SERIES,
    ) -> None:
        self._stored, self._clock, self._most = stored, clock, most
        self._servers: dict[str, ServerTotals] = {}
        self._committed: dict[str, ServerSnapshot] = {}
        self.collector = SnapshotCollector(clock)
        """what is shown now; any thread may ask it"""
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)
        Info("pgtare_agent", "The agent.", registry=self.registry).info(
            {"version": pgtare.__version__}
        )
        ProcessCollector(registry=self.registry)

    def grow(
        self, rows: Mapping[str, pa.Table], interval_s: float
    ) -> dict[tuple[str, str], pa.Table]:
        """Add the rows of a commit, by table; the readings that belong to the same commit."""
        found: dict[tuple[str, str], pa.Table] = {}
        for server, some in _by_server(rows).items():
            parts = self._totals(server).add(some, interval_s, self._clock())
            found |= {(server, part): table for part, table in parts.items()}
        return found

    def committed(self, up: Mapping[str, bool], *, written: bool) -> None:
        """The commit of the rows that `grow` was given last has ended.

        up: the servers that are watched, and whether each is connected. written: with all commits
        before it; else the spool holds them in memory, and what is shown stays as it was.
        """
        if written:
            self._committed = {name: self._totals(name).snapshot() for name in up}
        self.collector.show(dict(up), self._committed, written)

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Serve from now on, by threads that end with the process; the address.

        Raises UsageError if the address cannot be used.
        """
        try:
            server = scrape_server.serve(host, port, self.registry)
        except OSError as ex:
            raise UsageError(
                f"metrics cannot be served on {host}, port {port}: {ex.strerror or ex}; name "
                "another address, as in --metrics 127.0.0.1:9188"
            ) from ex
        found_host, found_port = server.server_address[:2]
        return str(found_host), int(found_port)

    def _totals(self, server: str) -> ServerTotals:
        if server not in self._servers:
            totals = ServerTotals(WaitTotals(self._most))
            parts = WAITS_PART, LOSSES_PART, _FINDINGS_PART
            totals.restore(*(self._stored(server, part) for part in parts))
            self._servers[server] = totals
        return self._servers[server]


def _by_server(rows: Mapping[str, pa.Table]) -> dict[str, dict[str, pa.Table]]:
    """Rows by server and table; those of the agent itself are left out."""
    found: dict[str, dict[str, Any]] = {}
    for name in _TABLES:
        table = rows.get(name)
        if table is None or not table.num_rows:
            continue
        encoded = table["server"].combine_chunks().dictionary_encode()
        servers, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        if len(servers) > 1:  # sort once, then cut: there may be a hundred
            table = table.take(np.argsort(codes, kind="stable"))
        begins = np.searchsorted(np.sort(codes), np.arange(len(servers) + 1))
        for server, begin, end in zip(servers, begins[:-1], begins[1:], strict=True):
            if server:
                found.setdefault(server, {})[name] = table.slice(begin, end - begin)
    return found
