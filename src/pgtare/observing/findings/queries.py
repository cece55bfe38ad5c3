"""Every query by which findings are read, with what it is for."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.observing.findings.observation import CATALOGUES, ELSEWHERE

#: Of a statement's text so much is fetched, in characters.
TEXT_CHARACTERS = 600
#: Rows of statements and tables that are read at most.
MOST_TABLES = 5_000


@dataclass(frozen=True)
class Query:
    """A query, and what it tells. {schema} is the schema of the extension it reads."""

    name: str
    tells: str
    text: str
    when: str = ""


def us(moment: str) -> str:
    """A moment or a length of time in µs, in SQL."""
    return f"(extract(epoch FROM {moment}) * 1000000)::bigint"


def _age(moment: str) -> str:
    return us(f"clock_timestamp() - {moment}")


#: Who uses the relation that the startup process waits for.
_USERS_ON_STANDBY = """WITH relations AS MATERIALIZED
      (SELECT database, relation, pid, granted FROM pg_locks WHERE locktype = 'relation')
    SELECT array_agg(DISTINCT used.pid) FROM relations AS wanted
    JOIN relations AS used USING (database, relation)
    WHERE wanted.pid = activity.pid AND NOT wanted.granted AND used.granted
    AND used.pid <> activity.pid"""
#: The server's time first; times are µs since 1970.
_SESSION = f"""{us("clock_timestamp()")}, pid, {us("backend_start")},
  coalesce(usesysid, 0)::bigint, coalesce(usename, ''), coalesce(datid, 0)::bigint,
  coalesce(datname, ''), coalesce(application_name, ''), coalesce(backend_type, ''),
  coalesce(state, ''), wait_event_type, wait_event, query_id,
  {us("query_start")}, {us("xact_start")}, {us("state_change")}"""
#: %s: processes that are asked for whom they wait for. Nobody but pg_locks says it of the startup
#: process, which applies what the primary did: it only asks for locks that none may share. Sessions
#: that only wait for work are left out. A text is read of a statement without identifier only.
SESSIONS = Query(
    "sessions",
    "what sessions do just now, and whom those wait for that waited before",
    f"""SELECT {_SESSION},
  CASE WHEN wait_event_type = 'Lock' AND pid = ANY(%s) THEN
    CASE backend_type WHEN 'startup' THEN ({_USERS_ON_STANDBY}) ELSE pg_blocking_pids(pid) END END,
  CASE WHEN query_id IS NULL AND state = 'active' THEN left(query, {TEXT_CHARACTERS}) END
FROM pg_stat_activity AS activity
WHERE pid <> pg_backend_pid() AND wait_event_type IS DISTINCT FROM 'Activity'
  AND (state NOT IN ('idle', 'disabled') OR wait_event_type = 'Lock')""",
)
#: %s: processes.
BLOCKERS = Query(
    "blockers",
    "what those do whom others wait for",
    f"""SELECT {_SESSION}, NULL::int[], left(query, {TEXT_CHARACTERS}),
  coalesce(host(client_addr), '')
FROM pg_stat_activity WHERE pid = ANY(%s)""",
    "sessions wait for locks",
)
#: Predicate locks (SIReadLock) have a table of their own, and nobody waits for them.
LOCKS = Query(
    "locks",
    "what is locked that sessions wait for, and the prepared transactions that hold it",
    f"""WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE mode <> 'SIReadLock'),
waiting AS MATERIALIZED (SELECT * FROM locks WHERE NOT granted AND pid IS NOT NULL
  ORDER BY waitstart LIMIT 1000),
rows AS (SELECT DISTINCT ON (pid) pid, database, relation FROM locks
  WHERE locktype = 'tuple' AND pid IS NOT NULL),
gone AS MATERIALIZED (SELECT l.*, p.gid, p.owner, p.prepared, p.database AS where_prepared
  FROM locks l JOIN locks x ON x.pid IS NULL AND x.locktype = 'transactionid'
    AND x.virtualtransaction = l.virtualtransaction
  JOIN pg_prepared_xacts p ON p.transaction = x.transactionid WHERE l.pid IS NULL)
SELECT w.pid, concat_ws(' ', w.locktype, w.database, w.relation, w.page, w.tuple, w.virtualxid,
    w.transactionid, w.classid, w.objid, w.objsubid), w.locktype, w.mode,
  CASE WHEN coalesce(w.database, r.database) IN (0, (SELECT oid FROM pg_database
    WHERE datname = current_database())) THEN coalesce(w.relation, r.relation)::regclass::text END,
  coalesce(w.relation, r.relation)::bigint, (SELECT datname FROM pg_database d
    WHERE d.oid = coalesce(w.database, r.database)), w.classid::bigint, w.objid::bigint,
  w.objsubid::int, g.gid, g.where_prepared, g.owner, {_age("g.prepared")}, {_age("w.waitstart")}
FROM waiting w LEFT JOIN rows r ON r.pid = w.pid AND w.locktype <> 'relation'
LEFT JOIN LATERAL (SELECT * FROM gone g WHERE g.locktype = w.locktype
    AND (g.database, g.relation, g.page, g.tuple, g.virtualxid, g.transactionid, g.classid,
      g.objid, g.objsubid) IS NOT DISTINCT FROM (w.database, w.relation, w.page, w.tuple,
      w.virtualxid, w.transactionid, w.classid, w.objid, w.objsubid) LIMIT 1) g ON true""",
    "sessions wait for locks",
)

#: {} counters of checkpoints: where they are depends on the version. A database whose DROP was
#: interrupted (-2) is never frozen again, and the server does not count it either.
_COUNTERS = """SELECT extract(epoch FROM clock_timestamp())::float8, d.commits, d.sessions,
  d.deadlocks, {checkpoints}, a.failed_count, a.last_failed_wal,
  coalesce(a.last_failed_time > coalesce(a.last_archived_time, '-infinity'), false),
  o.age, o.datname, m.age, m.datname, pg_notification_queue_usage()
FROM (SELECT sum(xact_commit)::bigint AS commits, sum(sessions)::bigint AS sessions,
    sum(deadlocks)::bigint AS deadlocks
  FROM pg_stat_database) d, pg_stat_archiver a,
  (SELECT age(datfrozenxid), datname FROM pg_database WHERE datconnlimit <> -2
    ORDER BY 1 DESC LIMIT 1) o,
  (SELECT mxid_age(datminmxid) AS age, datname FROM pg_database WHERE datconnlimit <> -2
    ORDER BY 1 DESC LIMIT 1) m,
  {view} c"""
_TELLS_COUNTERS = "transactions, connections, checkpoints, failures and notifications so far"
COUNTERS = Query(
    "counters",
    _TELLS_COUNTERS,
    _COUNTERS.format(
        checkpoints="c.num_timed, c.num_requested", view="pg_catalog.pg_stat_checkpointer"
    ),
    "PostgreSQL 17 or later",
)
COUNTERS_BEFORE_17 = Query(
    "counters before 17",
    _TELLS_COUNTERS,
    _COUNTERS.format(
        checkpoints="c.checkpoints_timed, c.checkpoints_req", view="pg_catalog.pg_stat_bgwriter"
    ),
    "PostgreSQL 15 or 16",
)
#: A query of its own, because some managed services refuse these functions.
WAL = Query(
    "WAL",
    "how much WAL has been written, or replayed, so far",
    """SELECT coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
  ELSE pg_current_wal_lsn() END, '0/0'), 0)::bigint""",
)
_TELLS_SLOTS = "replication slots, and the WAL that they keep"
#: {} why a slot was invalidated.
_SLOTS = """SELECT slot_name, slot_type, active, coalesce(pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
    restart_lsn), 0)::bigint, coalesce(wal_status, ''), safe_wal_size, active_pid,
  coalesce(application_name, ''),
  pg_wal_lsn_diff(coalesce(confirmed_flush_lsn, restart_lsn), '0/0')::bigint, {reason}
FROM pg_replication_slots LEFT JOIN pg_stat_replication ON pid = active_pid"""
#: A slot that a standby has from its primary is read there.
SLOTS = Query(
    "slots",
    _TELLS_SLOTS,
    _SLOTS.format(reason="invalidation_reason") + "\nWHERE NOT (synced AND pg_is_in_recovery())",
    "PostgreSQL 17 or later",
)
#: A slot whose WAL was removed is `conflicting`, too, and has no position any more.
SLOTS_16 = Query(
    "slots of 16",
    _TELLS_SLOTS,
    _SLOTS.format(reason="CASE WHEN conflicting AND restart_lsn IS NOT NULL THEN 'conflict' END"),
    "PostgreSQL 16",
)
SLOTS_BEFORE_16 = Query(
    "slots before 16", _TELLS_SLOTS, _SLOTS.format(reason="NULL"), "PostgreSQL 15"
)
OLDEST = Query(
    "oldest transaction",
    "which session has the oldest transaction",
    f"""SELECT {_SESSION}, NULL::int[], left(query, {TEXT_CHARACTERS})
FROM pg_stat_activity WHERE backend_type = 'client backend' AND xact_start IS NOT NULL
  AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1""",
    "multixacts grow old, or the queue of notifications fills",
)
LOCK_TABLE = Query(
    "lock table",
    "how many locks there are, and who has the most",
    """WITH locks AS MATERIALIZED
  (SELECT * FROM pg_locks WHERE NOT fastpath AND mode <> 'SIReadLock'),
held AS (SELECT pid, count(*) AS n FROM locks GROUP BY pid)
SELECT (SELECT count(*) FROM locks), (SELECT count(*) FROM (SELECT DISTINCT locktype, database,
    relation, page, tuple, virtualxid, transactionid, classid, objid, objsubid FROM locks) o),
  sum(h.n)::bigint, count(*)::int, (array_agg(h.pid ORDER BY h.n DESC))[1]
FROM held h LEFT JOIN pg_stat_activity a USING (pid)
GROUP BY a.usename, a.application_name ORDER BY 3 DESC LIMIT 1""",
)
#: A snapshot is as old as the oldest transaction with a number of any database, so one without is
#: named last. Of sessions of other databases the number is all that counts here (`here`). A slot
#: that was invalidated keeps nothing. A walsender that does not stream serves no standby, but the
#: first copy of a subscription: it has a transaction, whose xact_start the server hides.
HORIZON = Query(
    "horizon",
    "what keeps vacuum from removing rows: the oldest of each kind",
    f"""WITH standbys AS MATERIALIZED (SELECT application_name, pid, backend_xmin
  FROM pg_stat_replication WHERE state IN ('catchup', 'streaming')),
sessions AS MATERIALIZED (SELECT coalesce(application_name, '') AS name, pid,
    greatest(age(backend_xmin), age(backend_xid)) AS age, age(backend_xid) AS xid_age,
    CASE WHEN datname <> current_database() THEN age(backend_xid)
      ELSE greatest(age(backend_xmin), age(backend_xid)) END AS here,
    {_age("xact_start")} AS us, xact_start, datname
  FROM pg_stat_activity a WHERE pid <> pg_backend_pid()
    AND pid NOT IN (SELECT pid FROM standbys)
    AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    AND coalesce(backend_xmin, backend_xid) IS NOT NULL),
slots AS MATERIALIZED (SELECT * FROM pg_replication_slots WHERE wal_status IS DISTINCT FROM 'lost')
(SELECT 'session', name, pid, here, us, datname FROM sessions WHERE here IS NOT NULL
  ORDER BY here DESC, xid_age DESC NULLS LAST, xact_start LIMIT 1)
UNION ALL (SELECT '{ELSEWHERE}', name, pid, age, us, datname FROM sessions
  WHERE datname <> current_database()
  ORDER BY age DESC, xid_age DESC NULLS LAST, xact_start LIMIT 1)
UNION ALL (SELECT 'prepared', gid, NULL, age(transaction), {_age("prepared")}, database
  FROM pg_prepared_xacts ORDER BY 4 DESC LIMIT 1)
UNION ALL (SELECT 'slot', slot_name, NULL, age(xmin), NULL, database
  FROM slots WHERE xmin IS NOT NULL ORDER BY 4 DESC LIMIT 1)
UNION ALL (SELECT '{CATALOGUES}', slot_name, NULL, age(catalog_xmin), NULL, database
  FROM slots WHERE catalog_xmin IS NOT NULL ORDER BY 4 DESC LIMIT 1)
UNION ALL (SELECT 'standby', application_name, pid, age(backend_xmin), NULL, NULL
  FROM standbys WHERE backend_xmin IS NOT NULL ORDER BY 4 DESC LIMIT 1)""",
)
CONNECTIONS = Query(
    "connections",
    "how many sessions each role and application has",
    """SELECT coalesce(usename, ''), coalesce(application_name, ''), coalesce(state, ''),
  count(*)::int, min(CASE WHEN NOT rolsuper THEN rolconnlimit END)
FROM pg_stat_activity LEFT JOIN pg_roles r ON r.oid = usesysid
WHERE backend_type = 'client backend' GROUP BY 1, 2, 3""",
)
#: A base backup confirms nothing, so no commit can wait for it.
STANDBYS = Query(
    "standbys",
    "which standbys are connected",
    """SELECT coalesce(application_name, '') FROM pg_stat_replication
WHERE state IS DISTINCT FROM 'backup'""",
)
ROLE_SETTINGS = Query(
    "settings of roles",
    "which roles and databases have a plan_cache_mode or work_mem of their own",
    """SELECT coalesce(r.rolname, ''), coalesce(d.datname, ''), split_part(s.one, '=', 1),
  split_part(s.one, '=', 2)
FROM pg_db_role_setting c CROSS JOIN LATERAL unnest(c.setconfig) s(one)
  LEFT JOIN pg_roles r ON r.oid = c.setrole LEFT JOIN pg_database d ON d.oid = c.setdatabase
WHERE s.one LIKE 'plan\\_cache\\_mode=%' OR s.one LIKE 'work\\_mem=%'""",
)
#: %s: identifiers; NULL: all.
CALLS = Query(
    "calls",
    "calls, time and temporary blocks by statement",
    """SELECT d.datname, queryid, sum(calls)::float8, sum(total_exec_time)::float8 / 1000,
  sum(rows)::float8, sum(temp_blks_written)::float8
FROM {schema}.pg_stat_statements(false) s JOIN pg_database d ON d.oid = s.dbid
WHERE queryid IS NOT NULL AND (%s::bigint[] IS NULL OR queryid = ANY(%s)) GROUP BY 1, 2""",
    "pg_stat_statements is there",
)
#: %s: identifiers.
TEXTS_UNDER_WAY = Query(
    "texts of statements under way",
    "what the statements say that pg_stat_statements does not know before they have ended",
    f"""SELECT query_id, left(min(query), {TEXT_CHARACTERS}) FROM pg_stat_activity
WHERE query_id = ANY(%s) AND state = 'active' GROUP BY 1""",
)
#: %s: identifiers.
SOME_TEXTS = Query(
    "texts of some statements",
    "what the statements say that take most of the time",
    f"""SELECT queryid, left(min(query), {TEXT_CHARACTERS}) FROM {{schema}}.pg_stat_statements(true)
WHERE queryid = ANY(%s) GROUP BY 1""",
    "pg_stat_statements is there",
)
TEXT_FILE = Query(
    "text file",
    "the size of the file that holds the texts",
    """SELECT size FROM pg_stat_file('pg_stat_tmp/pgss_query_texts.stat', true)""",
    "the role may execute pg_stat_file",
)
#: The time of a table's last ANALYZE is lost in a crash, as counters are. Whether it has statistics
#: is for those to see who may read it; for others it is taken to have some, unless it never had any
#: or most of its rows came later. What another session has as temporary nobody else can index.
TABLES = Query(
    "tables",
    "sequential scans and dead rows by table, in a database of not too many tables",
    f"""SELECT t.relid::regclass::text, coalesce(t.seq_scan, 0), coalesce(t.seq_tup_read, 0),
  t.n_live_tup, t.n_dead_tup, {_age("greatest(t.last_vacuum, t.last_autovacuum)")},
  greatest(t.last_analyze, t.last_autoanalyze) IS NOT NULL
    OR CASE WHEN has_table_privilege(c.oid, 'SELECT') AND NOT row_security_active(c.oid)
      THEN EXISTS (SELECT FROM pg_stats s
        WHERE (s.schemaname, s.tablename) = (t.schemaname, t.relname))
      ELSE NOT (c.reltuples < 0 OR t.n_mod_since_analyze > c.reltuples / 2) END
FROM pg_stat_user_tables t JOIN pg_class c ON c.oid = t.relid
WHERE (t.seq_tup_read > 100000 OR t.n_dead_tup > 10000 OR (t.idx_tup_fetch > 100000
    AND greatest(t.last_analyze, t.last_autoanalyze) IS NULL))
  AND c.relpersistence <> 't'
  AND (SELECT count(*) FROM pg_class WHERE relkind = 'r') < {MOST_TABLES}""",
)
PROCESSORS = Query(
    "processors",
    "how many processors the server may use",
    "SELECT processors FROM {schema}.wait_event_timing_info()",
    "wait_event_timing is loaded",
)

#: All of them, in the order above.
QUERIES = tuple(value for value in tuple(globals().values()) if isinstance(value, Query))
