"""PostgreSQL 15 for aarch64, run on x86-64 by QEMU: Debian's packages, unpacked without root.

Its processes are copies (fork) of the one that QEMU started, so all of them run emulated. The
programs are short scripts that start QEMU; `initdb` is the system's own, as both architectures
have the same layout of data.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries, from_pg_config
from pgtare.postgres.directories import locked, place
from tests.versions import debian_server
from tests.versions.debian_server import Say

MAJOR = 15
QEMU = "qemu-aarch64-static"
COMPILER = "aarch64-linux-gnu-gcc"
NATIVE = Path(f"/usr/lib/postgresql/{MAJOR}/bin")
EMULATED = ("postgres", "pg_config")
#: What does not run emulated: it makes or asks a server of either architecture.
ITSELF = ("initdb", "psql", "pgbench")


def install(say: Say) -> Binaries:
    """The installation, fetched if it is not here; UsageError says what is missing for it."""
    for program, package in ((QEMU, "qemu-user-static"), (COMPILER, "gcc-aarch64-linux-gnu")):
        if shutil.which(program) is None:
            raise UsageError(f"there is no {program}: apt-get install {package}")
    if not (NATIVE / "initdb").exists():
        raise UsageError(f"there is no {NATIVE}/initdb: apt-get install postgresql-{MAJOR}")
    target = place("debian") / f"{MAJOR}-arm64"
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            say(f"{MAJOR}: fetching Debian's packages of arm64, about 30 MB")
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
                root = Path(work, "root")
                packages = debian_server.fetch(MAJOR, Path(work), "arm64")
                debian_server.unpack(packages, root, MAJOR)
                debian_server.use_compiler(root, MAJOR, f"{COMPILER} --sysroot={target}")
                _write_programs(root, target)
                root.rename(target)
    found = from_pg_config(target / "bin" / "pg_config")
    return dataclasses.replace(found, bindir=target / "bin")


def _write_programs(root: Path, final: Path) -> None:
    """Scripts that run programs under QEMU; those of the system stay its own."""
    directory = root / "bin"
    directory.mkdir()
    qemu = shutil.which(QEMU)
    for name in EMULATED:
        # PostgreSQL finds its files by its own name
        path = final / f"usr/lib/postgresql/{MAJOR}/bin" / name
        script = f'#!/bin/sh\nexec {qemu} -L {final} {path} "$@"\n'
        (directory / name).write_text(script)
        (directory / name).chmod(0o755)
    for name in ITSELF:
        (directory / name).symlink_to(NATIVE / name)
