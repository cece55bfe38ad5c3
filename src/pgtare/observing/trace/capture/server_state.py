"""What a server traces now and what it will trace by its settings; and giving sessions back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pgtare.errors import UsageError
from pgtare.observing.trace.capture.server import Server, telling
from pgtare.observing.trace.capture.target import BY_RECORDER, SEE, demand, demand_set_level

#: Why sessions are traced on request.
ASKED = "sql_trace_set"

_RIGHTS = """
SELECT quote_ident(current_user), pg_has_role('pg_read_all_stats', 'USAGE'),
       has_function_privilege('pg_show_all_file_settings()', 'EXECUTE')
       AND has_table_privilege('pg_file_settings', 'SELECT')
"""
_SESSIONS = """
SELECT s.pid, pg_get_userbyid(s.userid)::text, coalesce(d.datname::text, s.dbid::text),
       coalesce(a.application_name, s.application_name), s.level, coalesce(s.reason, ''), s.waits,
       s.started, s.records, s.lost_records
FROM {trace}.sql_trace_sessions() s LEFT JOIN pg_database d ON d.oid = s.dbid
LEFT JOIN pg_stat_activity a ON a.pid = s.pid WHERE s.ended IS NULL ORDER BY s.pid
"""
_ENDED = "SELECT count(*) FROM {trace}.sql_trace_sessions() WHERE ended IS NOT NULL"
_ARMING = """
('sql_trace.level', 'sql_trace.application', 'sql_trace.query_ids', 'sql_trace.query_level',
 'sql_trace.statement_rate', 'sql_trace.enabled', 'sql_trace.recorder')
"""
_OF_ROLES = f"""
SELECT r.rolname::text, d.datname::text, lower(split_part(one, '=', 1)),
       substr(one, strpos(one, '=') + 1)
FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
LEFT JOIN pg_database d ON d.oid = s.setdatabase, unnest(s.setconfig) one
WHERE lower(split_part(one, '=', 1)) IN {_ARMING} ORDER BY 1, 2, 3
"""
# our own session may have its own; what its role or database has set is listed with those
_OF_SERVER = f"""
SELECT NULL, NULL, name, current_setting(name) FROM pg_settings
WHERE name IN {_ARMING} AND name <> 'sql_trace.level' AND setting <> boot_val
AND source IN ('configuration file', 'command line', 'environment variable') ORDER BY name
"""
# a level of ours keeps this session from being traced: it says nothing of the server's
_LEVEL_OF_FILE = """
SELECT NULL, NULL, name, setting FROM pg_file_settings
WHERE name = 'sql_trace.level' AND applied AND setting <> '0'
"""
# A trace that met a limit, or was asked to end, would begin anew. An idle session may have been
# asked and not know it yet: then nothing tells.
_STOP = """
SELECT a.pid, s.level > 0 AND s.reason = 'sql_trace_set', {trace}.sql_trace_set(a.pid, NULL::int4)
FROM pg_stat_activity a
LEFT JOIN {trace}.sql_trace_sessions() s ON s.pid = a.pid AND s.ended IS NULL
WHERE a.backend_type = 'client backend' AND a.pid <> {own}
AND (s.pid IS NULL OR s.level > 0 AND s.reason = 'sql_trace_set'
     OR s.level = 0 AND s.reason IN ('setting', 'application', 'query_ids'))
AND (%s::int[] IS NULL OR a.pid = ANY(%s))
"""
_CLIENTS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"


@dataclass(frozen=True)
class TracedSession:
    """A client session that has a ring. level: 0: no longer traced.

    reason: why it is traced, as the view sql_trace_sessions says it.
    """

    pid: int
    user: str
    database: str
    application: str
    level: int
    reason: str
    waits: bool
    started: datetime | None
    records: int
    lost_records: int


@dataclass(frozen=True)
class TraceSetting:
    """A setting by which sessions to come are traced; of every role or database if that is None."""

    role: str | None
    database: str | None
    name: str
    value: str


@dataclass(frozen=True)
class TraceStatus:
    """What a server traces now, and what it will trace by its settings.

    kept: sessions that were traced and still live. ended: traces kept of those that do not.
    configured: whether the level of the configuration file could be seen.
    """

    sessions: list[TracedSession]
    kept: list[TracedSession]
    ended: int
    settings: list[TraceSetting]
    configured: bool


def status(server: Server) -> TraceStatus:
    """What is traced. Raises UsageError, with the GRANT, if we may not see all sessions."""
    with telling():
        ((user, sees, reads_file),) = server.rows(_RIGHTS)
        demand("see what is traced", user, {SEE: sees})
        queries = [_OF_ROLES, _OF_SERVER, *([_LEVEL_OF_FILE] if reads_file else [])]
        settings = [TraceSetting(*row) for query in queries for row in server.rows(query)]
        every = [TracedSession(*row) for row in server.rows(_SESSIONS)]
        ((ended,),) = server.rows(_ENDED)
    return TraceStatus(
        sessions=[s for s in every if s.level],
        kept=[s for s in every if not s.level],
        ended=ended,
        settings=settings,
        configured=reads_file,
    )


def stop(server: Server, pids: frozenset[int] | None = None) -> list[int]:
    """Return every session traced on request to its settings; gives those that were traced so.

    pids: of these alone. Raises UsageError without the right to, and for sessions that are not
    there.
    """
    demand_set_level(server, "stop traces of other sessions")
    with telling():
        absent = (pids or frozenset()) - {pid for (pid,) in server.rows(_CLIENTS)}
        if absent:
            listed = ", ".join(map(str, sorted(absent)))
            raise UsageError(f"the server has no client session {listed}: nothing was stopped")
        wanted = None if pids is None else list(pids)
        return [pid for pid, traced, _ in server.rows(_STOP, wanted, wanted) if traced]


def remedies(server: Server, now: TraceStatus, pids: frozenset[int] | None = None) -> list[str]:
    """The SQL that ends what `stop` cannot: traces that settings turn on, and those to come."""
    kept_on = (ASKED, BY_RECORDER)
    left = [s for s in now.sessions if s.reason not in kept_on and (pids is None or s.pid in pids)]
    found = [f"SELECT {server.setter_name}({s.pid}, 0);" for s in left]
    if pids is not None:
        return found
    with telling():
        for setting in now.settings:
            if setting.name in ("sql_trace.level", "sql_trace.application", "sql_trace.query_ids"):
                found += _undone(server, setting)
    return found


def _undone(server: Server, setting: TraceSetting) -> list[str]:
    if setting.value in ("", "0"):
        return []
    ((role, database),) = server.rows(
        "SELECT quote_ident(%s::text), quote_ident(%s::text)", setting.role, setting.database
    )
    if role:
        of = f" IN DATABASE {database}" if database else ""
        return [f"ALTER ROLE {role}{of} RESET {setting.name};"]
    if database:
        return [f"ALTER DATABASE {database} RESET {setting.name};"]
    nothing = "0" if setting.name == "sql_trace.level" else "''"
    return [f"ALTER SYSTEM SET {setting.name} = {nothing};", "SELECT pg_reload_conf();"]
