"""kill -9 of the command, its guardian, both, and the server, in each phase of a weighing."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.weighing.switches import Switch
from tests import windows
from tests.server.test_weigh_windows import (
    SETTING,
    entries,
    guardian_of,
    restore_files,
    running,
    watcher,
)
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

PHASES = ("begun", "trying", "off", "on", "putting back")


@pytest.fixture
def server(wheel: Binaries) -> Iterator[Cluster]:
    with Cluster(wheel, {}) as cluster:
        yield cluster


def slowly(path: Path) -> Switch:
    """Something that is there if a file is, and takes its time."""
    file = shlex.quote(str(path))
    return Switch("file", "commands", on=f"sleep 1; touch {file}", off=f"rm -f {file}; sleep 1")


def has_guardian(place: Path) -> bool:
    with contextlib.suppress(LookupError):
        return guardian_of(place).is_running()
    return False


def reach(
    phase: str, weighed: subprocess.Popen[str], cluster: Cluster, file: Path, place: Path
) -> None:
    """Wait until a weighing is there; but for its beginning, it stays for a second at least."""
    if phase == "begun":
        eventually(lambda: restore_files(place) and has_guardian(place))
        return
    if phase == "trying":
        eventually(lambda: not file.exists())
        return
    for value in ("5MB", "4MB", "5MB"):
        eventually(lambda wanted=value: entries(cluster)[-1] == (wanted,))
    if phase == "off":
        eventually(lambda: entries(cluster)[-1] == ("4MB",))
    if phase == "putting back":
        weighed.send_signal(signal.SIGINT)
        time.sleep(0.3)


@pytest.mark.parametrize("with_command", [True, False])
def test_a_process_ends_though_its_keeper_is_killed_as_well(
    server: Cluster, tmp_path: Path, with_command: bool
) -> None:
    """By `pkill -9 -f pgtare`, or of what it started."""
    mark = f"13{os.getpid() % 10_000:04}"
    weighed = windows.start(server.dsn(), [watcher(mark)], tmp_path)
    eventually(lambda: running(mark))
    guardian = guardian_of(tmp_path)
    victims = [guardian, *guardian.children(recursive=True)]
    victims = [one for one in victims if "pgtare" in " ".join(one.cmdline())]
    assert len(victims) == 2
    if with_command:
        victims.insert(0, psutil.Process(weighed.pid))
    for victim in victims:
        victim.suspend()
    for victim in victims:
        victim.kill()
    weighed.communicate(timeout=60)
    eventually(lambda: not running(mark))


@pytest.mark.parametrize("victim", ["command", "guardian", "both", "server"])
@pytest.mark.parametrize("phase", PHASES)
def test_everything_is_put_back(server: Cluster, tmp_path: Path, phase: str, victim: str) -> None:
    mark = f"12{os.getpid() % 10_000:04}"
    file = tmp_path / "file"
    file.touch()
    switches = [SETTING, slowly(file), watcher(mark)]
    weighed = windows.start(server.dsn(), switches, tmp_path, seconds=120, patience_s=1)
    reach(phase, weighed, server, file, tmp_path)
    guardian = guardian_of(tmp_path)
    if victim == "both":
        guardian.suspend()
    if victim in ("command", "both"):
        os.kill(weighed.pid, signal.SIGKILL)
    if victim in ("guardian", "both"):
        guardian.kill()
    if victim == "server":
        server.stop(mode="immediate")
    weighed.communicate(timeout=90)
    assert weighed.returncode != 0
    if victim == "server":
        server.start()
    if victim == "both":
        again = windows.start(server.dsn(), switches, tmp_path, seconds=1)
        again.communicate(timeout=90)
    eventually(lambda: entries(server) == [("4MB",)])
    eventually(lambda: not running(mark))
    eventually(file.exists)
    eventually(lambda: not restore_files(tmp_path))
