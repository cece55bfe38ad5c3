"""Modules that were built elsewhere: a directory, .deb or .tar of them, and what it is good for.

A manifest (`pgtare-modules.json`) lies next to the libraries. `server/manifest.sh` writes it, for
the packages of distributions without Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import InterpSegment
from pydantic import BaseModel, Field, ValidationError

import pgtare
from pgtare.errors import UsageError
from pgtare.server.binaries import Binaries
from pgtare.server.build import BuiltModule, compiler_command, describe, source_dir
from pgtare.server.module_versions import series
from pgtare.server.os_account import environment

MANIFEST = "pgtare-modules.json"
#: Of a library or program, as its header names it, and as a manifest does.
_ARCHITECTURES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_UNPACK_SECONDS = 120.0
_USUAL_LOADERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")


class Manifest(BaseModel):
    """What a package says of its modules."""

    schema_: Literal["pgtare.module.package/1"] = Field(alias="schema")
    version: str
    postgresql: int
    architecture: str
    libc: str = Field(pattern=r"^glibc \d+\.\d+")
    """The oldest C library that the modules work with."""
    extension: str
    """The directory of control files and scripts, as seen from that of the libraries."""
    modules: list[str] = Field(min_length=1)


@dataclass(frozen=True)
class ModulePackage:
    """Built modules and their manifest. origin: what the user named."""

    origin: Path
    directory: Path
    manifest: Manifest

    def module(self, name: str) -> BuiltModule:
        """The files of a module; UsageError if the package lacks one of them."""
        if name not in self.manifest.modules:
            raise UsageError(
                f"{self.origin} has no module {name}: it has {', '.join(self.manifest.modules)}"
            )
        extension = Path(os.path.normpath(self.directory / self.manifest.extension))
        found = describe(name, self.directory / f"{name}.so", extension, str(self.origin))
        machine = _machine(found.so_path)
        if machine != self.manifest.architecture:
            raise UsageError(
                f"{self.origin} is damaged: {found.so_path.name} is no library for "
                f"{self.manifest.architecture}"
            )
        return found

    def key(self, name: str) -> str:
        """A digest of all files of a module."""
        found = self.module(name)
        digest = hashlib.sha256()
        for path in (found.so_path, found.control_path, *found.sql_paths):
            content = path.read_bytes()
            digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()


@contextlib.contextmanager
def opened(origin: Path, major: int) -> Iterator[ModulePackage]:
    """The modules for one major version in a directory or package file, unpacked if need be.

    Raises UsageError if there are none.
    """
    if origin.is_dir():
        yield _found(origin, origin, major)
        return
    if not origin.exists():
        raise UsageError(
            f"there is no {origin}: name a directory, a .deb or a .tar file with built modules"
        )
    with tempfile.TemporaryDirectory(prefix="pgtare-") as work:
        _unpack(origin, Path(work))
        yield _found(origin, Path(work), major)


def embedded(binaries: Binaries) -> ModulePackage | None:
    """The modules that came with this command for its bundled PostgreSQL; None: none that fit."""
    directory = _embedded_directory()
    if binaries.origin != "wheel" or not (directory / MANIFEST).exists():
        return None
    package = ModulePackage(directory, directory, _read(directory / MANIFEST, directory))
    try:
        require_fit(package, binaries)
    except UsageError:
        return None
    return package if package.manifest.version == pgtare.__version__ else None


def embedded_program(name: str, binaries: Binaries) -> Path | None:
    """A program that came with this command for its bundled PostgreSQL; None: none that fits."""
    package = embedded(binaries)
    path = package.directory / name if package else None
    return path if path is not None and path.exists() else None


def _embedded_directory() -> Path:
    return Path(pgtare.__file__).resolve().parent / "_prebuilt"


def require_fit(package: ModulePackage, binaries: Binaries) -> None:
    """Raise UsageError if the package is not for this command, server or machine."""
    said, origin, ours = package.manifest, package.origin, pgtare.__version__
    if series(said.version) != series(ours):
        raise UsageError(
            f"{origin} has modules of version {said.version}, and this command is {ours}: get the "
            f"package of version {ours}, or install version {said.version} of the command"
        )
    if said.postgresql != binaries.major:
        raise UsageError(
            f"{origin} is for PostgreSQL {said.postgresql}, and {binaries.pg_config} belongs to "
            f"{binaries.version}: get the package for PostgreSQL {binaries.major}"
        )
    machine = _machine(binaries.postgres) or platform.machine()
    if said.architecture != machine:
        raise UsageError(
            f"{origin} is for {said.architecture}, and {binaries.postgres} is for {machine}: "
            f"get the package for {machine}"
        )
    libc = _libc(binaries.postgres)
    if libc is not None and not libc.startswith("glibc "):
        raise UsageError(
            f"{origin} needs glibc, and {binaries.postgres} uses {libc}: "
            "the modules work only with servers that were built with glibc"
        )
    if libc is not None and series(libc) < series(said.libc):
        raise UsageError(
            f"{origin} needs {said.libc} or later, and this machine has {libc}: build the modules "
            "here (without --from), or get a package for this release of the system"
        )


def write_manifest(binaries: Binaries, directory: Path, extension: Path) -> Path:
    """Make a directory of built modules one that can be installed from; gives the manifest.

    directory: where the libraries are; extension: where control files and scripts are.
    """
    libraries = sorted(directory.glob("*.so"))
    arguments = [str(binaries.pg_config), compiler_command(binaries)]
    arguments += [os.path.relpath(extension, directory), *map(str, libraries)]
    done = subprocess.run(
        ["sh", str(source_dir() / "manifest.sh"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if done.returncode != 0:
        raise UsageError(
            f"the manifest of {directory} could not be made: {done.stderr.strip()[-300:]}"
        )
    target = directory / MANIFEST
    target.write_text(done.stdout)
    return target


def _found(origin: Path, root: Path, major: int) -> ModulePackage:
    """The package below a directory; of several, the one for a major version."""
    here = root / MANIFEST
    found = [here] if here.exists() else sorted(root.rglob(MANIFEST))
    if not found:
        raise UsageError(
            f"{origin} holds no {MANIFEST}, so it is no package of pgtare's modules: build the "
            "modules without --from, or name what `make packages` or --destdir gave"
        )
    read = {path: _read(path, origin) for path in found}
    fitting = {path: said for path, said in read.items() if said.postgresql == major} or read
    if len(fitting) > 1:
        places = ", ".join(str(path.parent.relative_to(root)) for path in fitting)
        raise UsageError(f"{origin} holds several packages ({places}): name one of them")
    ((path, said),) = fitting.items()
    return ModulePackage(origin, path.parent, said)


def _read(path: Path, origin: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as ex:
        raise UsageError(
            f"{origin} is damaged, or made for another version of the command: {path.name} "
            "cannot be read"
        ) from ex


def _unpack(package: Path, into: Path) -> None:
    if package.suffix == ".deb":
        _unpack_deb(package, into)
        return
    try:
        with tarfile.open(package) as archive:
            archive.extractall(into, filter="data")
    except (OSError, tarfile.TarError, EOFError) as ex:
        cause = str(ex).partition("\n")[0].rstrip(":")
        raise UsageError(
            f"{package} cannot be unpacked ({cause}): name a directory, a .deb or a .tar file "
            "with built modules"
        ) from ex


def _unpack_deb(package: Path, into: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        raise UsageError(
            f"unpacking {package} needs dpkg-deb: unpack it elsewhere and name the directory"
        )
    done = subprocess.run(
        ["dpkg-deb", "--extract", package, into],
        capture_output=True,
        text=True,
        check=False,
        timeout=_UNPACK_SECONDS,
        env=environment(),
    )
    if done.returncode != 0:
        cause = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UsageError(f"{package} cannot be unpacked ({cause[0]}): get the package again")


def _machine(path: Path) -> str | None:
    """The architecture of a library or program; None if it is neither."""
    try:
        with open(path, "rb") as file:
            name = ELFFile(file).header["e_machine"]
    except (OSError, ELFError):
        return None
    return _ARCHITECTURES.get(name, str(name))


def _libc(program: Path) -> str | None:
    """The C library that a program uses on this machine, as "glibc 2.36"; None: not known."""
    try:
        with open(program, "rb") as file:
            parts = ELFFile(file).iter_segments()
            loaders = [one.get_interp_name() for one in parts if isinstance(one, InterpSegment)]
    except (OSError, ELFError):
        return None
    if not loaders:
        return None
    if "musl" in loaders[0]:
        return "musl"
    if not loaders[0].startswith(_USUAL_LOADERS):
        return None  # a C library of the server's own
    with contextlib.suppress(ValueError, OSError):
        found = os.confstr("CS_GNU_LIBC_VERSION")
        return found if found and re.match(r"glibc \d+\.\d+", found) else None
    return None
