"""A server's processes are found by a connection to it."""

from __future__ import annotations

import struct

import pytest

from pgtare.observing.flame import processes
from pgtare.postgres import own_session
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.loads import repeating
from tests.preloaded import preloaded
from tests.sessions import Connection

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seconds", [0, *(pytest.param(by, marks=pytest.mark.slow) for by in (3600, -3600))]
)
def test_over_tcp_though_the_clock_was_set(
    wheel: Binaries, server18: Cluster, seconds: int
) -> None:
    """Next to another server, whose processes are others, and while sessions come and go."""

    def connects(connection: Connection, number: int) -> None:
        cluster.connect().close()

    with (
        preloaded(wheel, "step_clock.c", "PGTARE_CLOCK_STEP", 8) as (binaries, step),
        Cluster(binaries, tcp=True) as cluster,
    ):
        step[:] = struct.pack("q", seconds * 1_000_000)
        with (
            repeating(cluster.dsn(), 1, connects),
            own_session.connect(cluster.dsn(tcp=True)) as connection,
        ):
            target = processes.of_connection(connection)
            assert target.postmaster == cluster.postmaster_pid != server18.postmaster_pid
            assert target.pids
            assert connection.info.backend_pid not in target.pids


@pytest.mark.slow
def test_a_server_elsewhere_is_not_taken_for_one_here(
    server18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a process here has the number that serves us there, a sibling does not."""
    with server18.connect() as connection:
        children = processes.children
        assert processes._by_processes(connection) == server18.postmaster_pid
        monkeypatch.setattr(processes, "children", lambda pid: children(pid)[1:])
        assert processes._by_processes(connection) is None
