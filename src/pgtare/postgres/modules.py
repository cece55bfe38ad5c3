"""Install server modules into a PostgreSQL installation, and take them out again."""

import contextlib
import errno
import filecmp
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pgtare.errors import UsageError
from pgtare.postgres import module_package
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import (
    BuiltModule,
    build_cached,
    build_key,
    control_version,
    sql_without_extension,
)
from pgtare.postgres.directories import locked
from pgtare.postgres.file_owner import SystemPackage, package_of
from pgtare.postgres.module_package import ModulePackage
from pgtare.postgres.module_usage import loaded_by, uses_on_server
from pgtare.postgres.signals import deferred

#: All modules, which are named as their extensions, in the order in which shared_preload_libraries
#: should name them: sql_trace records the waits that wait_event_timing times.
PRELOAD_ORDER = ("pgtare", "wait_event_timing", "sql_trace")


@dataclass(frozen=True)
class Installed:
    """What an installation did. package: of the system, to which the library belongs."""

    module: str
    version: str
    outcome: Literal["installed", "unchanged", "replaced"]
    files: tuple[Path, ...]
    package: SystemPackage | None = None


@dataclass(frozen=True)
class Loadable:
    """How a throwaway server gets a module: what to preload, and the SQL for its functions."""

    library: str
    create_sql: str


def loadable(
    binaries: Binaries,
    module: str = "pgtare",
    source: Path | None = None,
    schema: str | None = None,
) -> Loadable:
    """Make a module ready for throwaway servers; a user's own installation is left untouched.

    schema: where its functions go on a server in which no extension can be made (the wheel's
    follow the extension's own rule); a schema of the module's name, if not given.
    """
    if binaries.origin == "wheel":
        ensure_for_wheel(binaries, module, source)
        return Loadable(module, f"CREATE EXTENSION IF NOT EXISTS {module};\n")
    built = build_cached(binaries, module, source)
    return Loadable(built.library, sql_without_extension(built, schema or module))


def ensure_for_wheel(
    binaries: Binaries, module: str = "pgtare", source: Path | None = None
) -> None:
    """Keep the module in our own copy of the wheel up to date with the sources."""
    if binaries.origin != "wheel":
        raise ValueError("only the private copy of the wheel is installed into unasked")
    package = module_package.embedded(binaries) if source is None else None
    key = package.key(module) if package else build_key(binaries, module, source)
    stamp = binaries.pkglibdir / f".{module}.stamp"
    with locked(binaries.pkglibdir / f".{module}.lock"):
        library = binaries.pkglibdir / f"{module}.so"
        if library.exists() and stamp.exists() and stamp.read_text() == key:
            return
        stamp.unlink(missing_ok=True)
        install(binaries, module, force=True, source=source, package=package)
        stamp.write_text(key)


def install(
    binaries: Binaries,
    module: str = "pgtare",
    destdir: Path | None = None,
    force: bool = False,
    source: Path | None = None,
    package: ModulePackage | None = None,
) -> Installed:
    """Build a module and install it, below `destdir` if given (as packagers do).

    package: built modules that fit the installation, to be taken in place of a build. UsageError
    if another version or build of the module is there, unless `force`; servers that run keep the
    library that shared_preload_libraries has loaded until they restart. A package of the system
    puts its own files back when it is upgraded.
    """
    built = package.module(module) if package else build_cached(binaries, module, source)
    (done,) = _install_built([built], binaries, destdir, force)
    return done


def _install_built(
    modules: Sequence[BuiltModule], binaries: Binaries, destdir: Path | None, force: bool
) -> list[Installed]:
    """Put the files of all modules in place together, or none of them. Raises UsageError."""
    done: list[Installed] = []
    changed: dict[Path, Path] = {}
    stale: set[Path] = set()
    for built in modules:
        files, differing = _checked_targets(built, binaries, destdir, force)
        owner = owning_package(binaries, built.module) if destdir is None else None
        outcome: Literal["installed", "unchanged", "replaced"] = "unchanged"
        if differing or not all(os.path.exists(target) for target in files.values()):
            outcome = "replaced" if differing else "installed"
            changed |= files
            scripts = files[built.control_path].parent.glob(f"{built.module}--*.sql")
            stale |= set(scripts) - set(files.values())
        done.append(Installed(built.module, built.version, outcome, tuple(files.values()), owner))
    # Control files go last: without them CREATE EXTENSION does not see an unfinished set.
    _place_files(dict(sorted(changed.items(), key=lambda item: item[0].suffix == ".control")))
    for path in stale:
        path.unlink()
    return done


def _checked_targets(
    built: BuiltModule, binaries: Binaries, destdir: Path | None, force: bool
) -> tuple[dict[Path, Path], list[Path]]:
    """Where each file of a module goes, and which of these places hold something else.

    UsageError if that must stay.
    """
    libraries, extensions = _directories(binaries, destdir)
    files = {
        **{path: extensions / path.name for path in built.sql_paths},
        built.so_path: libraries / built.so_path.name,
        built.control_path: extensions / built.control_path.name,
    }
    present = {path: target for path, target in files.items() if os.path.exists(target)}
    for target in present.values():
        if not target.is_file():
            raise UsageError(f"{target} is no file: move it away")
    differing = [t for p, t in present.items() if not filecmp.cmp(p, t, shallow=False)]
    if differing and not force:
        raise UsageError(_describe_conflict(built, differing, binaries, destdir))
    return files, differing


def install_all(
    binaries: Binaries,
    names: Sequence[str],
    destdir: Path | None = None,
    force: bool = False,
    package: ModulePackage | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Installed]:
    """Install modules together, as `install` does one. tell: called as each build begins.

    What was built below `destdir` gets a manifest, so that it can be installed from elsewhere. A
    manifest that describes what was there before is removed.
    """
    built = []
    for number, name in enumerate(names, 1):
        step = functools.partial(tell, f"building {name} ({number} of {len(names)})")
        built.append(package.module(name) if package else build_cached(binaries, name, tell=step))
        _checked_targets(built[-1], binaries, destdir, force)  # before the next one is built
    libraries, extensions = _directories(binaries, destdir)
    done = _install_built(built, binaries, destdir, force)
    if any(one.outcome != "unchanged" for one in done):
        _remove_manifest(libraries)
    if destdir is not None and package is None:
        module_package.write_manifest(binaries, libraries, extensions, PRELOAD_ORDER)
    return done


def _remove_manifest(libraries: Path) -> None:
    try:
        (libraries / module_package.MANIFEST).unlink(missing_ok=True)
    except OSError as ex:
        raise _cannot_write(libraries, ex) from ex


def installed_library(binaries: Binaries, module: str = "pgtare") -> Path | None:
    """The file that a server of this installation loads; None if there is none."""
    library = binaries.pkglibdir / f"{module}.so"
    return library if library.exists() else None


def owning_package(binaries: Binaries, module: str = "pgtare") -> SystemPackage | None:
    """The package of the system that a module's library is of; None if it is of none."""
    if binaries.origin == "wheel":  # in no package, and looked at for every throwaway server
        return None
    library = installed_library(binaries, module)
    return package_of(library) if library else None


def installed_version(
    binaries: Binaries, module: str = "pgtare", destdir: Path | None = None
) -> str | None:
    """The version of an installed module, "unknown" if its control file is missing, or None."""
    libraries, extensions = _directories(binaries, destdir)
    control = extensions / f"{module}.control"
    if control.exists():
        return control_version(control)
    return "unknown" if (libraries / f"{module}.so").exists() else None


def installed_files(binaries: Binaries, module: str = "pgtare") -> list[Path]:
    """The files of a module, and those that an installation left when it was killed."""
    libraries, extensions = binaries.pkglibdir, binaries.extension_dir
    named = (extensions / f"{module}.control", libraries / f"{module}.so")
    unfinished = re.compile(rf"\.{re.escape(module)}(\.control|\.so|--.*\.sql)\.[a-z0-9_]{{8}}")
    return [
        *(path for path in named if path.exists()),
        *extensions.glob(f"{module}--*"),
        *(
            path
            for directory in dict.fromkeys((libraries, extensions))
            for path in directory.glob(f".{module}*")
            if unfinished.fullmatch(path.name)
        ),
    ]


def uninstall(
    binaries: Binaries, module: str = "pgtare", dsn: str | None = None, force: bool = False
) -> list[Path]:
    """Remove an installed module and return its files.

    A setting that names a missing library stops a server from starting, or sessions from opening.
    So `dsn` must reach the server as superuser, and UsageError says what still uses the module;
    `force` removes it unseen. Other servers of the same installation are noticed only while they
    run and have the library loaded.
    """
    libraries = binaries.pkglibdir
    library = libraries / f"{module}.so"
    files = installed_files(binaries, module)
    if not files:
        raise UsageError(f"{module} is not installed in {libraries}: there is nothing to remove")
    manifest = libraries / module_package.MANIFEST  # of all modules: it goes with the last
    others = [name for name in PRELOAD_ORDER if name != module]
    if manifest.exists() and not any((libraries / f"{name}.so").exists() for name in others):
        files.append(manifest)
    if owner := owning_package(binaries, module):
        raise UsageError(
            f"{library} belongs to the package {owner}, which may have others of "
            f"{', '.join(PRELOAD_ORDER)}: remove that with `{owner.removal}`, once no setting of a "
            "server names any of them"
        )
    if not force:
        _refuse_if_used(binaries, module, library, dsn)
    for path in files:
        try:
            path.unlink()
        except OSError as ex:
            raise UsageError(
                f"cannot remove {path} ({ex.strerror}): run the command as the owner of its "
                "directory (mostly root)"
            ) from ex
    return files


def _refuse_if_used(binaries: Binaries, module: str, library: Path, dsn: str | None) -> None:
    if dsn is None:
        raise UsageError(
            f"a server whose settings still name {module} would not start without it: give --dsn "
            "of the server, so that its settings can be looked at, or use "
            "`pgtare module uninstall --force`"
        )
    uses = uses_on_server(dsn, module, binaries.pkglibdir)
    pids = loaded_by(library)
    if pids:
        uses.append(f"loaded by process {', '.join(map(str, pids[:5]))}")
    if uses:
        raise UsageError(
            f"{module} is still in use ({'; '.join(uses)}): take it out there and restart or "
            f"reload the server first, or use --force"
        )


def _describe_conflict(
    built: BuiltModule, differing: list[Path], binaries: Binaries, destdir: Path | None
) -> str:
    there = installed_version(binaries, built.module, destdir)
    what = f"version {there}" if there != built.version else f"another build of version {there}"
    owner = owning_package(binaries, built.module) if destdir is None else None
    if owner:
        return (
            f"{what} of {built.module} is already installed by the package {owner} "
            f"({differing[0]}), and this is version {built.version}: upgrade the package, or take "
            f"it out first (`{owner.removal}`) and install all modules of it; --force replaces its "
            "files until it is upgraded"
        )
    return (
        f"{what} of {built.module} is already installed ({differing[0]} differs) and this is "
        f"version {built.version}: use --force to replace it; running servers keep the old one "
        f"until they restart, but with session_preload_libraries each new session loads the new "
        f"one at once"
    )


def _directories(binaries: Binaries, destdir: Path | None) -> tuple[Path, Path]:
    if destdir is None:
        return binaries.pkglibdir, binaries.extension_dir
    root = destdir.absolute()
    return (
        root / binaries.pkglibdir.relative_to("/"),
        root / binaries.extension_dir.relative_to("/"),
    )


def _place_files(files: Mapping[Path, Path]) -> None:
    """Copy files to their places by renaming, once all of them are written.

    So a disk that is full leaves what was there. And backends keep the old library mapped: writing
    into it would crash them.
    """
    with contextlib.ExitStack() as unfinished:
        written = {target: _written(path, target, unfinished) for path, target in files.items()}
        with deferred():
            for target, name in written.items():
                try:
                    os.replace(name, target)
                except OSError as ex:
                    raise _cannot_write(target.parent, ex) from ex


def _written(source: Path, target: Path, unfinished: contextlib.ExitStack) -> str:
    """A copy of a file next to its place; `unfinished` removes it, unless it was renamed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        unfinished.callback(_remove_unfinished, name)
        with open(source, "rb") as content, os.fdopen(fd, "wb") as copy:
            shutil.copyfileobj(content, copy)
            os.fchmod(copy.fileno(), 0o755 if target.suffix == ".so" else 0o644)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError as ex:
        raise _cannot_write(target.parent, ex) from ex
    return name


def _remove_unfinished(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)


def _cannot_write(directory: Path, ex: OSError) -> UsageError:
    if ex.errno in (errno.ENOSPC, errno.EDQUOT):
        return UsageError(f"{directory} is full: make room there, then run the command again")
    return UsageError(
        f"cannot write to {directory} ({ex.strerror}): run the command as its owner (mostly root), "
        f"or use --destdir to get the files into a directory of yours"
    )
