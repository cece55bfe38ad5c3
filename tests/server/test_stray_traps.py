"""A server that a stray trap of a watchpoint ended is distinguished from other deaths."""

import os
import signal
import time

import psycopg
import pytest
from bench.truth import stray
from bench.truth.stray import StrayTrap, stray_traps_reported

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("deadly", "message"),
    [(signal.SIGTRAP, StrayTrap), (signal.SIGSEGV, psycopg.OperationalError)],
)
def test_only_a_trap_asks_for_another_run(
    deadly: signal.Signals, message: type[Exception], binaries: Binaries, as_root: None
) -> None:
    def die(cluster: Cluster, watched: psycopg.Connection) -> None:
        with stray_traps_reported([cluster.log_path]):
            os.kill(watched.info.backend_pid, deadly)
            time.sleep(0.1)
            watched.execute("SELECT 1")

    with (
        Cluster(binaries, stray.SETTINGS) as cluster,
        psycopg.connect(cluster.dsn()) as watched,
        pytest.raises(message),
    ):
        die(cluster, watched)
