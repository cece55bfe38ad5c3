"""What the kernel lets a module do with the server's memory."""

import dataclasses
import subprocess
from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.sessions import bare_session
from tests.trials import trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MODULES = ("wait_event_timing", "pgtare")

#: Runs the server with a limit of the kernel's that lasts for all its processes.
_WRAPPER = """#!/usr/bin/python3 -I
import ctypes, os, struct, sys

REAL, LIMIT = {real!r}, {limit!r}
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = (RETURN, 0, 0, 0x7FFF0000), (RETURN, 0, 0, 0x00050001)
MPROTECT, PROT_READ, PROT_WRITE = 10, 1, 2
libc = ctypes.CDLL(None, use_errno=True)

def filter_calls(*program):
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    kept = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(program), ctypes.addressof(kept))
    whole = ctypes.create_string_buffer(head, len(head))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, whole, 0, 0) == 0

if LIMIT == "no writing":
    filter_calls((LOAD, 0, 0, 0), (EQUAL, 0, 2, MPROTECT), (LOAD, 0, 0, 32),
                 (ANY_BIT, 1, 0, PROT_WRITE), ALLOW, REFUSE)
elif LIMIT == "no closing":
    # one page of the executable, whose place is known; the linker's own calls are for more pages
    assert libc.personality(0x0040000) != -1
    filter_calls((LOAD, 0, 0, 0), (EQUAL, 0, 6, MPROTECT), (LOAD, 0, 0, 20), (EQUAL, 0, 4, 0x5555),
                 (LOAD, 0, 0, 24), (EQUAL, 0, 2, 4096), (LOAD, 0, 0, 32),
                 (EQUAL, 1, 0, PROT_READ), ALLOW, REFUSE)
elif LIMIT == "no executing":
    # as systemd's MemoryDenyWriteExecute does where the kernel can (Linux 6.3)
    assert libc.prctl(65, 1, 0, 0, 0) == 0
os.execv(REAL, [REAL, *sys.argv[1:]])
"""


def limited(binaries: Binaries, directory: Path, limit: str) -> Binaries:
    """The installation, with a server that runs under that limit."""
    for program in binaries.bindir.iterdir():
        (directory / program.name).symlink_to(program)
    wrapper = directory / "postgres"
    wrapper.unlink()
    wrapper.write_text(_WRAPPER.format(real=str(binaries.postgres), limit=limit))
    wrapper.chmod(0o755)
    return dataclasses.replace(binaries, bindir=directory)


def info(cluster: Cluster, function: str) -> dict[str, object]:
    with cluster.connect() as connection:
        cursor = connection.execute(f"SELECT * FROM {function}".encode())
        assert cursor.description
        (row,) = cursor.fetchall()
        return dict(zip([d.name for d in cursor.description], row, strict=True))


def preloading(binaries: Binaries, under: Binaries) -> Cluster:
    return Cluster(under, preload=[loadable(binaries, module).library for module in MODULES])


def create(cluster: Cluster, binaries: Binaries) -> tuple[dict[str, object], dict[str, object]]:
    """What both modules say of themselves."""
    with cluster.connect() as connection:
        for module in MODULES:
            connection.execute(loadable(binaries, module).create_sql.encode())
    schema = "public" if binaries.origin == "wheel" else "wait_event_timing"
    return info(cluster, f"{schema}.wait_event_timing_info()"), info(cluster, "pgtare.info()")


@pytest.mark.debian
def test_memory_that_may_not_be_written(debian15: Binaries, open_directory: Path) -> None:
    """Debian's call slots are read-only: that they stay so is said wherever it matters."""
    under = limited(debian15, open_directory, "no writing")
    refused = (
        "the kernel refused to make the server's call slots writable "
        "(mprotect: Operation not permitted)"
    )
    with preloading(debian15, under) as cluster:
        for found in create(cluster, debian15):
            assert (found["slots_installed"], found["slots_problem"]) == (0, refused)
        log = cluster.log_path.read_text()
        for module in MODULES:
            assert f"WARNING:  {module}: {refused}" in log
        with pytest.raises(UsageError, match="Operation not permitted"), trial(cluster):
            pass
        with bare_session(cluster) as client:
            client.execute("SELECT 1")


def test_memory_of_which_nothing_is_closed(wheel: Binaries, open_directory: Path) -> None:
    """The slots of a server that is bound lazily are always writable."""
    dynamic = subprocess.run(
        ["readelf", "-d", wheel.postgres], capture_output=True, text=True, check=True
    )
    if "BIND_NOW" in dynamic.stdout:
        pytest.skip("this server is bound when it starts")
    under = limited(wheel, open_directory, "no writing")
    with preloading(wheel, under) as cluster:
        for found in create(cluster, wheel):
            assert found["slots_installed"]
            assert found["slots_problem"] is None
        assert "mprotect" not in cluster.log_path.read_text()


@pytest.mark.debian
def test_memory_that_cannot_be_closed_again(debian15: Binaries, open_directory: Path) -> None:
    """The module works; that the slots have stayed open is said."""
    under = limited(debian15, open_directory, "no closing")
    with preloading(debian15, under) as cluster:
        for found in create(cluster, debian15):
            assert found["slots_installed"]
            assert "read-only again" in str(found["slots_problem"])
        assert "WARNING:  pgtare: the kernel refused" in cluster.log_path.read_text()
        with trial(cluster):
            pass


def test_memory_that_may_not_be_executed(binaries: Binaries, open_directory: Path) -> None:
    """Nothing that was writable becomes executable: that is no hindrance."""
    under = limited(binaries, open_directory, "no executing")
    with preloading(binaries, under) as cluster:
        for found in create(cluster, binaries):
            assert found["slots_installed"] == found["slots_intact"] != 0
            assert found["slots_problem"] is None
