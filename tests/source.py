"""Build PostgreSQL from source: other compiler flags, other options, other orders of its objects.

What a server costs depends a little on how it was built, down to the order in which its objects
were linked. Here such servers are made, each an installation like any other. Builds are kept, so
that each is made once; `python -m tests.source --help` makes one by hand.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pgtare.errors import PgtareError, UsageError
from pgtare.postgres.binaries import Binaries, from_pg_config
from pgtare.postgres.directories import locked, place
from pgtare.postgres.os_account import environment
from tests.source_package import tarball, version_of

TOOLS = ("gcc", "make", "bison", "flex", "perl", "tar", "bzip2")
OUTPUT_TAIL_LINES = 12
PROGRESS_SECONDS = 2.0

# The server and the programs that pgtare and its tests call, in an order that make is content with
SERVER_PARTS = (
    "src/backend",
    "src/include",
    "src/timezone",
    "src/backend/utils/mb/conversion_procs",
    "src/backend/snowball",
    "src/backend/replication/libpqwalreceiver",
    "src/backend/replication/pgoutput",
    "src/interfaces/libpq",
    "src/pl/plpgsql",
    "src/bin/initdb",
    "src/bin/pg_basebackup",
    "src/bin/pg_config",
    "src/bin/pg_ctl",
    "src/bin/pg_dump",
    "src/bin/pgbench",
    "src/bin/psql",
    "src/makefiles",
    "config",
)
HEADER_PARTS = ("src/include", "src/bin/pg_config", "src/makefiles", "config")


@dataclass(frozen=True)
class Recipe:
    """What decides how a server is built."""

    major: int = 18
    configure: tuple[str, ...] = ()
    """Options of configure, such as --with-liburing."""
    cflags: str = "-O2"
    ldflags: str = ""
    contrib: tuple[str, ...] = ("auto_explain", "pg_prewarm", "pg_stat_statements")


@dataclass(frozen=True)
class Link:
    """Another linking of a built server's executable from the very same objects."""

    seed: int | None = None
    """Of the order of the objects; None keeps that of the build."""
    ldflags: str = ""
    """Added to those of the build; of contrary ones the later counts."""


OnProgress = Callable[[str], None]


def _ignore(_: str) -> None: ...


def on_stderr() -> OnProgress:
    """Tells how a build goes on, a line every other second."""
    last = time.monotonic()

    def show(state: str) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            print(state, file=sys.stderr, flush=True)

    return show


def build(recipe: Recipe, on_progress: OnProgress = _ignore) -> Binaries:
    """The server built by a recipe; built only if it is not there yet.

    UsageError says what is missing, or shows where the compiler stopped.
    """
    return from_pg_config(_built(recipe, on_progress) / "install" / "bin" / "pg_config")


def relink(recipe: Recipe, link: Link, on_progress: OnProgress = _ignore) -> Binaries:
    """The recipe's server with its executable linked another way; all else is the same file."""
    base = _built(recipe, on_progress)
    target = base / "linked" / _digest(asdict(link))
    with locked(base / ".lock"):
        if not target.exists():
            aside = target.with_name(f".{target.name}")
            shutil.rmtree(aside, ignore_errors=True)
            # by hard links: a module that is installed is put in place by renaming
            shutil.copytree(base / "install", aside, symlinks=True, copy_function=_hard_link)
            (aside / "bin" / "postgres").unlink()
            command = json.loads((base / "link.json").read_text())
            _run(
                _link_command(command, link, aside / "bin" / "postgres"),
                base / "tree" / "src" / "backend",
                base / "relink.log",
            )
            aside.rename(target)
    return from_pg_config(target / "bin" / "pg_config")


def headers(major: int) -> Path:
    """The pg_config of a version whose headers alone are built: enough to compile modules."""
    recipe = Recipe(major, ("--without-icu",), contrib=())
    base = _target(recipe, "headers")

    def make() -> None:
        tree = _unpacked(recipe, base, _ignore)
        log = base / "build.log"
        _run(_make(tree / "src/backend", "generated-headers"), tree, log)
        for part in HEADER_PARTS:
            _run(_make(tree / part, "install"), tree, log)
        _run(_make(tree / "src", "install-local"), tree, log)

    _once(base, make)
    return base / "install" / "bin" / "pg_config"


def _built(recipe: Recipe, on_progress: OnProgress) -> Path:
    base = _target(recipe, "server")

    def make() -> None:
        _compile(recipe, _unpacked(recipe, base, on_progress), base, on_progress)

    _once(base, make)
    return base


def _once(base: Path, make: Callable[[], None]) -> None:
    """Make what is not complete; of what fails only the log is kept."""
    parts = ("tree", "install", "linked")
    with locked(base / ".lock"):
        if (base / "complete").exists():
            return
        (base / "build.log").unlink(missing_ok=True)
        for left in parts:  # by a build that was killed
            shutil.rmtree(base / left, ignore_errors=True)
        try:
            make()
        except BaseException:
            for left in parts:
                shutil.rmtree(base / left, ignore_errors=True)
            raise
        (base / "complete").touch()


def _target(recipe: Recipe, kind: str) -> Path:
    """The directory of a build. Its name has all that the build depends on."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise UsageError(
            f"building PostgreSQL from source needs {' '.join(missing)}: install them "
            f"(Debian: apt-get install {' '.join(missing)})"
        )
    target = _directory(recipe, kind, tarball(recipe.major))
    target.mkdir(exist_ok=True)
    target.chmod(0o755)
    return target


def _directory(recipe: Recipe, kind: str, tar: Path) -> Path:
    compiler = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True)
    digest = _digest({**asdict(recipe), "kind": kind, "tar": tar.name, "gcc": compiler.stdout})
    return place("built") / f"{version_of(tar)}-{digest}"


def _unpacked(recipe: Recipe, base: Path, on_progress: OnProgress) -> Path:
    """The source, unpacked and configured."""
    on_progress("unpacking")
    tree = base / "tree"
    tree.mkdir()
    unpack = ["tar", "-xf", str(tarball(recipe.major)), "--strip-components=1", "--no-same-owner"]
    _run(unpack, tree, base / "build.log")
    on_progress("configuring")
    command = [
        "./configure",
        f"--prefix={base / 'install'}",
        "--without-readline",
        *recipe.configure,
        f"CFLAGS={recipe.cflags}",
        f"LDFLAGS={recipe.ldflags}",
    ]
    _run(command, tree, base / "build.log")
    return tree


def _compile(recipe: Recipe, tree: Path, base: Path, on_progress: OnProgress) -> None:
    log = base / "build.log"
    parts = [*SERVER_PARTS, *(f"contrib/{name}" for name in recipe.contrib)]
    files = sum(
        1 for part in ("src/common", "src/port", *parts) for _ in (tree / part).rglob("*.c")
    )
    started = time.monotonic()
    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        if " -c " in line and line.startswith("gcc"):
            compiled = min(compiled + 1, files)
            left = (time.monotonic() - started) / compiled * (files - compiled)
            on_progress(f"compiled {compiled} of about {files} files, {left:.0f} s left")

    _run(_make(tree / "src/backend", "generated-headers"), tree, log)
    for part in parts:
        _run(_make(tree / part, "install"), tree, log, count)
    _run(_make(tree / "src", "install-local"), tree, log)
    links = [
        line for line in log.read_text(errors="replace").splitlines() if " -o postgres" in line
    ]
    (base / "link.json").write_text(json.dumps(shlex.split(links[-1])))


def _make(directory: Path, target: str) -> list[str]:
    jobs = min(os.cpu_count() or 1, 2)
    # whole commands' output at a time, or lines of two compilers mix
    return ["nice", "-n", "19", "make", f"-j{jobs}", "-Otarget", "-C", str(directory), target]


def _link_command(command: list[str], link: Link, output: Path) -> list[str]:
    if link.seed is not None:
        places = [i for i, word in enumerate(command) if word.endswith(".o")]
        objects = [command[i] for i in places]
        random.Random(link.seed).shuffle(objects)
        command = list(command)
        for i, name in zip(places, objects, strict=True):
            command[i] = name
    at = command.index("-o")
    return [*command[:at], *shlex.split(link.ldflags), "-o", str(output), *command[at + 2 :]]


def _run(
    command: list[str], directory: Path, log: Path, on_line: Callable[[str], None] = _ignore
) -> None:
    with (
        open(log, "a", errors="replace") as kept,
        subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            umask=0o022,  # the server's account must reach what is installed
            env=environment(),
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                kept.write(line)
                on_line(line)
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        # with two jobs the cause is somewhere above the end
        causes = [line for line in lines if re.search(r"\berror\b|\*\*\*", line, re.I)] or lines
        last_lines = "\n".join(causes[-OUTPUT_TAIL_LINES:])
        raise UsageError(
            f"PostgreSQL could not be built (the whole output is in {log}):\n{last_lines}"
        )


def _hard_link(source: str, copy: str) -> None:
    os.link(source, copy, follow_symlinks=False)


def _digest(facts: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def main() -> int:
    """Build one server and print its pg_config."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.source", description="Build PostgreSQL from source."
    )
    parser.add_argument("major", type=int, nargs="?", default=18)
    parser.add_argument("--configure", action="append", default=[], metavar="OPTION")
    parser.add_argument("--cflags", default="-O2")
    parser.add_argument("--ldflags", default="")
    parser.add_argument("--link-seed", type=int, help="link the objects in a random order")
    parser.add_argument("--link-ldflags", default="", help="link the same objects with more flags")
    args = parser.parse_args()
    recipe = Recipe(args.major, tuple(args.configure), args.cflags, args.ldflags)
    link = Link(args.link_seed, args.link_ldflags)
    show = on_stderr()
    try:
        found = build(recipe, show) if link == Link() else relink(recipe, link, show)
    except PgtareError as ex:
        print(f"pgtare: {ex}", file=sys.stderr)
        return ex.exit_status
    except KeyboardInterrupt:
        print("pgtare: stopped; nothing of this build is kept", file=sys.stderr)
        return 130
    with contextlib.suppress(BrokenPipeError):
        print(found.pg_config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
