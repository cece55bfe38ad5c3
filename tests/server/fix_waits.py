"""Fixtures of the tests of wait_event_timing."""

from collections.abc import Iterator

import pytest

from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from tests.servers import Connection, serving, session


@pytest.fixture(scope="session")
def waits18(wheel: Binaries) -> Iterator[Cluster]:
    with serving(wheel) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def waits15(debian15: Binaries) -> Iterator[Cluster]:
    with serving(debian15) as cluster:
        yield cluster


@pytest.fixture(
    scope="module", params=["wheel", pytest.param("debian15", marks=pytest.mark.debian)]
)
def each_server(request: pytest.FixtureRequest) -> Binaries:
    """Both servers, for what a module of tests starts once."""
    found: Binaries = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=[pytest.param("waits18"), pytest.param("waits15", marks=pytest.mark.debian)])
def timed(request: pytest.FixtureRequest) -> Cluster:
    """Both servers, one after the other, each capturing in all processes."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def watched(timed: Cluster) -> Iterator[Connection]:
    """A session whose waits a test looks at."""
    with session(timed) as connection:
        yield connection


@pytest.fixture
def observer(timed: Cluster) -> Iterator[Connection]:
    """A session that looks."""
    with session(timed) as connection:
        yield connection
