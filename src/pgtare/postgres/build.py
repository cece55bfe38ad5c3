"""Build a server module for one PostgreSQL installation with PGXS, in a copy of its sources."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pgtare
from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.directories import is_plain, made_once
from pgtare.postgres.os_account import environment

COMMON = "common"
BUILD_SECONDS = 300.0
OUTPUT_TAIL_LINES = 15
# What a build leaves behind in a checkout is neither copied nor part of a source's identity.
ARTEFACTS = ("*.o", "*.so", "*.a", "*.bc", "*.d", ".*", "results", "tmp_check", "__pycache__")

# Part of the cache key: a change here must build again.
_OPTIONS = ("with_llvm=no",)  # bitcode would need clang, and gives a module of hooks nothing
_PRE_RELEASE = re.compile(r"PostgreSQL \d+(devel|alpha|beta|rc)")


@dataclass(frozen=True)
class BuiltModule:
    """The files of a built module."""

    module: str
    version: str
    so_path: Path
    control_path: Path
    sql_path: Path
    """The script that CREATE EXTENSION runs for `version`."""
    sql_paths: tuple[Path, ...]
    """All scripts, upgrades too."""

    @property
    def library(self) -> str:
        """What shared_preload_libraries takes to load this very file."""
        return str(self.so_path.with_suffix(""))


def source_dir() -> Path:
    """The C sources: inside an installed package, or next to it in a checkout."""
    package = Path(pgtare.__file__).resolve().parent
    for candidate in (package / "_csrc", package.parents[1] / "server"):
        if (candidate / COMMON).is_dir():
            return candidate
    raise UsageError(
        f"the C sources of the server modules are missing from {package}: install pgtare again"
    )


def build(
    binaries: Binaries,
    module: str,
    workdir: Path,
    source: Path | None = None,
    flags: str = "",
) -> BuiltModule:
    """Build a module from `source` (`source_dir()` if not given) below an empty `workdir`.

    flags: more of the compiler's, for example what it takes for an error.
    """
    require_toolchain(binaries)
    source = _module_source(module, source)
    copy, stage = workdir / "source", workdir / "stage"
    for name in _parts(module, source):
        shutil.copytree(source / name, copy / name, ignore=shutil.ignore_patterns(*ARTEFACTS))
    command = [
        "make",
        "-C",
        str(copy / module),
        f"PG_CONFIG={binaries.pg_config}",
        # Without the directory's name in it, the same source gives the same file.
        f"COPT=-ffile-prefix-map={copy}=. {flags}",
        *_OPTIONS,
        *compiler(binaries),
    ]
    # few at a time and their output apart: the error of one stays in the lines that are shown
    together = ["--output-sync", f"-j{min(os.cpu_count() or 1, 4)}"]
    run_make([*command, *together, "all"], module, binaries)
    run_make([*command, "install", f"DESTDIR={stage}"], module, binaries)
    library = _below(stage, binaries.pkglibdir) / f"{module}.so"
    extension = _below(stage, binaries.extension_dir)
    return describe(module, library, extension, f"the build of {module}")


def build_cached(
    binaries: Binaries,
    module: str = "pgtare",
    source: Path | None = None,
    tell: Callable[[], None] = lambda: None,
) -> BuiltModule:
    """The module built for an installation, without installing it; built only if it changed.

    tell: called before it is built.

    The files lie where servers that we start can read them. An absolute path in
    shared_preload_libraries loads the library from there.
    """

    def make(work: Path) -> Path:
        tell()
        return ready_to_load(build(binaries, module, work, source), work)

    target = made_once("modules", cache_name(binaries, module, source), make)
    return describe(module, target / f"{module}.so", target, f"the build of {module}")


def cache_name(binaries: Binaries, module: str, source: Path | None = None) -> str:
    """The directory of a build below `modules`: another one for other sources or compilers."""
    return f"{module}-{build_key(binaries, module, source)[:16]}"


def ready_to_load(built: BuiltModule, work: Path) -> Path:
    """A directory below `work` with the files of a built module, for any user to read."""
    ready = work / "ready"
    ready.mkdir()
    for path in (built.so_path, built.control_path, *built.sql_paths):
        shutil.copyfile(path, ready / path.name)
        (ready / path.name).chmod(0o755 if path == built.so_path else 0o644)
    ready.chmod(0o755)
    return ready


def build_key(binaries: Binaries, module: str, source: Path | None = None) -> str:
    """A digest of all that decides what a build gives."""
    source = _module_source(module, source)
    digest = hashlib.sha256()
    identity = (str(binaries.pg_config), binaries.version, *_OPTIONS, *compiler(binaries))
    for part in identity:
        digest.update(part.encode() + b"\0")
    for content in _server_identity(binaries):
        digest.update(f"{len(content)}\0".encode() + content)
    for name in _parts(module, source):
        for path in sorted((source / name).rglob("*")):
            relative = path.relative_to(source)
            if path.is_file() and not any(is_artefact(part) for part in relative.parts):
                content = path.read_bytes()
                digest.update(f"{relative}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _server_identity(binaries: Binaries) -> Iterator[bytes]:
    """What a module must fit besides the version: the server may be built again in place.

    A pre-release changes its headers without changing its version. They are not read, since there
    are hundreds: size and time of each will do.
    """
    command = [str(binaries.pg_config), "--configure", "--cflags"]
    yield subprocess.run(command, capture_output=True, check=False).stdout
    headers = binaries.includedir_server
    for path in sorted(headers.glob("pg_config*.h")):  # RPM's pg_config.h includes another
        yield path.read_bytes()
    if _PRE_RELEASE.match(binaries.version):
        for path in sorted(headers.rglob("*.h")):
            info = path.stat()
            yield f"{path.relative_to(headers)} {info.st_size} {info.st_mtime_ns}".encode()


def sql_without_extension(built: BuiltModule, schema: str = "pgtare") -> str:
    """SQL that makes a module's functions in `schema` from its file, with nothing installed.

    It does what CREATE EXTENSION would do with the script. Run it by one `execute` of a connection
    in autocommit mode, on a server that has the library preloaded. But for public, the schema is
    made here: the owner of one that is there could replace our functions.
    """
    lines = built.sql_path.read_text().splitlines()
    script = "\n".join(line for line in lines if not line.startswith("\\echo"))
    script = script.replace("MODULE_PATHNAME", built.library).replace("@extschema@", schema)
    schema_sql = "" if schema == "public" else f"CREATE SCHEMA {schema};\n"
    return f"BEGIN;\n{schema_sql}SET LOCAL search_path = {schema}, pg_temp;\n{script}\nCOMMIT;\n"


def require_toolchain(binaries: Binaries) -> None:
    """Raise UsageError, naming the package, if something that a build needs is missing."""
    for path in (binaries.pg_config, binaries.pgxs, binaries.includedir_server):
        if not is_plain(path):
            raise UsageError(
                f"make cannot handle blanks and special signs as in {path}: "
                f"modules can be built only for an installation with a plain path"
            )
    if shutil.which("make") is None:
        raise UsageError("building a server module needs make: install it (package make)")
    compiler(binaries)
    headers = binaries.includedir_server / "postgres.h"
    for path in (headers, binaries.pgxs):
        if not path.exists():
            raise UsageError(
                f"building a server module needs {path}: install PostgreSQL's development files "
                f"(Debian: postgresql-server-dev-{binaries.major}; "
                f"RPM: postgresql{binaries.major}-devel)"
            )


def compiler(binaries: Binaries) -> tuple[str, ...]:
    """Nothing if the compiler that PostgreSQL was built with is here, else make's CC=another."""
    if shutil.which(_usual_compiler(binaries).split()[0]):
        return ()
    for other in ("gcc", "cc", "clang"):
        if shutil.which(other):
            return (f"CC={other}",)
    raise UsageError("building a server module needs a C compiler: install gcc (package gcc)")


def compiler_command(binaries: Binaries) -> str:
    """The compiler that a build takes, with its options."""
    chosen = compiler(binaries)
    return chosen[0].removeprefix("CC=") if chosen else _usual_compiler(binaries)


def _usual_compiler(binaries: Binaries) -> str:
    done = subprocess.run([binaries.pg_config, "--cc"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "gcc"


def _module_source(module: str, source: Path | None) -> Path:
    source = source or source_dir()
    if re.fullmatch(r"[a-z_][a-z0-9_]*", module) is None or not (source / module).is_dir():
        raise UsageError(f"there is no server module {module!r} in {source}")
    return source


def _parts(module: str, source: Path) -> list[str]:
    return [name for name in (COMMON, module) if (source / name).is_dir()]


def is_artefact(name: str) -> bool:
    return any(Path(name).match(pattern) for pattern in ARTEFACTS)


def _below(root: Path, absolute: Path) -> Path:
    return root / absolute.relative_to("/")


def run_make(command: list[str], module: str, binaries: Binaries) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment(),
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as ex:
        raise MeasurementError(
            f"building {module} for {binaries.version} took more than {BUILD_SECONDS:.0f} s: the "
            "machine is busy; run the command again, modules that are built are kept"
        ) from ex
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-OUTPUT_TAIL_LINES:])
        raise UsageError(f"{module} could not be built for {binaries.version}:\n{tail}")


def describe(module: str, library: Path, extension: Path, origin: str) -> BuiltModule:
    """A module's files; UsageError, which names their origin, if one is missing."""
    control = extension / f"{module}.control"
    try:
        version = control_version(control)
    except OSError as ex:
        raise UsageError(f"{origin} gave no {control.name}: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"{origin} is damaged: {control.name} cannot be read") from ex
    base = extension / f"{module}--{version}.sql"
    for path in (library, base):
        if not path.exists():
            raise UsageError(f"{origin} gave no {path.name} of {module} {version}")
    scripts = tuple(sorted(extension.glob(f"{module}--*.sql")))
    return BuiltModule(module, version, library, control, base, scripts)


def control_version(control: Path) -> str:
    """The default_version of an extension's control file."""
    found = re.search(r"^\s*default_version\s*=\s*'([^']*)'", control.read_text(), re.MULTILINE)
    return found[1] if found else "unknown"
