"""Fixtures of the tests with servers: of wait_event_timing and sql_trace."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, Script
from tests.commands import start_pgtare
from tests.loads import during
from tests.servers import serving, stopped_at_once, tracing
from tests.sessions import Connection, session


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts pgtare; none outlives the test."""
    programs: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        programs.append(start_pgtare(*words))
        return programs[-1]

    yield start
    for program in programs:
        if program.poll() is None:
            program.kill()
            program.communicate()


@pytest.fixture(scope="session")
def waits18(wheel: Binaries) -> Iterator[Cluster]:
    with stopped_at_once(serving(wheel)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def waits15(debian15: Binaries) -> Iterator[Cluster]:
    with stopped_at_once(serving(debian15)) as cluster:
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


@pytest.fixture
def sleeping(watched: Connection) -> Iterator[Connection]:
    """A session that sleeps 20 ms over and over, until the test is done."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            watched.execute("SELECT pg_sleep(0.02), 'sleeping'")

    with during(work):
        yield watched
        stop.set()


@pytest.fixture(scope="session")
def trace18(wheel: Binaries) -> Iterator[Cluster]:
    with stopped_at_once(tracing(wheel)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def trace15(debian15: Binaries) -> Iterator[Cluster]:
    with stopped_at_once(tracing(debian15)) as cluster:
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
def app(tracer: Cluster) -> Iterator[Connection]:
    """A session of an application that is recognised by its name."""
    with session(tracer, application_name="traced-app") as connection:
        yield connection


@pytest.fixture
def onlooker(tracer: Cluster) -> Iterator[Connection]:
    """A session that looks."""
    with session(tracer) as connection:
        yield connection


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Make a load of a script's text."""

    def make(text: str, **options: Any) -> LoadSpec:
        path = tmp_path / "script.sql"
        path.write_text(text)
        return LoadSpec(scripts=(Script(path),), **{"protocol": "prepared", "seed": 5, **options})

    return make
