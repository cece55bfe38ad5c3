"""A standby of a throwaway server, made by pg_basebackup and following it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pgtare.postgres.cluster import Cluster


@dataclass(frozen=True)
class Standby:
    """A running one."""

    dsn: str
    log: Path


@contextlib.contextmanager
def standby(primary: Cluster, settings: Mapping[str, str] | None = None) -> Iterator[Standby]:
    """It loads what the primary loads; stopped and removed at the end."""
    with primary.connect() as connection:
        row = connection.execute("SELECT current_setting('shared_preload_libraries')").fetchone()
    assert row is not None
    home = Path(tempfile.mkdtemp(prefix="pgtare-standby-", dir="/var/tmp"))
    home.chmod(0o777)
    data, sockets, hba, log = (home / name for name in ("data", "socket", "hba", "log"))
    control = [str(primary.binaries.program("pg_ctl")), "-D", str(data)]

    def run(*command: object) -> None:
        subprocess.run(
            [str(part) for part in command],
            check=True,
            capture_output=True,
            text=True,
            cwd="/",
            **primary.run_as,
        )

    try:
        options = ("-D", data, "-R", "-c", "fast", "-d", primary.dsn())
        run(primary.binaries.program("pg_basebackup"), *options)
        sockets.mkdir()
        sockets.chmod(0o777)
        hba.write_text("local all all trust\n")
        chosen = {"shared_preload_libraries": str(row[0]), **(settings or {})}
        options = f"-k {sockets} -c listen_addresses= -c hba_file={hba} "
        options += " ".join(f"-c {name}='{value}'" for name, value in chosen.items())
        run(*control, "-w", "-l", log, "-o", options, "start")
        try:
            yield Standby(f"host={sockets} user=postgres dbname=postgres", log)
        finally:
            run(*control, "-m", "fast", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
