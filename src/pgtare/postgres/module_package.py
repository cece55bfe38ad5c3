"""Modules that were built elsewhere: a directory or .tar of them, and what it is good for.

A manifest (`pgtare-modules.json`) lies next to the libraries. `server/manifest.sh` writes it, for
the packages of distributions without Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import platform
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

import pgtare
from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import BuiltModule, compiler_command, describe, source_dir
from pgtare.postgres.module_versions import series
from pgtare.postgres.os_account import environment

MANIFEST = "pgtare-modules.json"
#: Of a package: bytes of its files in all, files of any kind, bytes of a manifest.
_LARGEST = 256 << 20
_MOST_MEMBERS = 20_000
_LARGEST_MANIFEST = 1 << 20
_SUFFIXES = {".so", ".control", ".sql", ".json"}
_UNREADABLE = (OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError, zlib.error)


class Manifest(BaseModel):
    """What a package says of its modules."""

    schema_: Literal["pgtare.module.package/1"] = Field(alias="schema")
    version: str = Field(pattern=r"^[0-9]{1,4}(\.[0-9]{1,4}){1,3}$")
    postgresql: int
    architecture: str = Field(pattern=r"^[a-z0-9_]{1,40}$")
    libc: str = Field(pattern=r"^glibc [0-9]{1,3}\.[0-9]{1,4}$")
    """The oldest C library that the modules work with."""
    extension: str = Field(pattern=r"^[A-Za-z0-9_./+-]{1,4000}$")
    """The directory of control files and scripts, as seen from that of the libraries."""
    modules: list[Annotated[str, Field(pattern=r"^[a-z_]{1,60}$")]] = Field(min_length=1)


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
        from pgtare.postgres import elf_file  # costs commands that install nothing 40 ms

        extension = Path(os.path.normpath(self.directory / self.manifest.extension))
        found = describe(name, self.directory / f"{name}.so", extension, str(self.origin))
        machine = elf_file.architecture(found.so_path)
        if machine != self.manifest.architecture or not elf_file.is_module(found.so_path):
            raise UsageError(
                f"{self.origin} is damaged: {found.so_path.name} is no module of PostgreSQL for "
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
    """The modules for one major version in a directory or package file, in files of our own.

    What is installed is what was checked: nobody else can change it in between. Raises UsageError
    if there are none.
    """
    with tempfile.TemporaryDirectory(prefix="pgtare-") as work:
        try:
            package = _taken(origin, Path(work), major)
        except OSError as ex:
            raise UsageError(f"{origin} cannot be read: {ex.strerror}") from ex
        yield package


def _taken(origin: Path, here: Path, major: int) -> ModulePackage:
    """The package with its files below a directory of our own."""
    if origin.is_dir():
        found = _found(origin, origin, major)
        _gather(found, here)
        return ModulePackage(origin, here, found.manifest.model_copy(update={"extension": "."}))
    if not origin.exists():
        raise UsageError(
            f"there is no {origin}: name a directory or a .tar file with built modules"
        )
    _unpack(origin, here)
    package = _found(origin, here, major)
    extension = (package.directory / package.manifest.extension).resolve()
    if not extension.is_relative_to(here.resolve()):
        raise UsageError(f"{origin} is damaged: its manifest names a directory outside of it")
    return package


def _gather(package: ModulePackage, into: Path) -> None:
    """Copy the files of all modules out of a directory; links and devices are refused."""
    extension = Path(os.path.normpath(package.directory / package.manifest.extension))
    for directory in (package.directory, extension):
        info = directory.stat()
        # the group of whoever installs is as good as they are; other groups are other people
        group_writes = info.st_mode & stat.S_IWGRP and info.st_gid not in (0, os.getegid())
        others_write = info.st_uid not in (0, os.geteuid()) or info.st_mode & stat.S_IWOTH
        if group_writes or others_write:
            raise UsageError(
                f"other users can change {directory}: copy it to a directory of your own"
            )
    for name in package.manifest.modules:
        _copy(package.directory / f"{name}.so", into, package.origin)
        for path in (extension / f"{name}.control", *extension.glob(f"{name}--*.sql")):
            _copy(path, into, package.origin)


def _copy(path: Path, into: Path, origin: Path) -> None:
    """Copy a regular file; one that is missing is found to be so later."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > _LARGEST:
                raise UsageError(f"{origin} is damaged: {path.name} is no file of a module")
            (into / path.name).write_bytes(file.read())
    except FileNotFoundError:
        return
    except OSError as ex:
        raise UsageError(f"{origin} is damaged: {path.name} cannot be read ({ex.strerror})") from ex


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


def _embedded_directory() -> Path:
    return Path(pgtare.__file__).resolve().parent / "_prebuilt"


def require_fit(package: ModulePackage, binaries: Binaries) -> None:
    """Raise UsageError if the package is not for this command, server or machine."""
    from pgtare.postgres import elf_file

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
    machine = elf_file.architecture(binaries.postgres) or platform.machine()
    if said.architecture != machine:
        raise UsageError(
            f"{origin} is for {said.architecture}, and {binaries.postgres} is for {machine}: "
            f"get the package for {machine}"
        )
    libc = elf_file.libc(binaries.postgres)
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


def write_manifest(
    binaries: Binaries, directory: Path, extension: Path, modules: Sequence[str]
) -> Path:
    """Make a directory of built modules one that can be installed from; gives the manifest.

    directory: where the libraries are, maybe with others'; extension: where control files and
    scripts are. modules: those of them that are there are listed.
    """
    libraries = [path for name in modules if (path := directory / f"{name}.so").exists()]
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
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{path.name} is no file")
            return Manifest.model_validate_json(file.read(_LARGEST_MANIFEST))
    except (OSError, ValidationError) as ex:
        raise UsageError(
            f"{origin} is damaged, or made for another version of the command: {path.name} "
            "cannot be read"
        ) from ex


def _unpack(package: Path, into: Path) -> None:
    if not stat.S_ISREG(package.stat().st_mode):
        raise UsageError(f"{package} is no file: name a directory or a .tar file")
    try:
        with tarfile.open(package) as archive:
            _take(archive, into)
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass  # to its end, where the checksum of what was compressed is
    except _UNREADABLE as ex:
        first = str(ex).partition("\n")[0].rstrip(":") or "it ends too soon"
        raise UsageError(
            f"{package} cannot be unpacked ({first}): name a directory or a .tar file with built "
            "modules (dpkg-deb -x unpacks a .deb)"
        ) from ex


def _take(archive: tarfile.TarFile, into: Path) -> None:
    """Write the files that modules consist of; nothing else in the archive is looked at."""
    total = 0
    for number, member in enumerate(archive):
        path = PurePosixPath(member.name)
        if number > _MOST_MEMBERS:
            raise tarfile.TarError(f"more than {_MOST_MEMBERS:,} files")
        if not member.isreg() or path.suffix not in _SUFFIXES:
            continue
        if path.is_absolute() or ".." in path.parts:
            raise tarfile.TarError(f"{member.name} lies outside of it")
        total += member.size
        content = archive.extractfile(member) if total <= _LARGEST else None
        if content is None:
            raise tarfile.TarError(f"larger than {_LARGEST >> 20} MiB")
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.write_bytes(content.read())
