"""Compile all C with warnings as errors, for every PostgreSQL that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.load.driver import PROGRAM, driver_source
from pgtare.server import binaries
from pgtare.server.binaries import Binaries
from pgtare.server.build import source_dir

DEBIAN = Path("/usr/lib/postgresql/15/bin/pg_config")
NAMES = ("pgtare", "wait_event_timing", PROGRAM)


def compile_for(found: Binaries, name: str) -> bool:
    """Whether a server module, or the duet driver, compiles without a warning."""
    with tempfile.TemporaryDirectory() as work:
        if name == PROGRAM:
            shutil.copytree(driver_source(), Path(work, "sources", name))
        else:
            shutil.copytree(source_dir(), Path(work, "sources"))
        done = subprocess.run(
            [
                "make", "-s", "-C", f"{work}/sources/{name}", f"PG_CONFIG={found.pg_config}",
                "COPT=-Werror", f"CC={os.environ.get('CC', 'gcc')}",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    print(f"C, {name}, {found.version}: {'no warnings' if done.returncode == 0 else done.stderr}")
    return done.returncode == 0


def main() -> int:
    """Exit status: 0 where all compile."""
    wanted = [binaries.from_wheel()]
    try:
        wanted.append(binaries.from_pg_config(DEBIAN))
    except UsageError as ex:
        print(f"left out: {ex}")
    return 0 if all([compile_for(found, name) for found in wanted for name in NAMES]) else 1


if __name__ == "__main__":
    sys.exit(main())
