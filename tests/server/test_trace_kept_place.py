"""Where kept traces are written: nowhere else, and nothing where it cannot."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.os_account import server_account
from tests.servers import SESSIONS_LOAD_MODULES, tracing
from tests.sessions import Connection, eventually, one, session
from tests.trace_keeper import forget_all, place, server_that_keeps, traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

REFUSED = "writes no traces to"


@pytest.fixture(scope="module")
def filing(each_server: Binaries) -> Iterator[tuple[Cluster, Path]]:
    """A server that writes what it keeps, and where."""
    with server_that_keeps(each_server, "SELECT 1") as found:
        yield found


@pytest.fixture
def admin(filing: tuple[Cluster, Path]) -> Iterator[Connection]:
    with session(filing[0]) as connection:
        forget_all(connection)
        yield connection


def said(cluster: Cluster) -> Callable[[], str]:
    """What the log has got since now."""
    before = cluster.log_path.stat().st_size

    def since() -> str:
        with open(cluster.log_path, errors="replace") as log:
            log.seek(before)
            return log.read()

    return since


def files(directory: Path) -> set[Path]:
    return set(directory.glob("*kept-*"))


def keep_one(cluster: Cluster) -> None:
    """Have the trace of a session kept."""
    with (
        traced(cluster, level=1, keep_sqlstates="22012") as client,
        pytest.raises(psycopg.errors.DivisionByZero),
    ):
        client.execute("SELECT 1/0")


def written(cluster: Cluster, directory: Path) -> Path:
    """The file of a trace that is kept now."""
    before = files(directory)
    keep_one(cluster)
    new = eventually(lambda: {path for path in files(directory) - before if path.name[0] != "."})
    (path,) = new
    return Path(path)


def test_directory_that_is_moved(filing: tuple[Cluster, Path], admin: Connection) -> None:
    """With all files in it: it is made anew."""
    cluster, directory = filing
    moved = written(cluster, directory)
    elsewhere = directory.parent / "elsewhere"
    directory.rename(elsewhere)
    assert not load(written(cluster, directory)).damages
    assert files(elsewhere) == {elsewhere / moved.name}
    shutil.rmtree(elsewhere)


def _mode(mode: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode)


def _symbolic_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


def _give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a directory to another user")
    os.chown(path, 65532, 65532)
    path.chmod(0o777)


@pytest.mark.parametrize(
    ("spoil", "parent", "why"),
    [
        (_mode(0o777), False, "it can be written by everybody"),
        (_mode(0o1777), False, "it can be written by everybody"),
        (_mode(0o770), False, "it can be written by its group"),
        (_mode(0o777), True, '"{}" in its path can be written by everybody'),
        (_mode(0o775), True, '"{}" in its path can be written by its group'),
        (_give_away, True, '"{}" in its path belongs to another user'),
        (_symbolic_link, False, '"{}" in its path is a symbolic link'),
        (_symbolic_link, True, '"{}" in its path is a symbolic link'),
    ],
)
def test_places_that_others_can_change(
    filing: tuple[Cluster, Path],
    admin: Connection,
    spoil: Callable[[Path], None],
    parent: bool,
    why: str,
) -> None:
    """Nothing is written there, the log says why, and a reload tries again."""
    cluster, directory = filing
    eventually(directory.exists)
    spoiled = directory.parent if parent else directory
    unwritten = "SELECT count(*) FROM sql_trace_kept() WHERE file IS NULL"
    log = said(cluster)
    spoil(spoiled)
    try:
        cluster.reload()
        eventually(lambda: REFUSED in log())
        assert why.format(spoiled.name) in log()
        before = files(directory)
        keep_one(cluster)
        eventually(lambda: one(admin, unwritten) == 1)
        assert files(directory) == before
    finally:
        if spoiled.is_symlink():
            spoiled.unlink()
            spoiled.with_name("real").rename(spoiled)
        server_account().give(spoiled)
        spoiled.chmod(0o700)
        cluster.reload()
    eventually(lambda: one(admin, unwritten) == 0)
    assert len(files(directory) - before) == 1


def test_sticky_directory_on_the_way_will_do(
    filing: tuple[Cluster, Path], admin: Connection
) -> None:
    """As /tmp: others cannot rename or remove what is ours there."""
    cluster, directory = filing
    directory.parent.chmod(0o1777)
    try:
        cluster.reload()
        written(cluster, directory)
    finally:
        directory.parent.chmod(0o700)


def test_places_that_will_not_do(wheel: Binaries) -> None:
    """The server starts, says why nothing is written, and tries again at a reload."""
    with place() as path:
        closed = path / "closed"
        closed.mkdir(mode=0o500)
        with tracing(wheel, {"sql_trace.keep_directory": str(closed / "kept")}) as cluster:
            log = cluster.log_path
            eventually(lambda: REFUSED in log.read_text())
            assert "Permission denied" in log.read_text()
            server_account().give(closed)
            closed.chmod(0o700)
            cluster.reload()
            assert not load(written(cluster, closed / "kept")).damages
            inside = cluster.data_directory / "kept"
            cluster.restart({"sql_trace.keep_directory": str(inside)})
            eventually(lambda: "it lies in the data directory" in log.read_text())
            assert not inside.exists()
            if os.geteuid() == 0:
                another_ones = path / "another's"
                another_ones.mkdir()
                os.chown(another_ones, 65534, 65534)
                another_ones.chmod(0o777)
                cluster.restart({"sql_trace.keep_directory": str(another_ones)})
                eventually(lambda: "it belongs to another user" in log.read_text())
            cluster.restart({"sql_trace.keep_directory": "kept"})
            eventually(lambda: "the path is not absolute" in log.read_text())
            with session(cluster) as client:
                assert one(client, "SELECT 1") == 1


LEFTOVER = {"keep_directory": "/nowhere/traces", "keep_files_size": "2GB", "keep_files": "-7"}


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
        assert "WARNING" not in cluster.log_path.read_text()
