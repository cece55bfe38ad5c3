"""Every query that the doctor sends, with what it is for: nothing else is ever sent."""

from __future__ import annotations

from pgtare.observing.findings import queries as of_findings
from pgtare.observing.findings.queries import TEXT_CHARACTERS, Query
from pgtare.postgres.backend_types import BACKGROUND_SQL
from pgtare.postgres.pooler import BEGIN_READ_ONLY, CLOSED_PATH, LIKE_OURS, PID, UNTRACKED
from pgtare.postgres.wait_counters.active_sessions import ACTIVE_SAMPLE_SQL

#: How long the server may take for one query before it cancels it.
TIMEOUT_S = 10.0
#: Clock readings of one query: few enough to be done between two preemptions.
CLOCK_READINGS = 1_000
_CAPTURES = "wait_event_timing is loaded and captures"


def set_up(limit_s: float = TIMEOUT_S) -> tuple[str, ...]:
    """What holds in the read-only transaction of each query.

    It ends with that: behind a pooler the session is the application's next.
    """
    timeout = f"statement_timeout = '{limit_s:g}s'"
    return timeout, "lock_timeout = '1s'", CLOSED_PATH, "TimeZone = 'UTC'", "DateStyle = 'ISO'"


IDENTITY = Query(
    "identity",
    "what the server is, and what this role may see",
    """SELECT current_setting('server_version'), pg_is_in_recovery(), pg_postmaster_start_time(),
  current_database(), current_user, pg_has_role('pg_read_all_stats', 'USAGE'),
  coalesce((SELECT rolsuper FROM pg_roles WHERE rolname = current_user), false),
  quote_ident(current_user), has_function_privilege('pg_stat_file(text, boolean)', 'EXECUTE'),
  has_function_privilege('pg_read_file(text, bigint, bigint, boolean)', 'EXECUTE'),
  count(*), count(*) FILTER (WHERE state = 'disabled')
FROM pg_stat_activity WHERE backend_type = 'client backend'""",
)
EXTENSIONS = Query(
    "extensions",
    "where the extensions are that have something to tell",
    """SELECT e.extname, n.nspname, e.extversion, has_schema_privilege(n.oid, 'USAGE'),
  quote_ident(n.nspname)
FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'pg_stat_statements'
UNION ALL
SELECT 'wait_event_timing', n.nspname,
  coalesce((SELECT extversion FROM pg_extension WHERE extname = 'wait_event_timing'), ''),
  has_schema_privilege(n.oid, 'USAGE'), quote_ident(n.nspname)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
  JOIN pg_language l ON l.oid = p.prolang
WHERE l.lanname = 'c' AND p.proname = 'wait_event_timing_info'""",
)
SETTINGS = Query(
    "settings",
    "settings that observe, log, or size what observes",
    """SELECT name, coalesce(reset_val, setting),
  CASE WHEN source IN ('command line', 'environment variable', 'global', 'database', 'user',
    'database user') THEN source
  -- one that our own transaction sets: where it is from outside of that
  WHEN source = 'session' THEN (
    SELECT CASE WHEN setrole = 0 AND setdatabase = 0 THEN 'global' WHEN setrole = 0 THEN 'database'
      WHEN setdatabase = 0 THEN 'user' ELSE 'database user' END
    FROM pg_db_role_setting, unnest(setconfig) AS line
    WHERE split_part(line, '=', 1) = name
      AND setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user))
      AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
    ORDER BY setrole = 0, setdatabase = 0 LIMIT 1) END
FROM pg_settings
WHERE name LIKE 'log\\_%' OR name LIKE 'debug\\_print%' OR name LIKE 'track\\_%'
  OR name LIKE 'pg\\_stat\\_statements.%' OR name LIKE 'auto\\_explain.%'
  OR name LIKE 'wait\\_event\\_timing.%' OR name LIKE 'pgaudit.%'
  OR name IN ('archive_mode', 'compute_query_id', 'logging_collector', 'shared_preload_libraries',
    'autovacuum_freeze_max_age', 'autovacuum_multixact_freeze_max_age',
    'autovacuum_max_workers', 'autovacuum_worker_slots', 'max_wal_senders', 'max_worker_processes',
    'autovacuum_vacuum_cost_limit', 'vacuum_cost_limit',
    'checkpoint_completion_target', 'checkpoint_timeout', 'max_connections',
    'max_locks_per_transaction', 'max_prepared_transactions', 'max_slot_wal_keep_size',
    'max_wal_size', 'maintenance_work_mem', 'plan_cache_mode', 'work_mem',
    'reserved_connections', 'superuser_reserved_connections', 'synchronous_standby_names')""",
)
DATABASES = Query(
    "databases",
    "transactions so far, in all databases",
    """SELECT clock_timestamp(), sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database""",
)
ACTIVITY = Query(
    "activity",
    "what active sessions do just now: sampled twenty times a second",
    f"""SELECT wait_event_type, wait_event, count(*) FROM pg_stat_activity
WHERE {ACTIVE_SAMPLE_SQL} AND backend_type NOT IN {BACKGROUND_SQL} AND pid <> pg_backend_pid()
GROUP BY 1, 2""",
)
INFO = Query(
    "deallocations",
    "how often pg_stat_statements made room, and since when that is counted",
    """SELECT clock_timestamp(), dealloc, stats_reset
FROM {schema}.pg_stat_statements_info""",
    "pg_stat_statements 1.9 or later",
)
ENTRIES = Query(
    "entries",
    "which statements are in the table, without their texts: at the beginning and at the end",
    """SELECT clock_timestamp(), userid, dbid, queryid, count(*), sum(calls)::bigint
FROM {schema}.pg_stat_statements(false) GROUP BY 2, 3, 4""",
    "pg_stat_statements is there",
)
TEXTS = Query(
    "texts",
    "what the statements say, and how long the texts are",
    f"""SELECT userid, dbid, left(query, {TEXT_CHARACTERS}), octet_length(query), calls::bigint
FROM {{schema}}.pg_stat_statements(true) WHERE queryid IS NOT NULL""",
    "pg_stat_statements is there",
)
CLOCK = Query(
    "clock",
    "what reading the time costs the server",
    f"""SELECT clock_timestamp(),
  (SELECT count(clock_timestamp()) FROM generate_series(1, {CLOCK_READINGS})),
  clock_timestamp(),
  (SELECT count(now()) FROM generate_series(1, {CLOCK_READINGS})),
  clock_timestamp()""",
)
CLOCK_SOURCE = Query(
    "clock source",
    "which clock source the server's kernel uses",
    "SELECT pg_read_file('/sys/devices/system/clocksource/clocksource0/current_clocksource',"
    " 0, 64, true)",
    "the role may execute pg_read_file",
)
WAITS = Query(
    "exact waits",
    "time waited by event as counted, and in the row without an event what time that is part of",
    f"""SELECT min(taken), wait_event_type, wait_event, idle,
  sum(total_time + coalesce(running_time, 0))
FROM {{schema}}.wait_event_timing_moment()
WHERE backend_type NOT IN {BACKGROUND_SQL} GROUP BY 2, 3, 4""",
    _CAPTURES,
)
CAPTURE = Query(
    "capture",
    "what is captured in most other processes: this session may have left itself out",
    """SELECT mode() WITHIN GROUP (ORDER BY capture) FROM {schema}.wait_event_timing_sessions()
WHERE pid <> pg_backend_pid()""",
    "wait_event_timing is loaded",
)
CAPTURED = Query(
    "captured sessions",
    "whether the waits of all others are counted, so that the rest of their time is computing",
    """SELECT coalesce(bool_and(s.capture <> 'off'), count(*) = 0)
FROM pg_stat_activity a LEFT JOIN {schema}.wait_event_timing_sessions() s USING (pid)
WHERE a.backend_type = 'client backend' AND pid <> pg_backend_pid()
AND left(a.application_name, 6) <> 'pgtare'""",
    _CAPTURES,
)
WAITS_INFO = Query(
    "the module of the waits",
    "its version, whether the waits were reset in between, and whether the kernel still trusts the "
    "clock that they are timed by",
    "SELECT to_jsonb(i) FROM {schema}.wait_event_timing_info() i",
    _CAPTURES,
)
WAITS_FILES = Query(
    "version of the files",
    "what would bring wait_event_timing up to date",
    "SELECT default_version FROM pg_available_extensions WHERE name = 'wait_event_timing'",
    "its library and its extension are of versions that do not go together",
)

#: All of them, in the order above.
QUERIES = (
    *(value for value in tuple(globals().values()) if isinstance(value, Query)),
    *of_findings.QUERIES,
)


def listing() -> str:
    """All of them, as a reader can run them by hand."""
    lines = [
        "-- Whether there is a pooler (behind one BEGIN and ROLLBACK are tried, too)",
        f"{BEGIN_READ_ONLY}; {PID}; COMMIT;",
        "-- Without one, each statement's own transaction is like those below",
        *(f"{statement};" for statement in LIKE_OURS),
        "-- Around each query (ROLLBACK after one that failed)",
        "COMMIT;",
        f"{BEGIN_READ_ONLY};",
        *(f"SET LOCAL {setting};" for setting in set_up()),
        "-- Only if the role is a superuser: its own statements stay out of the table",
        f"SET LOCAL {UNTRACKED};",
    ]
    for query in QUERIES:
        condition = f" (where {query.when})" if query.when else ""
        text = query.text.replace("%s", "'{}'")  # where it gets processes or statements
        lines += ["", f"-- {query.name}: {query.tells}{condition}", f"{text};"]
    return "\n".join(lines)
