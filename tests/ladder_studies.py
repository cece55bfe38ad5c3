"""Short studies of a ladder on real servers, and how they are run to their end or met under way."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.commands import pgtare
from tests.sessions import eventually

# Other tests' machine is busy: the gates that look at it are opened, and tried one by one.
OPEN = """
[gates]
steal_at_most = "100%"
other_load_at_most = "100%"
"""
STUDY = (
    """
title = "A short study"
[protocol]
rounds = 8
run = "10s"
[analysis]
floor = "OFF"
[quick]
rounds = 2
run = "1s"
warm_up = "1s"
"""
    + OPEN
    + """
[[variant]]
name = "OFF"
preload = ["wait_event_timing"]
runtime = { "wait_event_timing.capture" = "off" }
capture = "off"
[[variant]]
name = "TRA"
preload = ["wait_event_timing"]
runtime = { "wait_event_timing.capture" = "trace" }
capture = "trace"
[[comparison]]
arm = "TRA"
base = "OFF"
[[workload]]
name = "W3"
builtin = "select-only"
clients = 1
scale = 2
settings = { shared_buffers = "1MB" }
also = ["cpu_us", "latency_p99_us"]
[[workload.profile]]
event = "IO/DataFileRead"
at_least = "50%"
"""
)


def write(directory: Path, text: str = STUDY) -> Path:
    """The file of a study."""
    path = directory / "short.toml"
    path.write_text(text)
    return path


def finish(study: Path, timeout: float = 120) -> Path:
    """Run a study's quick form to its end: its output; what was printed is in a file next to it."""
    out = study.parent / "out"
    done = pgtare("ladder", study, "--quick", "--out", out, "--seed", "5", timeout=timeout)
    assert done.returncode == 0, done.stderr
    (study.parent / "output.txt").write_text(done.stdout + done.stderr)
    return out


def wait_while_running(
    condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 90.0
) -> Any:
    """What the condition returned as soon as that was true; the process runs until then."""

    def met() -> object:
        found = condition()
        assert found or process.poll() is None, process.communicate()
        return found

    return eventually(met, seconds)


def backend_below(owner: int) -> tuple[int, int] | None:
    """A session in the database of a pgtare's study, and its postmaster."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for postmaster in psutil.Process(owner).children():
            for child in postmaster.children():
                title = " ".join(child.cmdline())
                if title.startswith("postgres:") and "pgtare_ladder_" in title:
                    return child.pid, postmaster.pid
    return None
