"""A writer killed by SIGKILL before every change of a file, and inside every write.

The steps are counted by a run that is not killed; `test_nothing_else_changes_files` sees to it that
there are no others.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgtare.watching import spool as package
from pgtare.watching.spool.limits import Limits
from pgtare.watching.spool.spool import Spool
from pgtare.watching.spool.volume import Volume
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

ROLLED = ("waits_1m", "waits_1h", "ticks_1m", "ticks_1h")
#: Replaced files go at once.
NO_DELAY = Limits(most_bytes=1 << 60, reserve_bytes=0, reader_s=0)


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
    rows = {name: random_rows(name, times, seed=index) for name in ("waits", "ticks")}
    spool.commit(rows, {("one", "waits"): number(index)})
    assert spool.trouble is None


@dataclass(frozen=True)
class Scene:
    """What a killed process does. before: commits that are there; caught_up: upkeep at that time.

    commits: what it adds. dropped: whether rows go.
    """

    act: Callable[[Spool], None]
    before: int = 0
    caught_up: float | None = None
    commits: int = 0
    dropped: bool = False


def damage(spool: Spool) -> None:
    """Overwrite a segment, and have it noticed."""
    name = next(iter(newest(spool._volume.root).segments))
    spool._volume.path(name).write_bytes(b"")
    spool._check_segments()


SCENES = {
    "begin": Scene(lambda spool: commit(spool, 1), commits=1),
    "commit": Scene(lambda spool: commit(spool, 4), before=3, commits=1),
    "late": Scene(lambda spool: commit(spool, 10, 5), 9, 3700, 1),
    "minute": Scene(lambda spool: [spool.maintain(at(95)), None][1], before=8),
    "hour": Scene(lambda spool: [catch_up(spool, at(3700)), None][1], before=8),
    "merge": Scene(lambda spool: [catch_up(spool, at(90)), None][1], 20, None),
    "old": Scene(lambda spool: [catch_up(spool, at(8 * 86400)), None][1], 4, 3700, 0, True),
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


def play(scene: Scene, volume: Deadly) -> int:
    """The scene in a process of its own; the number of steps, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            with Spool.open(volume.root, NO_DELAY, volume) as spool:
                scene.act(spool)
            (volume.root.parent / "steps").write_text(" ".join(volume.steps))
            os._exit(0)
        finally:
            os._exit(99)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        return status
    return len((volume.root.parent / "steps").read_text().split())


def check(scene: Scene, directory: Path) -> None:
    """All that was committed is there once, and nothing else."""
    with Spool.open(directory, UNLIMITED) as spool:
        index = value(spool.reading("one", "waits"))
        assert scene.before <= index <= scene.before + scene.commits
        if not scene.dropped:
            # the baseline and the rows are of the same commit
            assert held(directory, "waits").num_rows == 3 * index
        else:
            lost = sum(
                int(detail.split()[1])
                for detail in held(directory, "gaps")["detail"].to_pylist()
                if detail.startswith("waits:")
            )
            assert held(directory, "waits").num_rows + lost == 3 * index
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
        # it goes on as if nothing had happened
        commit(spool, index + 1)
        catch_up(spool, at(2 * 86400))
    for table in ROLLED:
        source = "waits" if table.startswith("waits") else "ticks"
        assert sums(held(directory, table), table) == sums(held(directory, source), source)


@pytest.mark.parametrize("name", SCENES)
def test_killed_at_any_step(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    before, now = tmp_path / "before", tmp_path / "now"
    prepare(scene, before)

    def copy() -> None:
        shutil.rmtree(now, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, now)

    copy()
    steps = play(scene, Deadly(now))
    assert steps > 5
    operations = (tmp_path / "steps").read_text().split()
    check(scene, now)
    for last in range(1, steps + 1):
        for torn in (False, True) if operations[last - 1] == "write" else (False,):
            copy()
            assert play(scene, Deadly(now, last, torn=torn)) == -signal.SIGKILL
            check(scene, now)


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
