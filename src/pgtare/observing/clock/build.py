"""Compile the clock probe: when pgtare is installed, and again if its C sources have changed.

The build hook of the package (hatch_build.py) loads this file alone, so it imports nothing of
pgtare's and nothing that is not in the standard library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDERS = ("common", "clock")
LIBRARY = "_probe.so"
_OPTIONS = ("-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra")
_SECONDS = 120.0
_TAIL_LINES = 10


class BuildError(Exception):
    """The probe could not be compiled; one sentence with the cause and the next step."""


def digest(sources: Path) -> str:
    """What identifies the sources below `sources`; it is compiled into the library."""
    found = hashlib.sha256(" ".join(_OPTIONS).encode())
    for folder in FOLDERS:
        for path in sorted((sources / folder).glob("*.[ch]")):
            content = path.read_bytes()
            found.update(f"{folder}/{path.name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:32]


def compiler() -> list[str]:
    """The C compiler and its options: $CC (as "ccache gcc"), or what is there.

    Raises BuildError if there is none.
    """
    for command in (os.environ.get("CC", "").split(), ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    raise BuildError("the clock probe needs a C compiler: install gcc (package gcc)")


def compile_probe(sources: Path, target: Path, extra: tuple[str, ...] = ()) -> None:
    """Compile the probe of `sources` and put it at `target`, whole or not at all.

    Raises BuildError.
    """
    command = [
        *compiler(),
        *_OPTIONS,
        *extra,
        f'-DPROBE_SOURCES="{digest(sources)}"',
        *(str(path) for path in sorted((sources / "clock").glob("*.c"))),
    ]
    try:
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=target.parent) as work:
            made = Path(work, LIBRARY)
            done = subprocess.run(
                [*command, "-o", str(made)],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
            if done.returncode == 0:
                made.chmod(0o755)
                made.replace(target)
                return
    except (OSError, subprocess.TimeoutExpired) as ex:
        raise BuildError(f"the clock probe could not be compiled: {ex}") from ex
    tail = "\n".join(done.stderr.splitlines()[-_TAIL_LINES:])
    raise BuildError(f"the clock probe could not be compiled:\n{tail}")
