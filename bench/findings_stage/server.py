"""The server of the cases: with all modules or none, with a standby, behind a pooler."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.findings_stage.hands import Stage
from bench.findings_stage.tables import MODULE_GRANTS, ROLES, SCALE, TABLES
from bench.incident_stage import slow_disk
from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres.binaries import Binaries, from_pg_config, from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import PRELOAD_ORDER, Loadable, loadable
from pgtare.postgres.os_account import server_account
from pgtare.postgres.settings import Value

DEBIAN = Path("/usr/lib/postgresql/15/bin/pg_config")
#: Libraries of PostgreSQL itself that some cases need; a plain server has none.
OBSERVERS = ("pg_stat_statements", "auto_explain")
#: What only PostgreSQL 17 and later have.
NEW = "PostgreSQL 17"
#: Connections that the server allows.
CONNECTIONS = 90
_BASE: dict[str, Value] = {
    "archive_command": "true",
    "archive_mode": True,
    "autovacuum_naptime": "10s",
    "max_connections": CONNECTIONS,
    "max_prepared_transactions": 20,
    "max_wal_size": "2GB",
    "shared_buffers": "64MB",
    "track_io_timing": True,
    "wal_level": "logical",
}
_WITH_MODULES: dict[str, Value] = {
    "compute_query_id": True,
    "sql_trace.recorder": True,
    "sql_trace.recorder_memory": "32MB",
    "wait_event_timing.capture": "stats",
}
_POOL_SECONDS = 10.0


@dataclass(frozen=True)
class Kind:
    """What kind of server it is."""

    major: int = 18
    plain: bool = False
    standby: bool = False
    pgbouncer: bool = False

    @property
    def libraries(self) -> frozenset[str]:
        """What a case can rely on: libraries, and `NEW`."""
        found = frozenset() if self.plain else frozenset((*OBSERVERS, *PRELOAD_ORDER))
        return found | {NEW} if self.major >= 17 else found

    def binaries(self) -> Binaries:
        if self.major == 18:
            return from_wheel()
        if not DEBIAN.exists():
            raise UsageError(f"there is no {DEBIAN}: apt-get install postgresql-15")
        return from_pg_config(DEBIAN)


@contextlib.contextmanager
def stage(kind: Kind) -> Iterator[Stage]:
    """A server of this kind with its tables and a light load."""
    binaries = kind.binaries()
    modules = [] if kind.plain else [loadable(binaries, name) for name in PRELOAD_ORDER]
    base = _BASE if kind.plain else _BASE | _WITH_MODULES
    with contextlib.ExitStack() as open_:
        work = Path(tempfile.mkdtemp(prefix="pgtare-findings-", dir="/var/tmp"))
        open_.callback(shutil.rmtree, work, ignore_errors=True)
        server_account().give(work)
        own = [module.library for module in modules]
        observers = [] if kind.plain else list(OBSERVERS)
        libraries = [slow_disk(binaries, work), *observers, *own]
        primary = open_.enter_context(Cluster(binaries, base, libraries))
        _fill(primary, modules, plain=kind.plain)
        cluster = primary
        if kind.standby:
            cluster = open_.enter_context(Cluster(binaries, base, libraries))
            _follow(cluster, primary)
        pool = open_.enter_context(_pooler(cluster, work)) if kind.pgbouncer else None
        made = Stage(cluster, primary, binaries, work, base, pool)
        open_.callback(made.close)
        made.start_background()
        yield made


def _fill(cluster: Cluster, modules: Sequence[Loadable], *, plain: bool) -> None:
    with cluster.connect() as admin:
        admin.execute(ROLES)
        if not plain:
            admin.execute("CREATE EXTENSION pg_stat_statements")
            for module in modules:
                admin.execute(module.create_sql.encode())
            admin.execute(MODULE_GRANTS)
            if cluster.binaries.origin != "wheel":  # no extensions there, but schemas
                admin.execute(f"GRANT USAGE ON SCHEMA {', '.join(PRELOAD_ORDER)} TO lookout")
        admin.execute(TABLES)
    dsn = cluster.dsn(user="ferry")
    pgbench = cluster.binaries.bindir / "pgbench"
    done = subprocess.run(
        [pgbench, "-i", "-q", "-s", str(SCALE), dsn], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MeasurementError(f"pgbench could not make its tables: {done.stderr[-300:]}")
    with cluster.connect() as admin:
        admin.execute("VACUUM (FREEZE, ANALYZE)")
        admin.execute("CHECKPOINT")


def _follow(standby: Cluster, primary: Cluster) -> None:
    """Make a cluster that has just begun a streaming standby of another."""
    standby.stop()
    data = standby.data_directory
    for path in data.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    copy = primary.binaries.bindir / "pg_basebackup"
    dsn = primary.dsn(application_name="standby")
    # of the data only: the connection of a standby is a setting of its cluster
    done = subprocess.run(
        [copy, "-D", data, "-d", dsn, "-c", "fast", "-X", "stream"],
        capture_output=True,
        text=True,
        check=False,
        **standby.run_as,
    )
    if done.returncode:
        raise MeasurementError(f"pg_basebackup ended with an error: {done.stderr[-300:]}")
    signal = data / "standby.signal"
    signal.touch(mode=0o600)
    server_account().give(signal)
    standby.configure({"primary_conninfo": dsn, "hot_standby": True})
    standby.start()


@contextlib.contextmanager
def _pooler(cluster: Cluster, work: Path) -> Iterator[str]:
    """The connection string of a pgbouncer in transaction mode, without its user."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise UsageError("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    account = server_account()
    place = Path(tempfile.mkdtemp(prefix="pool-", dir=work))
    account.give(place)
    users = "".join(f'"{role}" ""\n' for role in ("postgres", "ferry", "office", "analyst"))
    (place / "users").write_text(users)
    (place / "ini").write_text(
        f"[databases]\n* = host={cluster.socket_directory} port={cluster.port}\n[pgbouncer]\n"
        f"listen_addr =\nlisten_port = {cluster.port}\nunix_socket_dir = {place}\n"
        f"auth_type = trust\nauth_file = {place}/users\npool_mode = transaction\n"
        f"default_pool_size = 24\nlogfile = {place}/log\npidfile = {place}/pid\n"
    )
    work.chmod(0o755)
    process = subprocess.Popen(
        [program, "-q", place / "ini"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **account.run_as,
    )
    dsn = f"host={place} port={cluster.port} dbname=postgres"
    try:
        _await_pool(dsn)
        yield dsn
    finally:
        process.terminate()
        process.wait(_POOL_SECONDS)


def _await_pool(dsn: str) -> None:
    deadline = time.monotonic() + _POOL_SECONDS
    while True:
        try:
            with psycopg.connect(f"{dsn} user=ferry"):
                return
        except psycopg.Error as ex:
            if time.monotonic() > deadline:
                raise MeasurementError(f"pgbouncer does not answer: {ex}") from ex
            time.sleep(0.1)
