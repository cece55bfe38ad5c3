"""Compile what is C with warnings as errors: the clock probe, and the server modules for every
PostgreSQL that is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pgtare.clock.build import LIBRARY, BuildError, compile_probe
from pgtare.errors import UsageError
from pgtare.server import binaries
from pgtare.server.binaries import Binaries
from pgtare.server.build import source_dir

DEBIAN = Path("/usr/lib/postgresql/15/bin/pg_config")


MODULES = ("pgtare", "wait_event_timing")


def compile_for(found: Binaries, module: str) -> bool:
    """Whether the module compiles without a warning."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(source_dir(), Path(work, "server"))
        done = subprocess.run(
            [
                "make", "-s", "-C", f"{work}/server/{module}", f"PG_CONFIG={found.pg_config}",
                "COPT=-Werror", f"CC={os.environ.get('CC', 'gcc')}",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    print(f"C, {module}, {found.version}: {'no warnings' if done.returncode == 0 else done.stderr}")
    return done.returncode == 0


def compile_clock() -> bool:
    """Whether the clock probe compiles without a warning."""
    told = "no warnings"
    with tempfile.TemporaryDirectory() as work:
        try:
            compile_probe(source_dir(), Path(work, LIBRARY), extra=("-Werror",))
        except BuildError as ex:
            told = str(ex)
    print(f"C, clock probe: {told}")
    return told == "no warnings"


def main() -> int:
    """Exit status: 0 where all compile."""
    wanted = [binaries.from_wheel()]
    try:
        wanted.append(binaries.from_pg_config(DEBIAN))
    except UsageError as ex:
        print(f"left out: {ex}")
    modules = [compile_for(found, module) for found in wanted for module in MODULES]
    return 0 if all([compile_clock(), *modules]) else 1


if __name__ == "__main__":
    sys.exit(main())
