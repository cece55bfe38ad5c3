"""Loading the server module: by the server, by a session, in two copies, and over a crash."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import pgtare
from pgtare.errors import UsageError
from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached, source_dir
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.own_session import connect
from pgtare.weighing.trials import Trials
from tests.process_limits import limit_files
from tests.servers import SESSIONS_LOAD_MODULES, crash, crashes, weighable
from tests.sessions import Connection, bare_session, eventually, one, setting
from tests.trials import MARKED, MARKER, share, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

LOAD = "LOAD 'pgtare'"


def notices_of(client: Connection, statement: str) -> list[str]:
    """The messages, with their hints, that a statement brings along."""
    said: list[str] = []
    client.add_notice_handler(lambda d: said.append(f"{d.message_primary}: {d.message_hint}"))
    client.execute(statement.encode())
    return said


# Slots


def test_slots_are_still_ours_after_they_were_used(server: Cluster) -> None:
    with bare_session(server) as client:
        for _ in range(3):
            row = client.execute(
                "SELECT slots_installed, slots_intact FROM pgtare.info()"
            ).fetchone()
    assert row is not None
    assert row[0] == row[1] >= 1


def protections(cluster: Cluster) -> list[tuple[int, str, str]]:
    """Size, protection and file offset of each mapping of the executable, in a backend."""
    with bare_session(cluster) as client:
        for _ in range(3):
            client.execute("SELECT 1")
        with open(f"/proc/{client.info.backend_pid}/maps") as maps:
            lines = [line.split() for line in maps if line.rstrip().endswith("/postgres")]
    result = []
    for addresses, protection, offset, *_ in lines:
        start, end = (int(address, 16) for address in addresses.split("-"))
        result.append((end - start, protection, offset))
    return result


def test_memory_of_the_executable_is_as_protected_as_without_the_module(
    binaries: Binaries, request: pytest.FixtureRequest
) -> None:
    """RELRO pages are opened to write a slot, and must be closed again, exactly those."""
    name = "server18" if binaries.origin == "wheel" else "server15"
    with Cluster(binaries) as plain:
        expected = protections(plain)
    assert expected
    assert protections(request.getfixturevalue(name)) == expected


# Loaded by a session


@pytest.fixture
def bare18(wheel: Binaries) -> Iterator[Cluster]:
    """PostgreSQL 18 that preloads nothing, with the functions in database postgres."""
    with _bare(wheel) as cluster:
        yield cluster


@contextlib.contextmanager
def _bare(binaries: Binaries) -> Iterator[Cluster]:
    module = loadable(binaries)
    with Cluster(binaries) as cluster:
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        yield cluster


@SESSIONS_LOAD_MODULES
def test_trial_with_sessions_that_did_load(bare18: Cluster) -> None:
    numbers = []
    for _ in range(2):  # the segment lasts from trial to trial
        with trial(bare18) as running:
            numbers.append(running.trials.status().trial)
    assert numbers == [2, 4]
    with trial(bare18) as running, bare_session(bare18) as client, bare_session(bare18) as outside:
        client.execute(LOAD)
        client.execute(LOAD)  # twice is harmless
        seen = [setting(client)[0] for _ in range(20)]
        outside.execute("SELECT 1")
        rows = running.observed(client, 21)
        assert len(running.drained()) == 21
    rows = rows[1:]
    assert seen == [MARKED[arm][MARKER] for arm in rows["arm"]]
    assert share(rows, UnitFlag.NO_ARRIVAL) == 0


@SESSIONS_LOAD_MODULES
def test_session_preload_takes_in_new_sessions_only(bare18: Cluster) -> None:
    with bare_session(bare18) as old:
        bare18.configure({"session_preload_libraries": "pgtare"})
        bare18.reload()
        with trial(bare18) as running, bare_session(bare18) as new:
            old.execute("SELECT 1")
            new.execute("SELECT 1")
            running.observed(new, 1)
            assert len(running.drained()) == 1


@SESSIONS_LOAD_MODULES
def test_sessions_that_end_in_a_trial_do_no_harm(bare18: Cluster) -> None:
    """Their dynamic memory is gone before the last of their exit callbacks runs."""
    # on a busy machine a hundred connections take a while
    with trial(bare18, sessions=8, seconds=150.0) as running:
        for i in range(100):
            with bare_session(bare18, options="-c session_preload_libraries=pgtare") as client:
                client.execute("SELECT 1")
                if i % 10 == 0:
                    with contextlib.suppress(psycopg.Error):
                        client.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        eventually(lambda: running.trials.status().sessions_now == 0)
        assert running.trials.status().sessions == 100
    assert crashes(bare18) == []


@SESSIONS_LOAD_MODULES
def test_kill_switch_reaches_sessions_that_load_it_themselves(bare18: Cluster) -> None:
    options = "-c session_preload_libraries=pgtare"
    with trial(bare18) as running, bare_session(bare18, options=options) as client:
        client.execute("SELECT 1")
        bare18.configure({"pgtare.enabled": False})
        bare18.reload()
        assert setting(client) == ("4MB", "default")
        assert running.trials.status().end_reason == "kill switch"


#: Too little for the module's segment, yet enough for the server's own files, in MiB.
FULL = 8


@pytest.fixture
def full18(wheel: Binaries) -> Iterator[Cluster]:
    """PostgreSQL 18 without room for a shared segment.

    A limit on the size of files simulates a full /dev/shm: both make posix_fallocate fail.
    """
    module = loadable(wheel)
    with Cluster(wheel) as cluster:
        limit_files(cluster, cluster.postmaster_pid, FULL)
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        yield cluster


def test_no_room_for_shared_memory_lets_sessions_in(full18: Cluster) -> None:
    full18.configure({"session_preload_libraries": "pgtare"})
    full18.reload()
    for _ in range(3):
        with bare_session(full18) as client:
            assert one(client, "SELECT usable FROM pgtare.info()") is False
    assert "pgtare is not usable in this session" in full18.log_path.read_text()
    assert crashes(full18) == []
    with pytest.raises(UsageError, match="no shared memory in this server"), trial(full18):
        pass
    assert_nothing_to_drain(full18)


@SESSIONS_LOAD_MODULES
def test_room_for_shared_memory_is_found_later(full18: Cluster) -> None:
    with bare_session(full18) as client:
        said = notices_of(client, LOAD)
        assert any("not usable" in line and "shared_preload_libraries" in line for line in said)
    limit_files(full18, full18.postmaster_pid, None)
    with bare_session(full18) as client:
        assert notices_of(client, LOAD) == []
        assert one(client, "SELECT usable FROM pgtare.info()") is True


@pytest.mark.debian
def test_load_before_17_says_what_to_do(debian15: Binaries) -> None:
    module = loadable(debian15)
    with Cluster(debian15) as cluster, bare_session(cluster) as client:
        said = notices_of(client, f"LOAD '{module.library}'")
    assert len(said) == 1
    assert "not usable in this session" in said[0]
    assert "shared_preload_libraries" in said[0]


@pytest.mark.debian
def test_session_preload_before_17_lets_sessions_in(debian15: Binaries) -> None:
    module = loadable(debian15)
    with Cluster(debian15, {"session_preload_libraries": module.library}) as cluster:
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
            assert one(connection, "SELECT usable FROM pgtare.info()") is False
        with pytest.raises(UsageError, match="no shared memory in this server"), trial(cluster):
            pass
        assert_nothing_to_drain(cluster)
        assert "not usable in this session" in cluster.log_path.read_text()


def assert_nothing_to_drain(cluster: Cluster) -> None:
    """Every function that reads the shared memory says that there is none."""
    with cluster.connect() as connection:
        for call in ("trial_drain()", "trial_status()", "trial_stop()"):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                connection.execute(f"SELECT pgtare.{call}".encode())
    assert crashes(cluster) == []


# Two copies


@pytest.fixture(scope="module")
def other_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module with another version number and smaller structures."""
    root = tmp_path_factory.mktemp("other")
    shutil.copytree(source_dir(), root, dirs_exist_ok=True)
    for header, old, new in (
        ("common/version.h", f'"{pgtare.__version__}"', '"0.0.0"'),
        ("pgtare/pgtare.h", "#define MAX_RINGS 1024", "#define MAX_RINGS 512"),
    ):
        text = (root / header).read_text()
        assert old in text
        (root / header).write_text(text.replace(old, new))
    return root


@pytest.mark.slow
def test_second_copy_of_the_library_lets_sessions_in(
    binaries: Binaries, other_source: Path
) -> None:
    module = loadable(binaries)
    other = build_cached(binaries, "pgtare", other_source)
    with Cluster(
        binaries, {"session_preload_libraries": other.library}, preload=[module.library]
    ) as cluster:
        with cluster.connect() as connection:
            connection.execute(module.create_sql.encode())
        with trial(cluster) as running, bare_session(cluster) as client:
            client.execute("SELECT 1")
            running.observed(client, 1)
        assert "another copy of pgtare is loaded already" in cluster.log_path.read_text()


@SESSIONS_LOAD_MODULES
@pytest.mark.slow
def test_two_versions_in_one_server_keep_apart(bare18: Cluster, other_source: Path) -> None:
    """As after an upgrade, with sessions that hold the old library."""
    other = build_cached(bare18.binaries, "pgtare", other_source)
    with bare_session(bare18) as old, trial(bare18) as running, bare_session(bare18) as new:
        assert notices_of(old, f"LOAD '{other.library}'") == []
        assert notices_of(new, LOAD) == []
        for client in (old, new):
            client.execute("SELECT 1")
            client.execute("SELECT 1")
        running.observed(new, 2)
        assert len(running.drained()) == 2
        assert setting(old) == ("4MB", "default")
    assert crashes(bare18) == []


# Crashes and restarts


def assert_works(cluster: Cluster) -> None:
    with trial(cluster) as running, bare_session(cluster) as client:
        client.execute(LOAD if cluster.binaries.origin == "wheel" else "SELECT 1")
        for _ in range(20):
            client.execute("SELECT 1")
        eventually(lambda: running.trials.status().observations >= 20)


@pytest.fixture(
    params=[
        "preloaded",
        pytest.param("session", marks=SESSIONS_LOAD_MODULES),
    ]
)
def frail(request: pytest.FixtureRequest, wheel: Binaries) -> Iterator[Cluster]:
    """A server whose crash harms no other test; the module loaded in either way."""
    if request.param == "session":
        with _bare(wheel) as cluster:
            yield cluster
        return
    with weighable(wheel) as cluster:
        yield cluster


def test_trial_works_after_a_crash_of_a_session_that_took_part(frail: Cluster) -> None:
    with bare_session(frail) as client, contextlib.suppress(psycopg.OperationalError), trial(frail):
        client.execute("LOAD 'pgtare'")
        for _ in range(10):
            client.execute("SELECT 1")
        crash(frail, client.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    assert_works(frail)


def test_trial_works_after_a_restart_in_the_midst_of_one(frail: Cluster) -> None:
    with bare_session(frail) as client, contextlib.suppress(psycopg.OperationalError), trial(frail):
        client.execute(LOAD)
        client.execute("SELECT 1")
        frail.restart()
    with connect(frail.dsn()) as connection:
        assert Trials(connection).status().running is False
    assert_works(frail)
    assert crashes(frail) == []


def test_stop_of_the_server_waits_for_nothing(wheel: Binaries) -> None:
    with (
        weighable(wheel) as cluster,
        bare_session(cluster) as client,
        contextlib.suppress(psycopg.OperationalError),
        trial(cluster),
    ):
        client.execute("SELECT 1")
        client.execute("SELECT 1")
        start = time.monotonic()
        assert cluster.stop() == "fast"
        assert time.monotonic() - start < 50  # the trial lasts for 60 s
