"""Whom to trace, and asking the server for it: arms sessions, and gives them back."""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgtare.errors import UsageError
from pgtare.trace.guard import Guard
from pgtare.trace.server import Server, telling

LEVELS = (1, 4, 8, 12)

_CLIENTS = """
SELECT a.pid, a.backend_start, a.usename, a.datname, a.application_name, s.level
FROM pg_stat_activity a LEFT JOIN sql_trace_sessions() s ON s.pid = a.pid AND s.ended IS NULL
WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid() ORDER BY a.pid
"""
_RIGHTS = """
SELECT quote_ident(current_user), pg_has_role('pg_read_all_stats', 'USAGE'),
       has_function_privilege('sql_trace_set(integer, integer)', 'EXECUTE')
"""


_STATEMENT_RIGHTS = """
SELECT quote_ident(current_user), pg_has_role('pg_read_all_stats', 'USAGE'),
       has_parameter_privilege('sql_trace.query_ids', 'ALTER SYSTEM')
       AND has_parameter_privilege('sql_trace.query_level', 'ALTER SYSTEM'),
       has_function_privilege('pg_reload_conf()', 'EXECUTE'),
       current_setting('sql_trace.query_ids'),
       current_setting('compute_query_id') = 'off' OR current_setting('compute_query_id') = 'auto'
       AND current_setting('track_activities')::bool AND query_id IS NULL
FROM pg_stat_activity WHERE pid = pg_backend_pid()
"""

_ABSENT = """
SELECT 'client session', pid::text FROM unnest(%s::bigint[]) pid WHERE NOT EXISTS
(SELECT FROM pg_stat_activity a WHERE a.pid = pid.pid AND a.backend_type = 'client backend')
UNION ALL SELECT 'role', name FROM unnest(%s::text[]) name WHERE NOT EXISTS
(SELECT FROM pg_roles WHERE rolname = name)
UNION ALL SELECT 'database', name FROM unnest(%s::text[]) name WHERE NOT EXISTS
(SELECT FROM pg_database WHERE datname = name)
"""


@dataclass(frozen=True)
class Target:
    """Sessions to trace at a level: all that match every field that is set.

    application: a shell pattern. sample: the share of sessions drawn (0 to 1]. query_ids: only
    these statements, in whatever session.
    """

    level: int = 12
    pids: frozenset[int] = frozenset()
    roles: frozenset[str] = frozenset()
    databases: frozenset[str] = frozenset()
    application: str | None = None
    sample: float = 1.0
    query_ids: tuple[int, ...] = ()
    armed_only: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for wishes that exclude each other."""
        if not (self.query_ids or self.armed_only):
            return
        if self.query_ids and self.armed_only:
            raise UsageError(
                "--armed asks for nothing, and --queryid for statements: leave out one"
            )
        wishes = {
            "--pid": self.pids, "--role": self.roles, "--database": self.databases,
            "--application": self.application is not None, "--sample": self.sample < 1,
        }  # fmt: skip
        if named := [option for option, wish in wishes.items() if wish]:
            why = (
                "--queryid traces statements"
                if self.query_ids
                else "--armed records what is traced"
            )
            raise UsageError(f"{why} in whatever session: leave out {', '.join(named)}")

    def matches(self, pid: int, role: str, database: str, application: str) -> bool:
        """Whether a session is meant."""
        return (
            (not self.pids or pid in self.pids)
            and (not self.roles or role in self.roles)
            and (not self.databases or database in self.databases)
            and (self.application is None or fnmatch.fnmatchcase(application, self.application))
        )


@dataclass
class Arming:
    """Sessions that we have asked the server to trace; `guard` gives them back if we die."""

    server: Server
    target: Target
    guard: Guard
    draw: Callable[[], float] = field(default_factory=lambda: random.Random().random)
    armed: dict[int, Any] = field(default_factory=dict)
    _seen: set[tuple[int, Any]] = field(default_factory=set)
    _altered: bool = False

    def check(self) -> None:
        """Raise UsageError, with the line that mends it, where we may not."""
        if self.target.query_ids:
            self._check_statements()
            return
        with telling():
            ((user, sees, may),) = self.server.rows(_RIGHTS)
        missing = [] if sees else [f"GRANT pg_read_all_stats TO {user}"]
        if not may:
            missing.append(
                f"GRANT EXECUTE ON FUNCTION {self.server.name('sql_trace_set')}(integer, integer) "
                f"TO {user}"
            )
        if missing:
            raise UsageError(
                f"to trace other sessions, a superuser has to run: {'; '.join(missing)};"
            )
        t = self.target
        with telling():
            absent = self.server.rows(_ABSENT, list(t.pids), list(t.roles), list(t.databases))
        if absent:
            told = ", ".join(f"{what} {name}" for what, name in absent)
            raise UsageError(f"the server has no {told}: nothing would be traced")

    def _check_statements(self) -> None:
        with telling():
            ((user, sees, sets, reloads, now, unnumbered),) = self.server.rows(_STATEMENT_RIGHTS)
        missing = [] if sees else [f"GRANT pg_read_all_stats TO {user}"]
        if not sets:
            names = "sql_trace.query_ids, sql_trace.query_level"
            missing.append(f"GRANT ALTER SYSTEM ON PARAMETER {names} TO {user}")
        if not reloads:
            missing.append(f"GRANT EXECUTE ON FUNCTION pg_reload_conf() TO {user}")
        if missing:
            raise UsageError(
                f"to trace statements by --queryid, a superuser has to run: {'; '.join(missing)};"
            )
        if now:
            raise UsageError(
                f"sql_trace.query_ids is set already ({now}): its traces are recorded by --armed"
            )
        if unnumbered:
            raise UsageError(
                "statements have no query identifiers on this server: a superuser has to run "
                "ALTER SYSTEM SET compute_query_id = on; SELECT pg_reload_conf();"
            )

    def arm_statements(self) -> None:
        """Have the statements of query_ids traced in every session, by the configuration."""
        ids = ", ".join(map(str, self.target.query_ids))
        with telling():
            self.guard.altered()
            self._altered = True
            self._alter("sql_trace.query_ids", f"'{ids}'")
            self._alter("sql_trace.query_level", str(self.target.level))
            self.server.rows("SELECT pg_reload_conf()")

    def _alter(self, setting: str, value: str) -> None:
        self.server.conn.execute(
            psycopg.sql.SQL("ALTER SYSTEM SET {} = {}").format(
                psycopg.sql.SQL(setting),
                psycopg.sql.SQL(value),
            )
        )

    def arm_new(self) -> None:
        """Ask for sessions that match and that we have not met yet."""
        if self.target.query_ids or self.target.armed_only:
            return
        for pid, started, role, database, application, level in self.server.rows(_CLIENTS):
            key = (pid, started)
            if key in self._seen or not self.target.matches(
                pid, role or "", database or "", application or ""
            ):
                continue  # an application may take its name later
            self._seen.add(key)
            if level or self.draw() >= self.target.sample:
                continue  # traced already, at its own level: that is not ours to change
            self.guard.armed(pid, started.isoformat())
            self.armed[pid] = started
            self.server.rows("SELECT sql_trace_set(%s, %s)", pid, self.target.level)

    def disarm(self) -> None:
        """Give every session back to its settings. Those that have ended are no trouble."""
        if self._altered:
            for setting in ("sql_trace.query_ids", "sql_trace.query_level"):
                self.server.conn.execute(f"ALTER SYSTEM RESET {setting}".encode())
            self.server.rows("SELECT pg_reload_conf()")
            self._altered = False
        if self.armed:
            self.server.rows(DISARM, list(self.armed), list(self.armed.values()))
            self.armed.clear()
        self.guard.dismiss()


# A session that has ended meanwhile would only be a warning; another with its number is not ours.
DISARM = """
SELECT sql_trace_set(pid, NULL) FROM pg_stat_activity WHERE (pid, backend_start) IN
(SELECT * FROM unnest(%s::int[], %s::timestamptz[])) AND backend_type = 'client backend'
"""
