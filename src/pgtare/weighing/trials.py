"""The client side of the server module: starts, renews, drains and stops a trial by SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.trial import observations
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.postgres import module_setup, module_versions
from pgtare.postgres.modules import PRELOAD_ORDER
from pgtare.postgres.own_session import first_line

#: Of schema pgtare: nobody but superusers has made it, or a function in it. Others' functions
#: could be called in the place of the module's, with the rights of our session.
_OURS = """
SELECT owner.rolsuper AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) p.proowner
    WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND NOT r.rolsuper)
FROM pg_catalog.pg_namespace n
    JOIN pg_catalog.pg_roles owner ON owner.oid OPERATOR(pg_catalog.=) n.nspowner
WHERE n.nspname OPERATOR(pg_catalog.=) 'pgtare'
"""
#: Most sessions of a trial, and the bytes of one drain.
MAX_SESSIONS = 1024
DRAIN_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class ModuleInfo:
    """What the module says of itself in this server."""

    version: str
    usable: bool
    clock: str
    clock_hz: float
    slots_installed: int
    slots_intact: int
    ring_bytes: int | None
    max_sessions: int
    slots_problem: str | None = None
    clock_reason: str = ""


@dataclass(frozen=True)
class Status:
    """The trial that runs, or the last one that ran."""

    running: bool
    trial: int
    owner_pid: int | None
    started: datetime | None
    ended: datetime | None
    seconds_left: float
    end_reason: str | None
    sessions: int
    sessions_now: int
    sessions_no_ring: int
    sessions_lacking_settings: int
    observations: int
    lost: int
    negative_clock: int
    failed_arms: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Population:
    """What takes part: sessions of a database, of a role, of an application name.

    application is a shell pattern (fnmatch); participation the chance of each session to
    be drawn (0 to 1]; sessions how many are expected at one time, which sizes their rings.
    """

    database: str | None
    role: str | None = None
    application: str = "*"
    participation: float = 1.0
    sessions: int = 64


def setup_steps(
    conn: psycopg.Connection[Any],
    libraries: Iterable[str] = (),
    extensions: Iterable[str] = (),
    *,
    create: bool = True,
) -> list[str]:
    """What is to be done until trials can run, with other libraries and extensions, in order.

    create: whether the extensions have to be in the database of this session.
    """
    needed = list(libraries)
    own = [name for name in PRELOAD_ORDER if name == "pgtare" or name in needed]
    return module_setup.remaining_steps(
        conn,
        own,
        libraries=[name for name in needed if name not in own],
        extensions=extensions,
        create=create,
    )


class Trials:
    """The module's functions, through a session that must stay open while a trial runs."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        """Raises UsageError if others than superusers have made what is in the module's schema."""
        self.conn = conn
        found = conn.execute(_OURS).fetchone()
        if found is not None and not found[0]:
            raise UsageError(
                f"schema pgtare of database {conn.info.dbname}, or a function in it, was not made "
                "by a superuser: nothing in it is called; rename or drop it, and run "
                "CREATE EXTENSION pgtare; in it"
            )
        #: The number of the trial that was started here; 0: none, whichever runs is meant.
        self._trial = 0
        #: Transactions that these functions have made in the database themselves.
        self.calls = 0

    def _row(self, query: str, *args: object) -> dict[str, Any]:
        self.calls += 1
        try:
            with self.conn.cursor(row_factory=dict_row) as cur:
                # binary: psycopg reads times as text only if DateStyle is ISO
                row = cur.execute(query, args, binary=True).fetchone()
        except psycopg.errors.InsufficientPrivilege as ex:
            raise UsageError(_refused(ex)) from ex
        if row is None:
            raise MeasurementError("the server module gave no answer")
        return dict(row)

    def require_module(
        self, libraries: Iterable[str] = (), extensions: Iterable[str] = ()
    ) -> ModuleInfo:
        """Check that the module is there, usable, and of our version.

        Raises UsageError with all that is to be done, also for the libraries and extensions that
        the caller needs as well.
        """
        try:
            module_versions.require(self.conn, "pgtare")
            info = ModuleInfo(**self._row("SELECT * FROM pgtare.info()"))
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as ex:
            raise module_setup.missing(
                f"database {self.conn.info.dbname} has no extension pgtare",
                setup_steps(self.conn, libraries, extensions),
                "; or give --dsn a database that has it; where nothing can be installed, `pgtare "
                "weigh --outside` needs none of this",
            ) from ex
        if not info.usable:
            raise UsageError(
                "pgtare is loaded but has no shared memory: add pgtare to "
                "shared_preload_libraries and restart the server"
            )
        return info

    def start(
        self, design: Design, population: Population, seconds: float, *, cpu: bool = True
    ) -> int:
        """Start a trial that ends by itself after `seconds`; returns its number.

        Raises UsageError if another runs, a setting is refused or a privilege is missing.
        """
        names = design.setting_names
        values = [arm.settings.get(name) for arm in design.arms for name in names]
        try:
            row = self._row(
                # each argument of its own type: no other function can fit better
                "SELECT pgtare.trial_start(%s::pg_catalog.text[], %s::pg_catalog.text[],"
                " %s::bigint[], %s::int[],"
                " %s::bigint, %s::double precision, %s::pg_catalog.name,"
                " %s::pg_catalog.name, %s::pg_catalog.text,"
                " %s::double precision, %s::int, %s::boolean, %s::int[], %s::int, %s::int,"
                " %s::int, %s::int) AS trial",
                list(names),
                values,
                [arm.inject_ns for arm in design.arms],
                list(design.block),
                _signed(design.seed),
                seconds,
                population.database,
                population.role,
                population.application,
                population.participation,
                population.sessions,
                cpu,
                *_slices(design),
                design.runs.shortest,
                design.runs.longest,
            )
        except psycopg.Error as ex:
            if ex.sqlstate is None or ex.sqlstate[:2] in ("08", "57"):
                raise MeasurementError(f"the trial did not start: {first_line(ex)}") from ex
            raise UsageError(f"the trial did not start: {first_line(ex)}") from ex
        self._trial = int(row["trial"])
        return self._trial

    def drain(self) -> Observations:
        """Observations not read before, of all sessions.

        Raises psycopg.Error if a later trial has taken the place of the one started here.
        """
        self.calls += 1
        row = self.conn.execute(
            "SELECT pgtare.trial_drain(%s::int, %s::bigint)",
            (DRAIN_BYTES, self._trial),
            binary=True,
        ).fetchone()
        return observations.decode(row[0]) if row else observations.empty()

    def renew(self, seconds: float) -> bool:
        """Give the trial a lease of so many seconds from now; whether it runs.

        From the first call on it ends by itself if no other comes in time.
        """
        row = self._row(
            "SELECT pgtare.trial_renew(%s::double precision, %s::bigint) AS running",
            seconds,
            self._trial,
        )
        return bool(row["running"])

    def stop(self) -> bool:
        """Stop the trial started here, or else whichever runs; whether it ran."""
        if not self._trial:  # works with every version of the module
            return bool(self._row("SELECT pgtare.trial_stop() AS running")["running"])
        row = self._row("SELECT pgtare.trial_stop(%s::bigint) AS running", self._trial)
        return bool(row["running"])

    def stop_in_any_version(self) -> tuple[bool, str]:
        """Stop the trial, if need be of a module of another version; whether one ran.

        With what is wrong with the versions, if anything. Raises as `require_module`.
        """
        try:
            self.require_module()
            return self.stop(), ""
        except module_versions.VersionMismatch as ex:
            try:
                return self.stop(), str(ex)
            except psycopg.Error:
                raise ex from None

    def status(self) -> Status:
        """The trial that runs, or the last."""
        return Status(**self._row("SELECT * FROM pgtare.trial_status()"))


def _slices(design: Design) -> tuple[list[int], int, int]:
    """Kinds of slices, shortest and longest in µs, as trial_start() takes them."""
    if design.slices is None:
        return [], 0, 0
    return list(design.slices.kinds), design.slices.min_us, design.slices.max_us


def _refused(ex: psycopg.Error) -> str:
    """A missing privilege in words: with the server's own next step, or what can be granted."""
    if ex.diag.message_hint:
        return first_line(ex)
    return f"{first_line(ex)}: {_grant(ex)}"


def _grant(ex: psycopg.Error) -> str:
    """What a superuser can grant so that this error goes away."""
    found = re.search(r'parameter "([^"]+)"', ex.diag.message_primary or "")
    if found:
        return f"a superuser can GRANT SET ON PARAMETER {found[1]} to this role"
    return (
        "a superuser can GRANT USAGE ON SCHEMA pgtare and GRANT EXECUTE ON ALL FUNCTIONS IN "
        "SCHEMA pgtare to this role"
    )


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >= 1 << 63 else seed
