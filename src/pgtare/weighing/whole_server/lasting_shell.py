"""A shell of its own session that may outlive us, and reads what we write until we are gone."""

from __future__ import annotations

import os
import subprocess
from typing import IO


def start(script: str, output: IO[bytes] | int) -> tuple[subprocess.Popen[bytes], int]:
    """Start it; the end of its pipe that we write to, which closes with us."""
    reads, writes = os.pipe()
    popen = subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=reads,
        stdout=output,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    os.close(reads)
    return popen, writes
