"""Fixtures of the tests of sql_trace."""

from collections.abc import Iterator

import pytest

from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from tests.servers import Connection
from tests.trace_records import session, tracing


@pytest.fixture(scope="session")
def trace18(wheel: Binaries) -> Iterator[Cluster]:
    with tracing(wheel) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def trace15(debian15: Binaries) -> Iterator[Cluster]:
    with tracing(debian15) as cluster:
        yield cluster


@pytest.fixture(params=[pytest.param("trace18"), pytest.param("trace15", marks=pytest.mark.debian)])
def tracer(request: pytest.FixtureRequest) -> Cluster:
    """Both servers, one after the other."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def client(tracer: Cluster) -> Iterator[Connection]:
    """A session whose trace a test looks at."""
    with session(tracer) as connection:
        yield connection


@pytest.fixture
def onlooker(tracer: Cluster) -> Iterator[Connection]:
    """A session that looks."""
    with session(tracer) as connection:
        yield connection
