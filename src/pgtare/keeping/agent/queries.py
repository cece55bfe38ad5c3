"""Every query that the agent sends to a server; nothing else is ever sent.

{waits}, {texts}, {trace}, {keep}: schemas of functions of wait_event_timing, pg_stat_statements and
sql_trace. Numbers come as arrays and names as one text, so that a reading is decoded at once,
however many rows it has.
"""

from __future__ import annotations

from pgtare.keeping.spool.tables import COMMON, TABLES
from pgtare.observing.findings import queries as of_findings
from pgtare.observing.findings.queries import us
from pgtare.postgres.sql_text import CUT, MOST_READ

#: Between two names, and between two rows of names: characters that no name of an event has.
NAME_END, ROW_END = "\x1f", "\x1e"
_NAMES = "convert_to(string_agg({}, E'\\x1e'), 'UTF8')"


#: Which session this is: no other one of the server ever has the same process and beginning.
_BEGAN = f"{us('backend_start')}::text"
OWN_SESSION = f"SELECT pid, {_BEGAN} FROM pg_stat_activity WHERE pid = pg_backend_pid()"
END_SESSION = f"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND {_BEGAN} = %s
"""

#: Who holds the advisory lock of an agent, in any database of the server; "pgta", "agnt".
LOCK_CLASS, LOCK_OBJECT = 0x70677461, 0x61676E74
LOCK = "SELECT pg_try_advisory_lock(%s, %s)"
UNLOCK = "SELECT pg_advisory_unlock(%s, %s)"
#: Anybody may take such a lock. Only a role that an agent could have is taken for an agent's. The
#: locks of a prepared transaction are of no process.
LOCKED_BY = f"""
SELECT coalesce(l.pid, 0), coalesce({_BEGAN}, ''), coalesce(a.usename, ''),
  coalesce(a.usename = current_user OR pg_has_role(a.usesysid, 'pg_read_all_stats', 'USAGE'), false)
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.classid = %s AND l.objid = %s
AND l.objsubid = 2 AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
"""

SERVER = """
SELECT current_setting('server_version'), pg_is_in_recovery(), current_database(), current_user,
  pg_has_role('pg_read_all_stats', 'USAGE'), quote_ident(current_user),
  has_function_privilege('pg_control_system()', 'EXECUTE'),
  has_function_privilege('pg_stat_file(text, boolean)', 'EXECUTE')
"""
SYSTEM_IDENTIFIER = "SELECT system_identifier FROM pg_control_system()"
#: The functions that the agent calls, of those that `untraced_session.FUNCTIONS` finds.
FUNCTION_NAMES = (
    "wait_event_timing_info",
    "wait_event_timing_moment",
    "wait_event_timing_statements",
    "pg_stat_statements",
    "sql_trace_kept",
    "sql_trace_keep_for_finding",
)


STARTED = f"SELECT {us('pg_postmaster_start_time()')}, {us('clock_timestamp()')}"

INFO = f"""
SELECT {us("pg_postmaster_start_time()")}, {us("stats_reset")}, resets,
  {us("clock_timestamp()")}, missed, overflows, statements_evicted, statements_missed,
  {us("memory_since")}, processors
FROM {{waits}}.wait_event_timing_info()
"""

#: Waits that ended; in rows without a type they are processes.
_WAITS = "CASE WHEN wait_event_type IS NULL THEN 0 ELSE waits END"
_NONE = "array_fill(0::bigint, ARRAY[32])"


def _matrix(*columns: str) -> str:
    """All rows as one array of bigint with two dimensions: these columns, and the histogram."""
    values = ", ".join(f"coalesce({column}, 0)::bigint" for column in columns)
    return f"array_agg(ARRAY[{values}] || coalesce(histogram, {_NONE}))"


_MOMENT_NAMES = _NAMES.format(
    "backend_type || E'\\x1f' || coalesce(wait_event_type, '') || E'\\x1f'"
    " || coalesce(wait_event, '')"
)
#: Columns ahead of the histogram: see `reading.py`. A row without a type is the time of processes.
MOMENT = f"""
SELECT {us("min(taken)")}, {_MOMENT_NAMES},
  {
    _matrix(
        _WAITS,
        "total_ns",
        "running_ns",
        "max_ns",
        "running_waits",
        "processes",
        "idle::int",
        "skipped",
    )
}
FROM {{waits}}.wait_event_timing_moment()
"""
_STATEMENT_NAMES = _NAMES.format(
    "coalesce(wait_event_type, '') || E'\\x1f' || coalesce(wait_event, '')"
)
STATEMENTS = f"""
SELECT {_STATEMENT_NAMES},
  {
    _matrix(
        "waits",
        "total_ns",
        "running_ns",
        "max_ns",
        "running_waits",
        "skipped",
        "userid",
        "dbid",
        "queryid",
        "identity",
    )
}
FROM {{waits}}.wait_event_timing_statements()
"""

#: Of the roles that are asked for: there may be very many.
ROLES = "SELECT oid::bigint, rolname FROM pg_roles WHERE oid = ANY(%s::bigint[]::oid[])"
DATABASES = "SELECT oid::bigint, datname FROM pg_database"

#: What sessions do, those that hold them up, and the locks that they wait for: as findings are
#: computed from them.
SESSIONS, BLOCKERS, LOCKS = (
    query.text for query in (of_findings.SESSIONS, of_findings.BLOCKERS, of_findings.LOCKS)
)

#: The counters of `activity`.
ACTIVITY_COLUMNS = [
    column.name for column in TABLES["activity"].columns[len(COMMON) :] if column.rule == "sum"
]
#: By database: OID, when its counters were reset, the columns above, sessions.
ACTIVITY = f"""
SELECT array_agg(ARRAY[datid::bigint, coalesce({us("stats_reset")}, 0), xact_commit, xact_rollback,
    blks_read, blks_hit, tup_returned, tup_fetched, tup_inserted, tup_updated, tup_deleted,
    temp_files, temp_bytes, deadlocks, coalesce(numbackends, 0)])
FROM pg_stat_database
"""
SETTINGS = """
SELECT json_object_agg(name, coalesce(reset_val, setting) ORDER BY name)::text FROM pg_settings
WHERE name LIKE 'log\\_%' OR name LIKE 'debug\\_print%' OR name LIKE 'track\\_%'
  OR name LIKE 'pg\\_stat\\_statements.%' OR name LIKE 'auto\\_explain.%'
  OR name LIKE 'wait\\_event\\_timing.%' OR name IN ('compute_query_id', 'logging_collector',
    'shared_preload_libraries')
"""
#: How large the file of all texts is. Members of pg_monitor may not ask.
TEXTS_SIZE = of_findings.TEXT_FILE.text
#: Of texts, so many bytes are read at once; the others another time.
MOST_TEXTS_BYTES = 16 << 20
#: Of a text, more than is named, so that a cut one has the same name and hash as the whole.
_TEXT_CHARACTERS = MOST_READ + len(CUT) + 1
#: How long all texts are together, then the ones asked for. However few they are, the server reads
#: the whole file; so it is read once for both.
TEXTS = f"""
WITH texts AS (SELECT queryid, sum(octet_length(query)) AS length,
    left(min(query COLLATE "C") FILTER (WHERE queryid = ANY(%s::bigint[])), {_TEXT_CHARACTERS})
      AS text
  FROM {{texts}}.pg_stat_statements(true) GROUP BY 1),
chosen AS (SELECT *, text IS NOT NULL
    AND sum(octet_length(text)) OVER (ORDER BY queryid) <= {MOST_TEXTS_BYTES} AS fits FROM texts)
SELECT coalesce(sum(length), 0)::bigint, array_agg(queryid) FILTER (WHERE fits),
  array_agg(text) FILTER (WHERE fits)
FROM chosen
"""
#: Traces that the server kept because of a trigger: the columns of the spool. Nothing of what was
#: traced is in them.
RECORDINGS = f"""
SELECT k.id, k.cause, k.detail, {us("k.at")}, k.pid, k.userid::bigint, coalesce(r.rolname, ''),
  k.dbid::bigint, coalesce(d.datname, ''), k.application_name, k.query_id, k.bytes, k.file,
  k.incident
FROM {{trace}}.sql_trace_kept() k LEFT JOIN pg_roles r ON r.oid = k.userid
LEFT JOIN pg_database d ON d.oid = k.dbid ORDER BY k.id
"""
#: Asks for the traces of sessions to be kept. It waits for nobody, and writes no table.
KEEP = "SELECT pid, id, file, missing FROM {keep}.sql_trace_keep_for_finding(%s::int[], %s::text)"
#: Whether the server writes kept traces: then the right to call the above is worth asking for.
KEEPS = "SELECT directory IS NOT NULL FROM {trace}.sql_trace_kept_info()"
