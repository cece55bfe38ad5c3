"""Compile all C with warnings as errors, for every PostgreSQL that is there; and look at its shape.

With numbers of major versions, the server modules also for those, whose headers are built from
Debian's source.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.observing.clock.build import LIBRARY, BuildError, compile_probe
from pgtare.postgres import binaries
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build, cache_name, ready_to_load, source_dir
from pgtare.postgres.directories import made_once, place
from pgtare.postgres.modules import PRELOAD_ORDER
from tests.c_cycles import MOST, circles_below
from tests.source import headers
from tests.versions import servers

# Where the sources are, the tests' own modules too
MODULES = {
    "pgtare": source_dir(),
    "wait_event_timing": source_dir(),
    "sql_trace": source_dir(),
    "grabber": Path(__file__).parent / "server" / "modules",
    "idler": Path(__file__).parent / "server" / "modules",
    "namesakes": Path(__file__).parent / "server" / "modules",
    "taker": Path(__file__).parent / "server" / "modules",
    "slow_fsync": Path(__file__).parents[1] / "bench" / "slow_fsync",
    "spinner": Path(__file__).parents[1] / "bench" / "spinner",
}
#: Of those, what is laid out next to server/common to be built.
ALONE = ("slow_fsync", "spinner")

#: What a build has that warnings would have ended.
CHECKED = "no-warnings"


def compile_for(pg_config: Path, version: str, name: str) -> bool:
    """Whether a server module compiles without a warning."""
    with tempfile.TemporaryDirectory() as work:
        if name in ALONE:
            shutil.copytree(source_dir() / "common", Path(work, "sources", "common"))
            shutil.copytree(MODULES[name], Path(work, "sources", name))
        else:
            shutil.copytree(MODULES[name], Path(work, "sources"))
        # bitcode would be compiled by clang, a second time and with warnings of its own
        common = (f"PG_CONFIG={pg_config}", "COPT=-Werror", "with_llvm=no")
        settings = (*common, *compiler_for(pg_config))
        done = subprocess.run(
            ["make", "-s", "-C", f"{work}/sources/{name}", *settings],
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"C, {name}, {version}: {'no warnings' if done.returncode == 0 else done.stderr}")
        return done.returncode == 0 and no_long_circle(name, Path(work, "sources"))


def compile_own(found: Binaries, name: str) -> bool:
    """The same for one of our modules, where tests look for it: it need not be built again."""
    target = place("modules") / cache_name(found, name)
    if target.exists() and not (target / CHECKED).exists():  # a build that allowed warnings
        return compile_for(found.pg_config, found.version, name)
    sound = []

    def make(work: Path) -> Path:
        ready = ready_to_load(build(found, name, work, flags="-Werror"), work)
        sound.append(no_long_circle(name, work))
        (ready / CHECKED).touch()
        return ready

    try:
        made_once("modules", target.name, make)
    except UsageError as ex:
        print(f"C, {name}, {found.version}: {ex}")
        return False
    print(f"C, {name}, {found.version}: no warnings{'' if sound else ' (built before)'}")
    return all(sound)


def compiler_for(pg_config: Path) -> list[str]:
    """Make's CC=, unless the installation's own compiler names the headers that it needs."""
    if pg_config.is_relative_to(place("debian")):
        return []
    return [f"CC={os.environ.get('CC', 'gcc')}"]


def no_long_circle(name: str, objects: Path) -> bool:
    """Whether at most two files of those compiled below `objects` call each other in a circle."""
    long = [one for one in circles_below(objects) if len(one) > MOST]
    for one in long:
        print(f"C, {name}: {len(one)} files call each other in a circle: {', '.join(one)}")
    return not long


def installed() -> Iterator[Binaries]:
    """The wheel, Debian's 15, and what `tests.versions.servers` fetched."""
    yield binaries.from_wheel()
    for path in (servers.DEBIAN15, *servers.cached().values()):
        try:
            yield binaries.from_pg_config(path)
        except UsageError as ex:
            print(f"left out: {ex}")


def from_source(majors: list[str]) -> Iterator[tuple[Path, str]]:
    """The pg_config of other major versions."""
    for major in majors:
        try:
            pg_config = headers(int(major))
        except UsageError as ex:
            print(f"left out: {ex}")
        else:
            done = subprocess.run(
                [pg_config, "--version"], capture_output=True, text=True, check=True
            )
            yield pg_config, done.stdout.strip()


def compile_clock() -> bool:
    """Whether the clock probe compiles without a warning."""
    outcome = "no warnings"
    with tempfile.TemporaryDirectory() as work:
        try:
            compile_probe(source_dir(), Path(work, LIBRARY), extra=("-Werror",))
        except BuildError as ex:
            outcome = str(ex)
    print(f"C, clock probe: {outcome}")
    return outcome == "no warnings"


def versions_in_one_file() -> bool:
    """Whether only pg_compat.h looks at the version of PostgreSQL."""
    found = [
        f"{path.relative_to(source_dir())}:{number}"
        for path in sorted(source_dir().rglob("*.[ch]"))
        if path.name != "pg_compat.h"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "PG_VERSION_NUM" in line
    ]
    places = f"move these to common/pg_compat.h: {', '.join(found)}" if found else "in one file"
    print(f"C, what differs between versions: {places}")
    return not found


def settings_by_their_record() -> bool:
    """Whether only pg_compat.h casts a setting's record: such a cast compiles for 19, wrongly."""
    found = [
        f"{path.relative_to(source_dir())}"
        for path in sorted(source_dir().rglob("*.[ch]"))
        if path.name != "pg_compat.h"
        and re.search(r"\(struct config_(bool|int|real|string|enum) \*\)", path.read_text())
    ]
    print(f"C, records of settings: {f'use SETTING_RECORD in {found}' if found else 'no casts'}")
    return not found


def main() -> int:
    """Exit status: 0 if all is well."""
    done = [versions_in_one_file(), settings_by_their_record(), compile_clock()]
    builds: list[Callable[[], bool]] = []
    for found in installed():
        for name in MODULES:
            whole = (found.pg_config, found.version, name)
            own = name in PRELOAD_ORDER
            builds.append(
                partial(compile_own, found, name) if own else partial(compile_for, *whole)
            )
    for pg_config, version in from_source(sys.argv[1:]):
        builds += [partial(compile_for, pg_config, version, name) for name in MODULES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done += pool.map(lambda build: build(), builds)
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
