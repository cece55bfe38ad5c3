"""Where the background worker writes: nowhere else, and nothing where it cannot."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pgtare.observing.trace.file.reader import load
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.os_account import server_account
from tests.sessions import Connection, eventually, session
from tests.trace_worker import (
    another,
    configure,
    find_statement,
    latest,
    stopped,
    work,
    worker_of,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MOVED = "the recording has been moved or deleted"
REFUSED = "writes no traces to"
#: More than any volume has, in kB.
TOO_MUCH = 2**31 - 1


@pytest.fixture
def app(writing: tuple[Cluster, Path]) -> Iterator[Connection]:
    with session(writing[0]) as connection:
        connection.execute("SET sql_trace.level = 1")
        yield connection


def said(cluster: Cluster) -> Callable[[], str]:
    """What the log has got since now."""
    before = cluster.log_path.stat().st_size

    def since() -> str:
        with open(cluster.log_path, errors="replace") as log:
            log.seek(before)
            return log.read()

    return since


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def begun(name: str) -> float:
    """The time in the name of a recording."""
    when = datetime.strptime(name.split("-")[1], "%Y%m%dT%H%M%S")
    return when.replace(tzinfo=UTC).timestamp()


def written(directory: Path, app: Connection, text: str) -> Path:
    """The recording that has that statement, once one has."""
    statement = f"SELECT '{text}'"
    app.execute(statement.encode())

    def found() -> Path | None:
        recording = latest(directory)
        return recording if find_statement(recording, statement) else None

    return Path(eventually(found))


def clear(directory: Path) -> None:
    """Remove all recordings."""
    for path in directory.glob("trace-*"):
        shutil.rmtree(path)


def test_costs_are_for_the_readers_to_say(writing: tuple[Cluster, Path]) -> None:
    assert "costs" not in load(latest(writing[1])).recording


@pytest.mark.slow
def test_reloads_leave_nothing_behind(writing: tuple[Cluster, Path], app: Connection) -> None:
    """Neither where the volume has too little room nor where what is there takes nearly all."""
    cluster, directory = writing
    work(app, 5)
    written(directory, app, "before all reloads")
    log = said(cluster)
    configure(cluster, worker_reserve=TOO_MUCH)
    work(app, 1)
    eventually(lambda: "has stopped writing traces" in log())
    before = names(directory)
    process = worker_of(latest(directory))
    try:
        _reload_often(cluster, process, 1000)
        assert names(directory) == before
        size = sum(path.stat().st_size for path in directory.rglob("*.pgtrace"))
        # a header would have room, what a session has written would not
        configure(cluster, worker_reserve=0, worker_max_size=f"{size // 1024 + 2}kB")
        _reload_often(cluster, process, 20)
        # the log tells of the last one before it is removed
        eventually(lambda: names(directory) == before)
    finally:
        configure(cluster, worker_reserve=0, worker_max_size="1GB")
    written(directory, app, "after all reloads")
    assert len(names(directory) - before) == 1


def _reload_often(cluster: Cluster, process: int, times: int) -> None:
    """One after the other: each is answered before the next comes."""
    with open(cluster.log_path, errors="replace") as log:
        log.seek(0, os.SEEK_END)
        for _ in range(times):
            os.kill(process, signal.SIGHUP)
            deadline = time.monotonic() + 20
            while not (line := log.readline()) or "sql_trace" not in line:
                assert time.monotonic() < deadline, "the worker did not answer"
                time.sleep(0 if line else 0.001)


def test_names_are_not_of_the_future(writing: tuple[Cluster, Path], app: Connection) -> None:
    """Not even where the names of this moment are taken."""
    _, directory = writing
    first = written(directory, app, "of the first recording")
    now = int(time.time())
    pid = worker_of(first)
    for second in range(now, now + 30):
        taken = directory / f"trace-{datetime.fromtimestamp(second, UTC):%Y%m%dT%H%M%S}-{pid}"
        if not taken.exists():
            taken.mkdir()
            server_account().give(taken)
    shutil.rmtree(first)
    following = written(directory, app, "of the next recording")
    assert now <= begun(following.name) <= time.time()
    for path in directory.iterdir():
        if not names(path):
            path.rmdir()


def test_recording_that_is_moved(writing: tuple[Cluster, Path], app: Connection) -> None:
    """Nothing more goes there; another recording begins where the setting says."""
    cluster, directory = writing
    recording = written(directory, app, "before the move")
    log = said(cluster)
    elsewhere = directory.parent / "elsewhere"
    recording.rename(elsewhere)
    sizes = {path.name: path.stat().st_size for path in elsewhere.iterdir()}
    written(directory, app, "after the move")
    assert MOVED in log()
    assert {path.name: path.stat().st_size for path in elsewhere.iterdir()} == sizes
    assert not load(elsewhere).damages
    shutil.rmtree(elsewhere)


def test_directory_that_is_moved(writing: tuple[Cluster, Path], app: Connection) -> None:
    """With all recordings in it: it is made anew."""
    cluster, directory = writing
    written(directory, app, "before all were moved")
    log = said(cluster)
    elsewhere = directory.parent / "elsewhere"
    directory.rename(elsewhere)
    eventually(directory.exists)
    written(directory, app, "after all were moved")
    assert MOVED in log()
    shutil.rmtree(elsewhere)


@pytest.mark.parametrize("whole", [True, False], ids=["recording", "file"])
def test_recording_that_is_deleted(
    writing: tuple[Cluster, Path], app: Connection, whole: bool
) -> None:
    """That is noticed though nobody works."""
    cluster, directory = writing
    recording = written(directory, app, "deleted")
    log = said(cluster)
    if whole:
        since_ns = time.time_ns() - 20_000_000  # a file system's clock is coarse
        shutil.rmtree(recording)
        following = another(directory, recording, since_ns)
    else:
        max(recording.iterdir()).unlink()
        following = another(directory, recording)
    assert MOVED in log()
    assert following == written(directory, app, "not deleted")


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
    writing: tuple[Cluster, Path],
    app: Connection,
    spoil: Callable[[Path], None],
    parent: bool,
    why: str,
) -> None:
    """Nothing is written there, the log says why, and a reload tries again."""
    cluster, directory = writing
    place = directory.parent if parent else directory
    log = said(cluster)
    with stopped(worker_of(latest(directory))):  # it sees the whole change, and no part of it
        spoil(place)
        clear(directory)  # so that another one is to begin
    try:
        eventually(lambda: REFUSED in log())
        assert why.format(place.name) in log()
        assert not list(directory.glob("trace-*"))
    finally:
        if place.is_symlink():
            place.unlink()
            place.with_name("real").rename(place)
        server_account().give(place)
        place.chmod(0o700)
        cluster.reload()
    written(directory, app, "in a safe place")


def test_sticky_directory_on_the_way_will_do(
    writing: tuple[Cluster, Path], app: Connection
) -> None:
    """As /tmp: others cannot rename or remove what is ours there."""
    _, directory = writing
    directory.parent.chmod(0o1777)
    try:
        clear(directory)
        written(directory, app, "below a sticky directory")
    finally:
        directory.parent.chmod(0o700)
