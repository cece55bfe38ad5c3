"""The servers of a study: each variant's configuration put into force on the same data."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import machine
from pgtare.postgres import own_session
from pgtare.postgres.binaries import Binaries, from_pg_config, from_wheel, version_number
from pgtare.postgres.cluster import DEFAULTS, Cluster
from pgtare.postgres.load import initialise
from pgtare.postgres.modules import PRELOAD_ORDER, loadable
from pgtare.postgres.processes import kill_leftovers
from pgtare.postgres.registry import servers_directory
from pgtare.postgres.settings import Value, library_list
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import AGAIN, Variant, Workload, placed

WAITS = "wait_event_timing"
PROOF = " proof"  # ends the name of the variant that shows a workload's profile

# What would otherwise fall into some runs and not into others; a study's settings come on top.
QUIET: dict[str, Value] = {
    "autovacuum": False,
    "checkpoint_timeout": "1d",
    "max_wal_size": "16GB",
    "max_connections": 200,
}
_MB_A_SCALE = 16
_WAL_MB = 4_096  # while tables are filled, at least
_WAL_MB_A_SECOND = 200  # of a run; a checkpoint precedes each
_UNITS_MB = {"kB": 1 / 1024, "MB": 1, "GB": 1024, "TB": 1024**2}
_RESERVE = 1.2
# pgbench's own tables first: what is read last stays if not all has room
_PREWARM = r"""
SELECT pg_prewarm(oid::regclass) FROM pg_class
 WHERE relkind IN ('r', 'm', 'i') AND relpersistence <> 't'
   AND relnamespace <> ALL ('{pg_catalog, information_schema, pg_toast}'::regnamespace[])
   AND (%s OR relname LIKE 'pgbench\_%%')
 ORDER BY relname NOT LIKE 'pgbench\_%%'"""


@dataclass(frozen=True)
class Serving:
    """A server that runs one variant for one workload."""

    cluster: Cluster
    dsn: str
    variant: Variant
    workload: Workload

    def connect(self) -> psycopg.Connection[Any]:
        """A session in the workload's database, whose own waits are not counted.

        It sees our modules' functions, which are in schemas of their names if no extension can
        be made.
        """
        conn = own_session.connect(self.dsn)
        conn.execute(f"SET search_path = public, {', '.join(PRELOAD_ORDER)}".encode())
        conn.execute(f"SET {WAITS}.capture = off".encode())
        return conn


class Bench:
    """The servers of a study, for `with`. At most one of them runs at a time."""

    def __init__(self, study: Study, scripts: Path | None = None) -> None:
        """scripts: where the study's scripts were placed, for those that make data ready."""
        self.study = study
        self._scripts = scripts
        self._clusters: dict[str, Cluster] = {}
        self._binaries: dict[str, Binaries] = {}
        self._databases: set[tuple[str, int]] = set()
        self._with_functions: set[tuple[Cluster, str, str]] = set()
        self._all: dict[str, dict[str, Value]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def variant(self, name: str) -> Variant:
        """A variant of the study, or the floor's with waits timed (PROOF)."""
        if name.endswith(PROOF):
            return _proving(self.study.the_variant(name.removesuffix(PROOF)), name)
        return self.study.the_variant(name)

    def binaries(self, server: str) -> Binaries:
        """The installation of a server of the study. Raises UsageError if there is none."""
        if server not in self._binaries:
            pg_config = self.study.servers[server].pg_config
            self._binaries[server] = from_pg_config(Path(pg_config)) if pg_config else from_wheel()
        return self._binaries[server]

    def serves(self, workload: Workload, known: Mapping[str, str]) -> str:
        """Why a workload cannot be run on the study's servers, or nothing.

        known: versions of servers that need not be looked at.
        """
        for variant in self.study.variant:
            name = variant.server
            version = known.get(name)
            major = version_number(version) // 10_000 if version else self.binaries(name).major
            if major < workload.oldest:
                return f"it needs PostgreSQL {workload.oldest}, and {variant.name} is {major}"
        return ""

    def check_disk(self) -> None:
        """Raises UsageError if the data would not fit, before anything is made."""
        scales = {w.scale for w in self.study.workload}
        wal_mb = self._wal_mb()
        needed_mb = len(wal_mb) * _MB_A_SCALE * sum(scales) + sum(wal_mb.values())
        needed = _RESERVE * 1e6 * needed_mb
        place = servers_directory()
        free = shutil.disk_usage(place).free
        if needed > free:
            raise UsageError(
                f"the study's data take about {needed / 1e9:.0f} GB below {place}, where "
                f"{free / 1e9:.0f} GB are free: lower the scales, or let PGTARE_DIR name a larger "
                "disk" + (", or lower max_wal_size" if max(wal_mb.values()) > _WAL_MB else "")
            )

    def _wal_mb(self) -> dict[str, float]:
        """The WAL that each server may come to keep, in MB."""
        found: dict[str, float] = {}
        of_run = _WAL_MB_A_SECOND * self.study.protocol.run
        for variant in self.study.variant:
            most = [
                _megabytes({**_static_settings(variant, w), **variant.runtime}["max_wal_size"])
                for w in self.study.workload
                if w.is_writing
            ]
            written = min(max(most, default=0.0), of_run)
            found[variant.server] = max(_WAL_MB, found.get(variant.server, 0.0), written)
        return found

    def serve(self, name: str, workload: Workload) -> Serving:
        """Put a variant into force for a workload and make its data as every run finds them.

        Raises MeasurementError, with the end of the server's log, if it cannot start.
        """
        variant = self.variant(name.removesuffix(AGAIN))
        cluster = self._cluster(variant.server)
        self._configure(cluster, variant, workload)
        dsn = self._prepared(cluster, variant, workload)
        return Serving(cluster, dsn, variant, workload)

    def serve_bare(self, variant: Variant, workload: Workload) -> Cluster:
        """Start a variant's server with its libraries for a workload, and none of their settings.

        Raises MeasurementError, with the end of the server's log, if it cannot start.
        """
        cluster = self._cluster(variant.server)
        self._configure(
            cluster,
            variant.model_copy(update={"settings": {}, "runtime": {}}),
            workload.model_copy(update={"settings": {}}),
        )
        return cluster

    def _make_functions(self, cluster: Cluster, dsn: str | None = None) -> None:
        """The functions and views of our modules, once these are in the server's memory.

        dsn: where they are wanted, if not in the database that every server has.
        """
        where = cluster.dsn() if dsn is None else dsn
        for module in PRELOAD_ORDER:
            key = (cluster, module, where)
            if key not in self._with_functions and carries(cluster, module):
                with own_session.connect(where) as conn:
                    own_session.find_as_usual(conn)
                    conn.execute(loadable(cluster.binaries, module).create_sql.encode())
                self._with_functions.add(key)

    def kill(self) -> None:
        """End all servers at once, which are stuck; those that a run needs are started again."""
        for cluster in self._clusters.values():
            cluster.kill()

    # Steps

    def _cluster(self, server: str) -> Cluster:
        for other, cluster in self._clusters.items():
            if other != server and cluster.running:
                cluster.stop()
        if server not in self._clusters:
            cluster = Cluster(self.binaries(server), QUIET)
            self._clusters[server] = self._stack.enter_context(cluster)
        return self._clusters[server]

    def _configure(self, cluster: Cluster, variant: Variant, workload: Workload) -> None:
        wanted = {**DEFAULTS, **_static_settings(variant, workload), **variant.runtime}
        if preload := self._preloaded(variant, workload):
            wanted["shared_preload_libraries"] = library_list(preload)
        gone = dict.fromkeys(self._all.get(variant.server, {}).keys() - wanted.keys())
        cluster.configure({**gone, **wanted})
        # A postmaster that was killed leaves its children, which hold the data directory.
        if not cluster.running:
            kill_leftovers(cluster.data_directory)
        # Even if the start fails: the file has them from now on.
        self._all[variant.server] = wanted
        cluster.restart()

    def _preloaded(self, variant: Variant, workload: Workload) -> tuple[str, ...]:
        names = dict.fromkeys([*workload.preload, *variant.preload])
        return tuple(self._library(variant.server, name) for name in names)

    def _library(self, server: str, name: str) -> str:
        if name in PRELOAD_ORDER:
            return loadable(self.binaries(server), name).library
        return name

    def _prepared(self, cluster: Cluster, variant: Variant, workload: Workload) -> str:
        server, scale = variant.server, workload.scale
        self._make_functions(cluster)
        name = f"pgtare_ladder_{scale}"
        if (server, scale) not in self._databases:
            initialise(self.binaries(server), cluster.dsn(), scale, name)
            self._databases.add((server, scale))
        dsn = make_conninfo(cluster.dsn(), dbname=name)
        if workload.activity or workload.figure:
            self._make_functions(cluster, dsn)
        make_ready(dsn, workload, variant.name, self._setup(workload))
        return dsn

    def _setup(self, workload: Workload) -> str:
        """The statements that make a workload's data ready."""
        if workload.setup is None or self._scripts is None:
            return ""
        return (self._scripts / placed(workload.setup, workload)).read_text(encoding="utf-8")


def _proving(base: Variant, name: str) -> Variant:
    preload = base.preload if WAITS in base.preload else (*base.preload, WAITS)
    forced = {f"{WAITS}.capture": "stats", f"{WAITS}.hooks": True}
    return base.model_copy(
        update={
            "name": name,
            "preload": preload,
            "capture": "stats",
            "settings": {**base.settings, **forced},
            "runtime": {k: v for k, v in base.runtime.items() if k not in forced},
        }
    )


def make_ready(dsn: str, workload: Workload, variant: str = "a variant", setup: str = "") -> None:
    """Let a run find extensions, tables and cache of a workload as every run finds them.

    Raises MeasurementError if that fails.
    """
    try:
        _make_ready(dsn, workload, setup)
    except psycopg.Error as ex:
        raise MeasurementError(
            f"{variant} could not be made ready for {workload.name}: {own_session.first_line(ex)}"
        ) from ex


def _make_ready(dsn: str, workload: Workload, setup: str) -> None:
    with own_session.connect(dsn) as conn:
        own_session.find_as_usual(conn)
        for extension in workload.extensions:
            conn.execute(f'CREATE EXTENSION IF NOT EXISTS "{_identifier(extension)}"'.encode())
        if setup:
            conn.execute(setup.encode())
        if workload.writes:
            # every run finds the tables as compact as the first did
            conn.execute("TRUNCATE pgbench_history")
            conn.execute("VACUUM (ANALYZE)")
        if workload.prewarm:
            conn.execute("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
            conn.execute(_PREWARM, (bool(setup),))
        conn.execute("CHECKPOINT")


def _static_settings(variant: Variant, workload: Workload) -> dict[str, Value]:
    """What a server is started with for a variant and a workload, libraries aside."""
    return {
        **QUIET,
        **workload.settings,
        **variant.settings,
        "max_connections": max(200, workload.clients + 50),
    }


def _megabytes(max_wal_size: Value) -> float:
    """0 for what is no size, which servers refuse by its name."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(kB|MB|GB|TB)?", str(max_wal_size).strip())
    return float(found[1]) * _UNITS_MB[found[2] or "MB"] if found else 0.0


def carries(cluster: Cluster, module: str) -> bool:
    """Whether the server has a module of ours in its memory."""
    return machine.maps(cluster.postmaster_pid, f"{module}.so")


def _identifier(name: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", name):
        raise UsageError(f"{name!r} is not the name of an extension")
    return name
