"""A writer killed by SIGKILL before every change of a file, and inside every write.

The steps are counted by a run that is not killed; `test_nothing_else_changes_files` sees to it that
there are no others.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgtare.keeping import spool as package
from pgtare.keeping.spool import compaction
from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.volume import Volume
from pgtare.keeping.spool.writer import Spool
from tests.unit.spool_rows import (
    UNLIMITED,
    at,
    catch_up,
    check_rolled,
    held,
    newest,
    number,
    random_rows,
    sums,
    value,
)

MEMORY = "/dev/shm"  # noqa: S108
#: Tables of few columns: the files are what counts here.
TABLES = ("ticks", "findings")
ROLLED = ("ticks_1m", "ticks_1h")
#: Segments that are merged.
FAN_IN = 4
#: Replaced files go at once.
NO_DELAY = SpoolLimits(most_bytes=1 << 60, reserve_bytes=0, reader_s=0)


class Deadly(Volume):
    """Kills its process before a step, or halfway through a write; counts steps until then."""

    def __init__(self, root: Path, last: int | None = None, *, torn: bool = False) -> None:
        super().__init__(root)
        self.steps: list[str] = []
        self._last, self._torn = last, torn

    def _step(self, operation: str, name: str) -> None:
        self.steps.append(operation)
        if len(self.steps) == self._last and not self._torn:
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, fd: int, data: memoryview) -> None:
        if len(self.steps) == self._last and self._torn:
            os.write(fd, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super()._write(fd, data)


def commit(spool: Spool, index: int, seconds: float | None = None) -> None:
    """The commit of that index, at its tick of 10 s unless a time is given."""
    times = [at(10 * index if seconds is None else seconds)]
    rows = {name: random_rows(name, times, seed=index) for name in TABLES}
    spool.commit(rows, {("one", "ticks"): number(index)})
    assert spool.trouble is None


@dataclass(frozen=True)
class Scene:
    """What a killed process does. before: commits that are there; caught_up: upkeep at that time.

    commits: what it adds. dropped: whether rows go. torn: whether the newest manifest is.
    """

    act: Callable[[Spool], None]
    before: int = 0
    caught_up: float | None = None
    commits: int = 0
    dropped: bool = False
    torn: bool = False


def keep_up(spool: Spool, seconds: float) -> None:
    """The upkeep of a time."""
    assert catch_up(spool, at(seconds)) > 0


def damage(spool: Spool) -> None:
    """Overwrite a segment, and have it noticed."""
    name = next(iter(newest(spool._volume.root).segments))
    spool._volume.path(name).write_bytes(b"")
    spool._check_segments()


SCENES = {
    "begin": Scene(lambda spool: commit(spool, 1), commits=1),
    "commit": Scene(lambda spool: commit(spool, 4), before=3, commits=1),
    "late": Scene(lambda spool: commit(spool, 10, 5), 9, 3700, 1),
    "minute": Scene(lambda spool: keep_up(spool, 95), 8),
    "hour": Scene(lambda spool: keep_up(spool, 3700), 8, 95),
    "merge": Scene(lambda spool: keep_up(spool, 45), 5),
    "old": Scene(lambda spool: keep_up(spool, 8 * 86400), 4, 3700, 0, True),
    "torn": Scene(lambda spool: commit(spool, 3), before=3, torn=True),
    "damage": Scene(damage, 3, None, 0, True),
}


def prepare(scene: Scene, directory: Path) -> None:
    """A spool as it is before the scene."""
    if not scene.before:
        return
    with Spool.open(directory, UNLIMITED) as spool:
        for index in range(1, scene.before + 1):
            commit(spool, index)
        if scene.caught_up is not None:
            catch_up(spool, at(scene.caught_up))
    if scene.torn:
        path = directory / "manifest.json"
        path.write_bytes(path.read_bytes()[:100])


def act(name: str, root: Path, last: int | None, torn: bool) -> None:
    """A scene, in a process of its own."""
    compaction.FAN_IN = FAN_IN
    volume = Deadly(root, last, torn=torn)
    with Spool.open(root, NO_DELAY, volume) as spool:
        SCENES[name].act(spool)
    (root.parent / "steps").write_text(" ".join(volume.steps))


def play(name: str, root: Path, last: int | None = None, torn: bool = False) -> int | None:
    """How the process of a scene ended: minus the signal that killed it."""
    # not a fork of this process, which has threads of pyarrow
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["pytest", __name__])
    process = processes.Process(target=act, args=(name, root, last, torn))
    process.start()
    process.join(300)  # the first one loads all that the others need
    assert process.exitcode is not None
    return process.exitcode


def check(scene: Scene, directory: Path, *, go_on: bool) -> None:
    """All that was committed is there once, and nothing else. go_on: also after more commits."""
    with Spool.open(directory, UNLIMITED) as spool:
        index = value(spool.reading("one", "ticks"))
        assert scene.before - scene.torn <= index <= scene.before + scene.commits
        if not scene.dropped:
            # the baseline and the rows are of the same commit
            for table in TABLES:
                assert held(directory, table).num_rows == 3 * index
        else:
            lost = sum(
                int(detail.split()[1])
                for detail in held(directory, "gaps")["detail"].to_pylist()
                if detail.startswith("ticks:")
            )
            if "ticks" in (dropped := newest(directory).dropped):
                lost += dropped["ticks"]
            assert held(directory, "ticks").num_rows + lost == 3 * index
            return
        for table in ROLLED:
            check_rolled(directory, table)
        content = newest(directory)
        there = {
            f"{part}/{name}"
            for part in ("segments", "readings", "catalogues")
            for name in os.listdir(directory / part)
        }
        assert there >= content.files() - set(content.retired)
        assert there <= content.files() | spool._earlier
        if not go_on:
            return
        commit(spool, index + 1)
        catch_up(spool, at(2 * 86400))
    for table in ROLLED:
        assert sums(held(directory, table), table) == sums(held(directory, "ticks"), "ticks")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: what is synced there costs nothing."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="pgtare-test-") as name:
        yield Path(name)


#: Of a scene with hundreds of steps, which repeat, one in this number is tried, and the last all.
STRIDES = {
    "begin": 3,
    "commit": 14,
    "minute": 40,
    "hour": 11,
    "late": 11,
    "merge": 11,
    "old": 11,
    "torn": 11,
}
LAST_STEPS = 10


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("commit", 12 * STRIDES["commit"]),
        pytest.param("damage", 1, marks=pytest.mark.slow),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in STRIDES),
    ],
)
def test_killed_at_any_step(
    name: str, stride: int, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", FAN_IN)
    scene = SCENES[name]
    before, now = memory / "before", memory / "now"
    prepare(scene, before)

    def copy() -> None:
        shutil.rmtree(now, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, now)

    copy()
    assert play(name, now) == 0
    operations = (memory / "steps").read_text().split()
    assert len(operations) > 5
    check(scene, now, go_on=True)
    steps = len(operations)
    ending = range(max(steps - LAST_STEPS, 0) + 1, steps + 1)
    for last in sorted({*range(1, steps + 1, stride), *ending}):
        for torn in (False, True) if operations[last - 1] == "write" else (False,):
            copy()
            assert play(name, now, last, torn) == -signal.SIGKILL
            check(scene, now, go_on=last % 8 == 0)


#: What changes files, by the names that Python has for it.
CHANGES = {
    *("open", "mkdir", "makedirs", "rename", "replace", "unlink", "remove", "rmdir", "link"),
    *("symlink", "write", "pwrite", "truncate", "ftruncate", "write_text", "write_bytes", "touch"),
    *("chmod", "fsync", "rmtree", "copy", "move", "mkstemp", "sendfile", "posix_fallocate"),
}


def test_nothing_else_changes_files() -> None:
    found = []
    for path in Path(package.__file__).parent.glob("*.py"):
        if path.name in ("volume.py", "lock.py"):  # a lock is no content
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                owner, _, last = called.rpartition(".")
                if last in CHANGES and not owner.endswith("volume") and owner != "sink":
                    found.append((path.name, ast.unparse(node)))
    allowed = {
        ("segments.py", "open(root / segment.name, 'rb')"),
        ("reader.py", "KIND.open(directory)"),
        ("publication.py", "manifests.write(self._volume, self._new)"),  # by the volume
    }
    text = {
        "replace"  # of strings and of dataclasses
    }
    left = [
        (name, call)
        for name, call in found
        if (name, call) not in allowed and not any(f"{word}(" in call for word in text)
    ]
    assert left == []
