"""The background worker that writes traces to files, and what it does when it cannot."""

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.profile import profile
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.records import RecordKind
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.os_account import server_account
from tests.commands import in_process, pgtare, start_pgtare, words
from tests.module_sources import write_waiter
from tests.process_limits import limit_memory
from tests.servers import SESSIONS_LOAD_MODULES, SLOWLY_ON_15, binaries_slowly_on_15, tracing
from tests.sessions import Connection, eventually, one, session
from tests.shorter_modules import shorter
from tests.small_volume import small_volume
from tests.trace_recorder import KNOWN, known
from tests.trace_worker import (
    SETTINGS,
    another,
    configure,
    latest,
    place,
    server_that_writes,
    with_statement,
    work,
    worker_of,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=SLOWLY_ON_15)
def each_server(request: pytest.FixtureRequest) -> Binaries:
    """PostgreSQL 18, and 15 where there is time."""
    found: Binaries = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def rotating(each_server: Binaries) -> Iterator[tuple[Cluster, Path]]:
    """Its worker begins another file after 64 kB."""
    with server_that_writes(each_server, shorter) as found:
        yield found


@pytest.fixture
def rotated(rotating: tuple[Cluster, Path]) -> Iterator[Connection]:
    """A session of that server."""
    with session(rotating[0], application_name="written") as connection:
        yield connection


@pytest.fixture
def app(writing: tuple[Cluster, Path]) -> Iterator[Connection]:
    with session(writing[0], application_name="written") as connection:
        yield connection


def test_known_waits_are_written(writing: tuple[Cluster, Path], app: Connection) -> None:
    """What the client's recorder finds, from files that nobody else can read."""
    cluster, directory = writing
    app.execute(KNOWN.encode())
    app.execute("SET sql_trace.level = 12")
    app.execute("SELECT nap(0)")
    for _ in range(4):
        app.execute("INSERT INTO truth (what, s) SELECT 'nap', nap(60)")
    app.execute("SELECT 'the end'")
    recording = latest(directory)
    with_statement(recording, "SELECT 'the end'")
    truth = known(cluster, "nap")

    def slept() -> float:
        return sum(
            line.total_ns
            for line in profile(ledgers.ledger(load(recording)), "event").lines
            if line.name == "Timeout/PgSleep"
        )

    eventually(lambda: slept() > 0.9 * truth)  # waits are read before calls
    trace = load(recording)
    assert not trace.damages
    for path in (directory, recording):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in recording.iterdir()} == {0o600}
    book = ledgers.ledger(trace)
    lines = {line.name: line.total_ns for line in profile(book, "event").lines}
    assert lines["Timeout/PgSleep"] == pytest.approx(truth, rel=0.02)
    assert lines["pgtare itself (estimated)"] > 0
    applications = {ring.application for ring in trace.rings.values()}
    assert applications == {"written"}
    assert {ring.kind for ring in trace.rings.values()} == {"sql", "waits"}
    assert trace.processor
    done = pgtare("trace", "profile", recording)
    assert done.returncode == 0, done.stderr
    assert "Timeout/PgSleep" in done.stdout
    status = in_process("trace", "status", "--dsn", cluster.dsn()).stdout
    assert (
        f"worker writes what is traced to {directory}; its latest recording: {recording.name}"
        in status
    )


def test_a_request_that_is_open_for_long(writing: tuple[Cluster, Path]) -> None:
    """What it has done so far is in the file, in case that nothing follows."""
    cluster, directory = writing
    with session(cluster) as client:
        client.execute("SET sql_trace.cpu_interval = -1; SET sql_trace.level = 1")
        client.execute("SELECT 'before'")
        with_statement(latest(directory), "SELECT 'before'")
        client.pgconn.send_query_params(b"SELECT pg_sleep(4)", [])

        def still_open() -> bool:
            chunks = [chunk for one in load(latest(directory)).streams.values() for chunk in one]
            return any(data[4] == RecordKind.OPEN for _, data in chunks)

        eventually(still_open)
        while client.pgconn.get_result() is not None:
            pass


def test_parallel_workers_are_written_with_their_leader(
    writing: tuple[Cluster, Path], app: Connection
) -> None:
    cluster, directory = writing
    with session(cluster) as other:
        other.execute("CREATE TABLE wide AS SELECT g AS n FROM generate_series(1, 100000) g")
        other.execute("ANALYZE wide")
    for setting in (
        "parallel_setup_cost = 0",
        "parallel_tuple_cost = 0",
        "min_parallel_table_scan_size = 0",
        "sql_trace.level = 12",
    ):
        app.execute(f"SET {setting}".encode())
    for _ in range(5):
        app.execute("SELECT count(*) FROM wide WHERE n % 3 = 1")
    app.execute("SELECT 'all workers are back'")
    recording = latest(directory)
    with_statement(recording, "SELECT 'all workers are back'")
    pid = app.info.backend_pid

    def workers() -> set[int]:
        book = ledgers.ledger(load(recording))
        return {p.ring.pid for p in book.processes if p.leader_pid == pid}

    assert pid not in eventually(workers)


def test_size_limit(writing: tuple[Cluster, Path], app: Connection) -> None:
    """It stops, says so in the file and in the log, and begins anew when there is room."""
    cluster, directory = writing
    recording = latest(directory)
    app.execute("SET sql_trace.level = 1")
    written = sum(path.stat().st_size for path in directory.rglob("*.pgtrace"))
    configure(cluster, worker_max_size=f"{written // 1024 + 128}kB")
    try:
        for _ in range(20):
            work(app, 2)
        trace = eventually(lambda: load(recording) if load(recording).end else None)
        assert trace.end["stopped_by"] == "size"
        assert not trace.damages
        assert "has stopped writing traces" in cluster.log_path.read_text()
        app.execute("SELECT 'goes on'")
    finally:
        configure(cluster, worker_max_size="1GB")
    following = another(directory, recording)
    app.execute("SELECT 'anew'")
    with_statement(following, "SELECT 'anew'")


@pytest.mark.slow
def test_files_rotate_and_deleted_ones_make_room(
    rotating: tuple[Cluster, Path], rotated: Connection
) -> None:
    """Of the recording under way as well, once the configuration is read again."""
    (cluster, directory), app = rotating, rotated
    recording = latest(directory)
    app.execute("SET sql_trace.level = 1")
    for _ in range(2):
        before = set(recording.iterdir())
        work(app, 10)
        eventually(lambda before=before: set(recording.iterdir()) - before)  # type: ignore[misc]
    app.execute("SELECT 'after all files'")
    trace = with_statement(recording, "SELECT 'after all files'")
    assert not trace.damages
    assert not sum(trace.losses.values())
    for path in sorted(recording.iterdir())[:-1]:
        path.unlink()
    cluster.reload()
    app.execute("SELECT 'in the room'")
    with_statement(recording, "SELECT 'in the room'")
    assert load(recording).end is None


def test_no_room_at_the_beginning(writing: tuple[Cluster, Path], app: Connection) -> None:
    """Where there is none, nothing is made, however often the configuration is read."""
    cluster, directory = writing
    app.execute("SET sql_trace.level = 1")
    recording = latest(directory)
    work(app, 10)
    eventually(lambda: sum(path.stat().st_size for path in recording.iterdir()) > 2 * 65536)
    log = cluster.log_path.read_text
    before = len(log())
    configure(cluster, worker_max_size="64kB")
    try:
        work(app, 2)
        eventually(lambda: "has stopped" in log()[before:])
        for times in (1, 2):
            cluster.reload()
            eventually(lambda n=times: log()[before:].count("what is there has reached") == n)  # type: ignore[misc]
        assert latest(directory) == recording
    finally:
        configure(cluster, worker_max_size="1GB")
    another(directory, recording)


def test_event_without_a_name(
    writing: tuple[Cluster, Path], app: Connection, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """PostgreSQL 17 and later raise an error for its number: that does not end the worker."""
    cluster, directory = writing
    library = build_cached(
        cluster.binaries, "waiter", write_waiter(tmp_path_factory.mktemp("waiter"))
    ).library
    app.execute(
        "CREATE OR REPLACE FUNCTION wait_in_numbers(int, int) RETURNS void LANGUAGE c "
        f"AS '{library}'".encode()
    )
    recording = latest(directory)
    app.execute("SET sql_trace.level = 12")
    app.execute("SELECT wait_in_numbers(%s, 1)", (0x07000000 + 120,))
    app.execute("SELECT 'waited'")
    with_statement(recording, "SELECT 'waited'")
    label = "Extension/???" if cluster.binaries.major >= 17 else "Extension/Extension"
    eventually(lambda: label in {event.label for event in load(recording).events.values()})
    app.execute("SELECT 'waited on'")
    assert with_statement(recording, "SELECT 'waited on'").end is None


def test_ring_for_which_there_is_no_memory(writing: tuple[Cluster, Path], app: Connection) -> None:
    """It is not read, which the log tells; all others are."""
    cluster, directory = writing
    recording = latest(directory)
    limit_memory(cluster, worker_of(recording), 2 << 20)
    try:
        with session(cluster) as large:
            large.execute("SET sql_trace.ring_size = '16MB'; SET sql_trace.level = 1")
            warning = "cannot read the trace of a session"
            eventually(lambda: warning in cluster.log_path.read_text())
    finally:
        limit_memory(cluster, worker_of(recording), None)
    app.execute("SET sql_trace.level = 1")
    app.execute("SELECT 'with memory'")
    assert with_statement(recording, "SELECT 'with memory'").end is None


@pytest.mark.slow
def test_worker_that_is_terminated(writing: tuple[Cluster, Path], app: Connection) -> None:
    """Its recording has an end, sessions go on, and another worker follows."""
    cluster, directory = writing
    recording = latest(directory)
    app.execute("SET sql_trace.level = 1")
    app.execute("SELECT 'before'")
    subprocess.run(["kill", str(worker_of(recording))], check=True, **cluster.run_as)
    trace = eventually(lambda: load(recording) if load(recording).end else None)
    assert trace.end["stopped_by"] == "interrupt"
    with_statement(recording, "SELECT 'before'")
    assert one(app, "SELECT 1") == 1
    following = another(directory, recording)
    assert worker_of(following) != worker_of(recording)
    app.execute("SELECT 'behind'")
    with_statement(following, "SELECT 'behind'")


def test_server_that_crashes(writing: tuple[Cluster, Path], app: Connection) -> None:
    """What was written can be read, and the server that comes back writes anew."""
    cluster, directory = writing
    app.execute("SET sql_trace.level = 1")
    app.execute("SELECT 'before the crash'")
    recording = latest(directory)
    with_statement(recording, "SELECT 'before the crash'")
    os.kill(app.info.backend_pid, signal.SIGKILL)
    with pytest.raises(psycopg.Error):
        app.execute("SELECT 1")
    following = another(directory, recording)
    trace = with_statement(recording, "SELECT 'before the crash'")
    assert trace.end is None
    assert any("no end" in note for note in trace.notes())
    with eventually(lambda: connected(cluster)) as client:
        client.execute("SET sql_trace.level = 1")
        client.execute("SELECT 'after the crash'")
        with_statement(following, "SELECT 'after the crash'")


def test_worker_that_is_killed(writing: tuple[Cluster, Path], app: Connection) -> None:
    """By kill -9: the server restarts, what was written can be read, another recording begins."""
    cluster, directory = writing
    app.execute("SET sql_trace.level = 12")
    app.execute("SELECT 'before the kill'")
    recording = latest(directory)
    before = with_statement(recording, "SELECT 'before the kill'")
    assert before.end is None
    os.kill(worker_of(recording), signal.SIGKILL)
    with eventually(lambda: None if app_lives(app) else connected(cluster)) as client:
        following = another(directory, recording)
        assert worker_of(following) != worker_of(recording)
        client.execute("SET sql_trace.level = 12")
        client.execute("SELECT 'after the kill'")
        after = with_statement(following, "SELECT 'after the kill'")
    assert not after.damages
    trace = with_statement(recording, "SELECT 'before the kill'")
    assert trace.end is None
    assert not [damage for damage in trace.damages if not damage.tail]
    done = pgtare("trace", "profile", recording)
    assert done.returncode == 0, done.stderr
    assert "has no end" in done.stderr


def app_lives(client: Connection) -> bool:
    """The server has not restarted: that ends every session."""
    try:
        client.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


@pytest.mark.slow
def test_busy_session_holds_nobody_up(rotating: tuple[Cluster, Path], rotated: Connection) -> None:
    """While one writes faster than can be read, files rotate, which all others wait for."""
    (cluster, directory), app = rotating, rotated
    configure(cluster, worker_max_size="4GB")
    app.execute("SET sql_trace.ring_size = '8MB'; SET sql_trace.bind_length = -1")
    app.execute("SET sql_trace.level = 4")
    recording = latest(directory)
    files = len(list(recording.iterdir()))
    app.execute(
        "DO $$DECLARE until timestamptz := clock_timestamp() + interval '1 s'; "
        "value text := repeat('x', 1000000); BEGIN WHILE clock_timestamp() < until LOOP "
        "EXECUTE 'SELECT length($1)' USING value; END LOOP; END$$"
    )
    assert len(list(recording.iterdir())) > files + 5


def connected(cluster: Cluster) -> Connection | None:
    with contextlib.suppress(psycopg.Error):
        return psycopg.connect(cluster.dsn(), autocommit=True)
    return None


@binaries_slowly_on_15
def test_full_disk(binaries: Binaries, as_root: None) -> None:
    """The worker stops, with whole blocks on the disk, and the server does not."""
    with place() as path:
        done = subprocess.run(
            words(
                "mount -t tmpfs -o size=1m,mode=0700,uid={} pgtare-test {}",
                server_account().uid,
                path,
            ),
            check=False,
        )
        if done.returncode != 0:
            pytest.skip("cannot mount a small file system here")
        try:
            settings = SETTINGS | {"sql_trace.worker_directory": str(path)}
            with tracing(binaries, settings) as cluster, session(cluster) as client:
                recording = latest(path)
                client.execute("SET sql_trace.level = 1")
                work(client, 1)
                # one that holds nothing of any session would be removed
                eventually(lambda: load(recording).streams)
                for _ in range(40):
                    work(client, 5)
                text = "has stopped writing traces"
                eventually(lambda: text in cluster.log_path.read_text())
                assert "No space left on device" in cluster.log_path.read_text()
                trace = load(recording)
                assert not trace.damages
                assert trace.streams
                assert one(client, "SELECT 1") == 1
                # what the last block would have held, and what came after it
                lost = eventually(lambda: load(recording).end)["unwritten"]
                pid = client.info.backend_pid
                written = one(client, "SELECT bytes FROM pg_stat_sql_trace WHERE pid = %s", pid)
                (chunks,) = trace.streams.values()
                read = max(at + len(data) for at, data in chunks)
                assert 0 < lost["bytes"] <= written - read
                assert f"{lost['bytes']} bytes of calls" in cluster.log_path.read_text()
                profile = pgtare("trace", "profile", recording)
                assert f"{lost['bytes']:,} bytes of calls" in profile.stderr
                assert "could not be written" in profile.stderr
        finally:
            subprocess.run(["umount", path], check=True)


@pytest.mark.slow
def test_a_recorder_next_to_the_worker_meets_a_full_disk(
    writing: tuple[Cluster, Path], app: Connection, as_root: None
) -> None:
    """It ends with 1 and what had room, and the worker goes on."""
    cluster, directory = writing
    with small_volume("size=1m") as place:
        rec = place / "rec"
        recorder = start_pgtare(
            "trace record {} --dsn {} --reserve 0 --pid {} --duration 60s",
            rec,
            cluster.dsn(),
            app.info.backend_pid,
        )
        while recorder.poll() is None:
            app.execute(f"SELECT '{os.urandom(500).hex()}', pg_sleep(0.001)".encode())
        out, err = recorder.communicate(timeout=30)
        assert recorder.returncode == 1, (out, err)
        assert f"the disk of {rec} is full; {rec} holds what came before" in err
        assert pgtare("trace", "profile", rec).returncode == 0
    app.execute("SET sql_trace.level = 12")
    app.execute("SELECT 'after the full disk'")
    assert not with_statement(latest(directory), "SELECT 'after the full disk'").damages


def test_places_that_will_not_do(wheel: Binaries) -> None:
    """The server starts, says why nothing is written, and tries again at a reload."""
    with place() as path:
        closed = path / "closed"
        closed.mkdir(mode=0o500)
        settings = SETTINGS | {"sql_trace.worker_directory": str(closed / "traces")}
        with tracing(wheel, settings) as cluster:
            log = cluster.log_path
            eventually(lambda: "writes no traces" in log.read_text())
            assert "Permission denied" in log.read_text()
            server_account().give(closed)
            closed.chmod(0o700)
            cluster.reload()
            assert load(latest(closed / "traces")).recording["server"].startswith(str(wheel.major))
            inside = cluster.data_directory / "traces"
            cluster.restart({"sql_trace.worker_directory": str(inside)})
            eventually(lambda: "it lies in the data directory" in log.read_text())
            assert not inside.exists()
            if os.geteuid() == 0:
                another_ones = path / "another's"
                another_ones.mkdir()
                os.chown(another_ones, 65534, 65534)
                another_ones.chmod(0o777)
                cluster.restart({"sql_trace.worker_directory": str(another_ones)})
                eventually(lambda: "it belongs to another user" in log.read_text())
            cluster.restart({"sql_trace.worker_directory": "traces"})
            eventually(lambda: "the path is not absolute" in log.read_text())
            with session(cluster) as client:
                assert one(client, "SELECT 1") == 1


LEFTOVER = {
    "worker_directory": "/nowhere/traces",
    "worker_max_size": "2GB",
    "worker_reserve": "-7",
}


@SESSIONS_LOAD_MODULES
def test_leftover_lines_give_nobody_a_warning(wheel: Binaries) -> None:
    """Sessions that load the library by themselves have no worker, whatever the lines say."""
    module = loadable(wheel, "sql_trace")
    settings = {f"sql_trace.{name}": value for name, value in LEFTOVER.items()}
    with Cluster(wheel, settings | {"session_preload_libraries": module.library}) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE ROLE ordinary LOGIN")
            connection.execute(module.create_sql.encode())
        for _ in range(2):
            done = subprocess.run(
                [
                    wheel.psql,
                    "-XAtc",
                    "SELECT count(*) FROM generate_series(1, 9)",
                    cluster.dsn(user="ordinary"),
                ],
                check=False,
                capture_output=True,
                text=True,
                **cluster.run_as,
            )
            assert (done.stdout, done.stderr, done.returncode) == ("9\n", "", 0)
            cluster.reload()
        status = pgtare("trace", "status", "--dsn", cluster.dsn())
        assert "worker writes" not in status.stdout
        assert "WARNING" not in cluster.log_path.read_text()
