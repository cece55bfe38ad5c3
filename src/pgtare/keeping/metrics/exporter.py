"""Keeps the metrics of all servers in step with the commits of the agent, and serves them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import InfoMetricFamily

import pgtare
from pgtare.errors import UsageError
from pgtare.keeping.agent.config import MetricsSettings
from pgtare.keeping.metrics import scrape_server
from pgtare.keeping.metrics.collector import MetricsSnapshot, SnapshotCollector, shown_buckets
from pgtare.keeping.metrics.server_totals import (
    LOSSES_PART,
    WAITS_PART,
    ServerSnapshot,
    ServerTotals,
)
from pgtare.keeping.metrics.wait_totals import WaitTotals

#: The stored reading of a server and a part, or None.
Stored = Callable[[str, str], pa.Table | None]
#: Tables whose rows become metrics.
_TABLES = ("waits", "sessions", "activity", "ticks", "agent", "gaps", "findings")
#: The agent's reading of its open findings.
_FINDINGS_PART = "findings"


class MetricsExporter:
    """The agent's metrics: totals that are part of every commit, and what was committed, served.

    stored: of the spool. All methods but those of the collector are called by the thread that
    commits. A total is shown only after the commit that holds it has been written; so what was
    ever shown is what the next agent goes on from, at least.
    """

    def __init__(
        self,
        settings: MetricsSettings,
        stored: Stored,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._stored, self._clock = settings, stored, clock
        self._buckets = len(shown_buckets(settings.all_buckets)) + 1
        self._servers: dict[str, ServerTotals] = {}
        self._committed: dict[str, ServerSnapshot] = {}
        self.collector = SnapshotCollector(settings.all_buckets, clock)
        """what is shown now; any thread may ask it"""
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)
        self.registry.register(_Version())
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
        self.collector.show(MetricsSnapshot(dict(up), self._committed, written))

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
            waits = WaitTotals(self._buckets, self._settings.most_series)
            totals = ServerTotals(waits, self._settings.most_series)
            parts = WAITS_PART, LOSSES_PART, _FINDINGS_PART
            totals.restore(*(self._stored(server, part) for part in parts))
            self._servers[server] = totals
        return self._servers[server]


class _Version:
    """Which version of pgtare answers."""

    def collect(self) -> list[InfoMetricFamily]:
        """The only metric."""
        found = InfoMetricFamily("pgtare_agent", "The agent.")
        found.add_metric([], {"version": pgtare.__version__})
        return [found]


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
