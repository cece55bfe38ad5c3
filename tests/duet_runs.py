"""What the tests of the duet driver share: short runs and their latencies."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load.duet_plan import Length
from pgtare.postgres.load.duet_records import Outcome, Records

SELECT_1 = "SELECT 1;"
SHORT = Length(0.3)


def latencies_us(records: Records, cluster: int) -> np.ndarray[Any, Any]:
    rows = records.measured
    rows = rows[(rows["cluster"] == cluster) & (rows["outcome"] == Outcome.OK)]
    return np.asarray(rows["latency_ns"][np.argsort(rows["scheduled_ns"])] / 1000.0)


def assert_nothing_lost(records: Records) -> None:
    """Every thread has every cycle of every cluster, once."""
    rows = records.rows
    for thread in range(records.n_threads):
        for cluster in range(records.n_clusters):
            cycles = rows["cycle"][(rows["thread"] == thread) & (rows["cluster"] == cluster)]
            assert np.array_equal(np.sort(cycles), np.arange(len(cycles)))


def signal_driver(output: Path, number: signal.Signals, after_s: float = 0.0) -> None:
    """Send the driver that records there a signal."""
    time.sleep(after_s)
    for process in psutil.process_iter(["cmdline"]):
        if f"{output}.plan" in " ".join(process.info["cmdline"] or ()):
            process.send_signal(number)


def backend_of(cluster: Cluster) -> int:
    """The driver's only backend on a cluster, once it is there."""
    with cluster.connect() as connection:
        for _ in range(500):
            row = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgtare-load-%'"
            ).fetchone()
            if row is not None:
                return int(row[0])
            time.sleep(0.01)
    raise AssertionError("the driver has not connected")
