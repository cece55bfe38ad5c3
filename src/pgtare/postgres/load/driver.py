"""Build the duet driver, a C program, with the libpq of one PostgreSQL installation."""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import shutil
import subprocess
from pathlib import Path

import pgtare
from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries, from_wheel
from pgtare.postgres.build import ARTEFACTS, compiler, is_artefact, run_make
from pgtare.postgres.directories import is_plain, locked, made_once
from pgtare.postgres.module_package import embedded_program
from pgtare.postgres.os_account import environment

PROGRAM = "duet"


def driver_source() -> Path:
    """The driver's C sources: inside an installed package, or next to it in a checkout."""
    package = Path(pgtare.__file__).resolve().parent
    for candidate in (package / "_driver", package.parents[1] / "driver"):
        if (candidate / "duet.h").is_file():
            return candidate
    raise UsageError(f"the C sources of the duet driver are missing from {package}: reinstall it")


def driver_for(binaries: Binaries) -> Path:
    """The driver for servers of an installation: that of the bundled PostgreSQL, if there is one.

    It serves every version, may have come with this command, and does not depend on how the
    installation's libpq was built.
    """
    with contextlib.suppress(UsageError):
        binaries = from_wheel()
    return build_driver(binaries)


def build_driver(binaries: Binaries, source: Path | None = None) -> Path:
    """The driver for an installation; built only if its sources or libpq have changed.

    That of the bundled PostgreSQL may have come with this command.

    It can talk to servers of other versions too. Raises UsageError, naming the package, if a
    compiler, make, or libpq's development files are missing.
    """
    if source is None and (ready := embedded_program(PROGRAM, binaries)) is not None:
        return _installed(ready, binaries)
    source = source or driver_source()
    _require(binaries)

    def make(work: Path) -> Path:
        copy = work / "source"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*ARTEFACTS))
        command = ["make", "-C", str(copy), f"PG_CONFIG={binaries.pg_config}"]
        run_make([*command, *compiler(binaries), PROGRAM], "the duet driver", binaries)
        built = copy / PROGRAM
        built.chmod(0o755)
        return built

    return made_once("drivers", f"{PROGRAM}-{_key(binaries, source)[:16]}", make)


def _installed(ready: Path, binaries: Binaries) -> Path:
    """The driver that came with this command, put where it finds the bundled PostgreSQL's libpq."""
    target = binaries.bindir / "pgtare-duet"
    with locked(binaries.bindir / ".duet.lock"):
        if not target.exists() or not filecmp.cmp(ready, target, shallow=False):
            copy = target.with_name(".duet.new")
            shutil.copyfile(ready, copy)
            copy.chmod(0o755)
            copy.replace(target)
    return target


def _require(binaries: Binaries) -> None:
    if shutil.which("make") is None:
        raise UsageError("building the duet driver needs make: install it (package make)")
    if not is_plain(binaries.pg_config):
        raise UsageError(
            f"make cannot handle blanks and special signs as in {binaries.pg_config}: "
            "the duet driver can be built only for an installation with a plain path"
        )
    compiler(binaries)
    header = Path(_pg_config(binaries, "--includedir")) / "libpq-fe.h"
    if not header.exists():
        raise UsageError(
            f"building the duet driver needs {header}: install libpq's development files "
            "(Debian: libpq-dev; RPM: libpq-devel)"
        )


def _key(binaries: Binaries, source: Path) -> str:
    digest = hashlib.sha256()
    identity = (str(binaries.pg_config), binaries.version, _pg_config(binaries, "--libdir"))
    for part in (*identity, *compiler(binaries)):
        digest.update(part.encode() + b"\0")
    for path in sorted(source.iterdir()):
        if path.is_file() and not is_artefact(path.name):
            digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _pg_config(binaries: Binaries, what: str) -> str:
    done = subprocess.run(
        [binaries.pg_config, what], capture_output=True, text=True, check=False, env=environment()
    )
    return done.stdout.strip()
