"""What can go wrong with a flame graph ends in one sentence, or is reported with the rest."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pgtare.observing.flame import processes, symbols
from pgtare.observing.flame.record import record
from pgtare.postgres.cluster import Cluster
from tests.commands import PGTARE, failed, pgtare, refused, start_pgtare, words
from tests.flame_recordings import needs_perf
from tests.loads import traffic
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def test_what_cannot_be_recorded_is_refused_in_one_sentence(
    server18: Cluster, tmp_path: Path
) -> None:
    pid, child = server18.postmaster_pid, processes.children(server18.postmaster_pid)[0]
    without_perf = pgtare(f"flame on --pid {pid}", PATH=str(tmp_path))
    assert "perf is not installed" in failed(without_perf, 2)
    for arguments, message in (
        ("on --pid 4194303", "there is no process 4194303"),
        (f"on --pid {os.getpid()}", "not one of PostgreSQL's"),
        ("on", "nothing to record"),
        ("off --pid 1 --postmaster 1", "choose one"),
        (f"off --postmaster {child}", f"--postmaster {pid}"),
    ):
        assert message in refused(f"flame {arguments}")


@pytest.mark.slow
def test_an_unprivileged_user_is_shown_what_is_missing(
    server18: Cluster, as_root: None, open_directory: Path
) -> None:
    needs_perf("on")
    program = (
        "import os, sys\n"
        "from pgtare.observing.flame import perf\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "for mode, level in (('on', 3), ('on', 2), ('off', 2)):\n"
        "    perf.paranoid = lambda level=level: level\n"
        "    try: perf.check_allowed(mode, [int(sys.argv[1])])\n"
        "    except Exception as ex: print(type(ex).__name__, ex)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(server18.postmaster_pid)],
        capture_output=True,
        text=True,
        check=True,
    )
    sampled, foreign, waits = done.stdout.splitlines()
    assert "perf_event_paranoid is 3, so only root may sample" in sampled
    assert f"process {server18.postmaster_pid} belongs to" in foreign
    assert "scheduler events of the whole machine" in waits


def _unshared(options: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """The command in namespaces of its own."""
    return subprocess.run(
        [*words(f"unshare {options}"), *PGTARE, *command],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


@pytest.mark.slow
def test_root_of_a_user_namespace_is_shown_what_is_missing(server18: Cluster) -> None:
    needs_perf()
    if subprocess.run(["unshare", "--user", "--map-root-user", "true"], check=False).returncode:
        pytest.skip("user namespaces are not allowed here")
    done = _unshared(
        "--user --map-root-user", words("flame off --postmaster {}", server18.postmaster_pid)
    )
    sentence = failed(done, 2)
    assert "scheduler events of the whole machine, which needs root" in sentence
    assert "root of a user namespace is not enough" in sentence


def _perfs(pid: int) -> list[psutil.Process]:
    """The collectors that a recorder has started."""
    children = (p for p in psutil.process_iter(["ppid", "name"]) if p.info["ppid"] == pid)
    return [child for child in children if child.info["name"].startswith("perf")]


@pytest.mark.slow
def test_a_backend_that_ends_meanwhile(server18: Cluster) -> None:
    needs_perf()
    connection = server18.connect()
    process = start_pgtare(
        "flame", "off", "--pid", str(connection.info.backend_pid), "-d", "60s", "--json"
    )
    eventually(lambda: _perfs(process.pid), 60)
    for _ in range(20):
        connection.execute("SELECT pg_sleep(0.1)")
    connection.close()
    collectors = _perfs(process.pid)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert not any(processes.exists(perf.pid) for perf in collectors)
    found = json.loads(out)
    assert found["stopped_by"] == "target"
    assert found["duration_s"] < 50
    assert any("ended while" in note for note in found["notes"])


def test_perf_ends_with_us(server18: Cluster) -> None:
    """Even where nothing is recorded, so that it never writes to us."""
    needs_perf("on")
    with server18.connect() as connection:
        process = start_pgtare(
            "flame", "on", "--pid", str(connection.info.backend_pid), "-d", "60s"
        )
        eventually(lambda: len(_perfs(process.pid)) == 2, 60)
        collectors = _perfs(process.pid)
        process.kill()
        process.wait()
        eventually(lambda: not any(processes.exists(perf.pid) for perf in collectors), 20)


@pytest.mark.parametrize("which", ["record", "script"])
@pytest.mark.slow
def test_a_killed_perf_is_reported(server18: Cluster, which: str) -> None:
    needs_perf("on")
    with server18.connect() as connection:
        process = start_pgtare(
            "flame on --pid {} -d 60s --json --rate 1999", connection.info.backend_pid
        )
        eventually(lambda: len(_perfs(process.pid)) == 2, 60)
        connection.execute("SELECT count(*) FROM generate_series(1, 8000000)")
        for perf in _perfs(process.pid):
            with contextlib.suppress(psutil.Error):  # its partner ends when it has nothing to read
                if which in perf.cmdline()[:2]:
                    perf.kill()
        out, err = process.communicate(timeout=60)
    if process.returncode == 0:
        found = json.loads(out)
        assert found["stopped_by"] == "perf"
        assert found["duration_s"] < 50
        assert any("perf ended by itself" in note for note in found["notes"])
    else:  # what it had read, it had not handed on yet
        assert process.returncode == 1
        assert "perf ended by itself" in err


def test_a_stripped_program_keeps_its_functions_apart(tmp_path: Path, server18: Cluster) -> None:
    if shutil.which("strip") is None:
        pytest.skip("needs strip")
    stripped = tmp_path / "postgres"
    subprocess.run(
        ["strip", "-o", stripped, server18.binaries.postgres], check=True, capture_output=True
    )
    found = symbols.read(str(stripped), "/usr/bin/postgres")
    assert found.stripped
    assert not found.frame_pointers
    first, second = found.starts[100:102]
    assert found.unnamed(first) == found.unnamed(second - 1) == f"postgres+0x{first:x}"
    assert found.unnamed(second) != found.unnamed(first)
    damaged = bytearray(stripped.read_bytes())
    table = int.from_bytes(damaged[0x28:0x30], "little")
    for where in range(table + 0x1F, len(damaged), 0x40):  # every section's place: far behind
        damaged[where] = 0xFF
    stripped.write_bytes(damaged)
    symbols.read.cache_clear()
    assert not symbols.read(str(stripped)).starts
    whole = symbols.read(str(server18.binaries.postgres))
    assert not whole.stripped
    assert whole.starts == found.starts


@pytest.mark.slow
def test_lost_samples_are_counted_and_reported(server18: Cluster, tmp_path: Path) -> None:
    """A reader that is held up loses events; perf tells how many."""
    needs_perf()

    wrapper = tmp_path / "perf"
    real = shutil.which("perf")
    # the smallest buffer, and a pause before it is first emptied
    wrapper.write_text(
        "#!/usr/bin/env python3\nimport os, sys, time\na = sys.argv[1:]\n"
        "if a[0] == 'script': time.sleep(3)\n"
        "else: a = ['1' if i and a[i - 1] == '-m' else w for i, w in enumerate(a)]\n"
        f"os.execv({real!r}, ['perf', *a])\n"
    )
    wrapper.chmod(0o755)
    with traffic(server18.dsn(), 2, "SELECT 1"):
        done = pgtare(
            "flame off --postmaster {} -d 2s --json",
            server18.postmaster_pid,
            PATH=f"{tmp_path}:{os.environ['PATH']}",
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["lost"] > 0
    assert any("were lost" in note for note in found["notes"])


@pytest.mark.slow
def test_a_server_in_another_pid_namespace(server18: Cluster, as_root: None) -> None:
    needs_perf("on")
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    done = _unshared("--pid --fork --mount-proc", words("flame on --dsn {} -d 1s", server18.dsn()))
    assert "not to be seen from here" in failed(done, 2)


@pytest.mark.slow
def test_the_whole_server_by_connection(server18: Cluster) -> None:
    needs_perf("on")

    with traffic(server18.dsn(), 1, "SELECT count(*) FROM generate_series(1, 50000)"):
        done = pgtare("flame on --dsn {} -d 1s --rate 499 --json", server18.dsn())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total_ns"] > 5e7


@pytest.mark.slow
def test_a_recording_ends_before_memory_does(
    server18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_perf("on")
    monkeypatch.setattr("pgtare.observing.flame.record.MOST_SAMPLES", 50)

    with traffic(server18.dsn(), 1, "SELECT count(*) FROM generate_series(1, 50000)"):
        found = record("on", processes.of_postmaster(server18.postmaster_pid), 60, 999)
    assert found.stopped_by == "full"
    assert found.duration_s < 30
    assert 50 <= len(found.samples) < 5000
    assert any("ended at 50 samples" in note for note in found.notes)
