"""Whom to trace, and whether we may."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pgtare.errors import UsageError
from pgtare.observing.trace.capture.server import Server, telling

LEVELS = (1, 4, 8, 12)
#: To see the sessions of others.
SEE = "pg_read_all_stats"
DEFAULT_LEVEL = 12
#: Why a session is traced: only statements of its that sql_trace.query_ids names.
BY_STATEMENT = "query_ids"
#: The same: nobody asked for it, and the server keeps what it did last.
BY_RECORDER = "recorder"

_RIGHTS = """
SELECT quote_ident(current_user), pg_has_role('pg_read_all_stats', 'USAGE'),
       (SELECT has_function_privilege(p.oid, 'EXECUTE') FROM pg_proc p
        JOIN pg_language l ON l.oid = p.prolang
        WHERE l.lanname = 'c' AND p.proname = %s)
"""


_UNNUMBERED = """
SELECT current_setting('compute_query_id') = 'off' OR current_setting('compute_query_id') = 'auto'
       AND current_setting('track_activities')::bool AND query_id IS NULL
FROM pg_stat_activity WHERE pid = pg_backend_pid()
"""
#: What gives statements their identifiers.
NUMBERING = "ALTER SYSTEM SET compute_query_id = on; SELECT pg_reload_conf();"

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

    application: a shell pattern. armed_only: start no trace, record what settings have traced.
    """

    level: int = DEFAULT_LEVEL
    pids: frozenset[int] = frozenset()
    roles: frozenset[str] = frozenset()
    databases: frozenset[str] = frozenset()
    application: str | None = None
    armed_only: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for wishes that exclude each other."""
        if not self.armed_only:
            return
        wishes = {
            "--pid": self.pids,
            "--role": self.roles,
            "--database": self.databases,
            "--application": self.application is not None,
        }
        if named := [option for option, wish in wishes.items() if wish]:
            raise UsageError(
                "--armed records what is traced in whatever session: leave out " + ", ".join(named)
            )

    def matches(
        self, pid: int, role: str | None, database: str | None, application: str | None
    ) -> bool:
        """Whether a session is meant."""
        return (
            (not self.pids or pid in self.pids)
            and (not self.roles or role in self.roles)
            and (not self.databases or database in self.databases)
            and (
                self.application is None or fnmatch.fnmatchcase(application or "", self.application)
            )
        )


def check(server: Server, target: Target) -> None:
    """Raise UsageError, with the line that mends it, if we may not."""
    demand_set_level(server, "trace other sessions")
    require_known(server, target.pids, target)


def require_known(server: Server, pids: Collection[int], target: Target) -> None:
    """Raise UsageError if a live session, or a role or database of the target, does not exist."""
    with telling():
        absent = server.rows(_ABSENT, list(pids), list(target.roles), list(target.databases))
    if absent:
        listed = ", ".join(f"{what} {name}" for what, name in absent)
        raise UsageError(f"the server has no {listed}: nothing would be traced")


def unnumbered(server: Server) -> bool:
    """Whether the server gives statements no identifiers."""
    with telling():
        return bool(server.rows(_UNNUMBERED)[0][0])


def demand_set_level(server: Server, purpose: str) -> None:
    """Raise UsageError without the right to trace sessions of others, and to end that."""
    with telling():
        ((user, sees, may),) = server.rows(_RIGHTS, server.setter)
    setter = f"EXECUTE ON FUNCTION {server.setter_name}(integer, {server.setter_takes})"
    demand(purpose, user, {SEE: sees, setter: may})


def others_hidden(server: Server) -> str:
    """What a role that sees only its own sessions has to know, or nothing."""
    ((user, sees),) = server.rows(
        f"SELECT quote_ident(current_user), pg_has_role('{SEE}', 'USAGE')"
    )
    return "" if sees else f"; you see only your own sessions: GRANT {SEE} TO {user}; shows others"


def demand(purpose: str, user: str, rights: Mapping[str, bool]) -> None:
    """Raise UsageError, with the GRANTs, if a right is missing; user: quoted."""
    missing = [f"GRANT {right} TO {user}" for right, has in rights.items() if not has]
    if missing:
        raise UsageError(f"to {purpose}, a superuser has to run: {'; '.join(missing)};")
