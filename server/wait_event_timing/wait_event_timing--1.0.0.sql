/* wait_event_timing--1.0.0.sql */

\echo Use "CREATE EXTENSION wait_event_timing" to load this file. \quit

-- The version of the library that this session has loaded.
CREATE FUNCTION wait_event_timing_library_version() RETURNS text
AS 'MODULE_PATHNAME' LANGUAGE C STABLE STRICT PARALLEL SAFE;

-- Files come first, then a restart, then the extension: rows of another version have other columns.
DO $$
BEGIN
    IF wait_event_timing_library_version() OPERATOR(pg_catalog.!~~) '1.0.%'::pg_catalog.text THEN
        RAISE EXCEPTION 'the server has loaded a library of wait_event_timing that is not of version 1.0'
            USING HINT = 'Restart the server, and try again.';
    END IF;
END $$;

-- Times are in ms; those whose name ends in _ns are the same in whole nanoseconds.
CREATE FUNCTION wait_event_timing_backends(
    OUT pid integer,
    OUT backend_type text,
    OUT wait_event_type text,
    OUT wait_event text,
    OUT idle boolean,
    OUT waits bigint,
    OUT calls bigint,
    OUT total_time double precision,
    OUT max_time double precision,
    OUT histogram bigint[],
    OUT total_ns bigint,
    OUT max_ns bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Waits that ended, and next to them, not in the other columns, those under way. "processes" are
-- those there now that have waited for the event since the last reset.
CREATE FUNCTION wait_event_timing_system(
    OUT backend_type text,
    OUT wait_event_type text,
    OUT wait_event text,
    OUT idle boolean,
    OUT waits bigint,
    OUT calls bigint,
    OUT total_time double precision,
    OUT max_time double precision,
    OUT histogram bigint[],
    OUT running_waits bigint,
    OUT running_time double precision,
    OUT total_ns bigint,
    OUT max_ns bigint,
    OUT running_ns bigint,
    OUT processes integer
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- The same and, in rows without an event, what time those waits are parts of: "waits" is then the
-- number of processes whose waits are captured, and "total_time" the time since they are, ended
-- processes included. Between two moments the rest of it was spent on a processor or ready for one.
-- "skipped" is the number of processes of the type that were stopped in the midst of a change: if it
-- is not 0, the sums of that type are not those of this moment.
CREATE FUNCTION wait_event_timing_moment(
    OUT backend_type text,
    OUT wait_event_type text,
    OUT wait_event text,
    OUT idle boolean,
    OUT waits bigint,
    OUT calls bigint,
    OUT total_time double precision,
    OUT max_time double precision,
    OUT histogram bigint[],
    OUT running_waits bigint,
    OUT running_time double precision,
    OUT taken timestamptz,
    OUT total_ns bigint,
    OUT max_ns bigint,
    OUT running_ns bigint,
    OUT processes integer,
    OUT skipped integer
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- By "identity" two readings know an entry again: it is given when an entry is made, and never again
-- while the server runs. Next to the waits in the table are those that are not in it yet: under way,
-- or over since the process last added its waits. One row without an event tells how many parts of
-- the table were busy and so left out ("skipped").
CREATE FUNCTION wait_event_timing_statements(
    OUT userid oid,
    OUT dbid oid,
    OUT queryid bigint,
    OUT wait_event_type text,
    OUT wait_event text,
    OUT idle boolean,
    OUT waits bigint,
    OUT calls bigint,
    OUT total_time double precision,
    OUT max_time double precision,
    OUT histogram bigint[],
    OUT total_ns bigint,
    OUT max_ns bigint,
    OUT running_waits bigint,
    OUT running_ns bigint,
    OUT identity bigint,
    OUT skipped integer
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE FUNCTION wait_event_timing_current(
    OUT pid integer,
    OUT backend_type text,
    OUT wait_event_type text,
    OUT wait_event text,
    OUT idle boolean,
    OUT wait_start timestamptz,
    OUT wait_time double precision
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE FUNCTION wait_event_timing_sessions(
    OUT pid integer,
    OUT backend_type text,
    OUT capture text,
    OUT events integer,
    OUT overflows bigint,
    OUT negative_clock bigint,
    OUT missed bigint,
    OUT statements_missed bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- "resets" is odd while a reset runs. "memory_since" changes with every restart, that after a crash
-- included.
CREATE FUNCTION wait_event_timing_info(
    OUT version text,
    OUT hooks boolean,
    OUT session_loaded boolean,
    OUT slots_installed integer,
    OUT slots_intact integer,
    OUT clock text,
    OUT counter_hz double precision,
    OUT clock_read_ns double precision,
    OUT processes_ended bigint,
    OUT overflows bigint,
    OUT negative_clock bigint,
    OUT missed bigint,
    OUT statements_evicted bigint,
    OUT statements_missed bigint,
    OUT trace_records bigint,
    OUT traces_refused bigint,
    OUT bytes_per_process bigint,
    OUT stats_reset timestamptz,
    OUT resets bigint,
    OUT slots_problem text,
    OUT clock_reason text,
    OUT memory_since timestamptz,
    OUT postmaster_start timestamptz,
    OUT skipped bigint,
    OUT processors double precision
) AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE FUNCTION wait_event_timing_buckets(
    OUT bucket integer,
    OUT from_time double precision,
    OUT to_time double precision
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

-- The calls of libc that are taken over, and how many places of the server call each.
CREATE FUNCTION wait_event_timing_calls(
    OUT name text,
    OUT slots integer
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- The names behind the number of an event in the records of a trace.
CREATE FUNCTION wait_event_timing_event(
    event bigint,
    OUT wait_event_type text,
    OUT wait_event text,
    OUT idle boolean
) AS 'MODULE_PATHNAME' LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;

-- Resets the counters of one process, or with NULL everything.
CREATE FUNCTION wait_event_timing_reset(pid integer DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- Sets what is captured in another process and its parallel workers, until it sets it itself; with
-- NULL back to what its own settings say.
CREATE FUNCTION wait_event_timing_set(pid integer, level text) RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- What the ring of a process holds, also of one that ended lately. "duration" is a wait's length,
-- or at the end of statements, once a ms at most, the CPU time of the process so
-- far (kind cpu); times are in ms.
CREATE FUNCTION wait_event_trace(
    pid integer,
    OUT number bigint,
    OUT kind text,
    OUT start_time timestamptz,
    OUT since_begin double precision,
    OUT wait_event_type text,
    OUT wait_event text,
    OUT duration double precision,
    OUT calls integer,
    OUT depth integer,
    OUT queryid bigint,
    OUT rows bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- The same as records of 32 bytes, for tools: those from a number on, and where to go on.
CREATE FUNCTION wait_event_trace_drain(
    pid integer,
    "from" bigint,
    OUT next bigint,
    OUT lost bigint,
    OUT started timestamptz,
    OUT records bytea
) AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE FUNCTION wait_event_timing_rings(
    OUT pid integer,
    OUT backend_type text,
    OUT leader_pid integer,
    OUT userid oid,
    OUT records integer,
    OUT started timestamptz,
    OUT ended timestamptz
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Cost of a captured wait in this session, which records the waits of the benchmark as its own.
CREATE FUNCTION wait_event_timing_benchmark(
    calls integer,
    OUT wait_ns double precision,
    OUT two_clock_reads_ns double precision,
    OUT ratio double precision,
    OUT bare_call_ns double precision
) AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- Whoever owns the schema can have put operators there: each is named with its own.
CREATE VIEW pg_stat_wait_event_timing AS
    SELECT pid, backend_type, wait_event_type, wait_event, idle, waits, calls, total_time,
           total_time OPERATOR(pg_catalog./) waits::pg_catalog.float8 AS mean_time,
           max_time, histogram, total_ns, max_ns
    FROM wait_event_timing_backends();

CREATE VIEW pg_stat_wait_event_timing_system AS
    SELECT backend_type, wait_event_type, wait_event, idle, waits, calls, total_time,
           CASE WHEN waits OPERATOR(pg_catalog.>) 0
                THEN total_time OPERATOR(pg_catalog./) waits::pg_catalog.float8 END AS mean_time,
           max_time, histogram, running_waits, running_time, total_ns, max_ns, running_ns, processes
    FROM wait_event_timing_system();

CREATE VIEW pg_stat_wait_event_timing_statements AS
    SELECT userid, dbid, queryid, wait_event_type, wait_event, idle, waits, calls, total_time,
           CASE WHEN waits OPERATOR(pg_catalog.>) 0
                THEN total_time OPERATOR(pg_catalog./) waits::pg_catalog.float8 END AS mean_time,
           max_time, histogram, total_ns, max_ns, running_waits, running_ns, identity
    FROM wait_event_timing_statements()
    WHERE wait_event IS NOT NULL;

CREATE VIEW pg_stat_wait_event_timing_current AS
    SELECT pid, backend_type, wait_event_type, wait_event, idle, wait_start, wait_time,
           CASE WHEN wait_event_type OPERATOR(pg_catalog.=) 'Lock'::pg_catalog.text
                THEN pg_catalog.pg_blocking_pids(pid) END AS blocking_pids
    FROM wait_event_timing_current();

CREATE VIEW pg_stat_wait_event_timing_sessions AS
    SELECT * FROM wait_event_timing_sessions();

CREATE VIEW pg_stat_wait_event_timing_info AS
    SELECT * FROM wait_event_timing_info();

CREATE VIEW pg_stat_wait_event_timing_buckets AS
    SELECT * FROM wait_event_timing_buckets();

GRANT SELECT ON pg_stat_wait_event_timing, pg_stat_wait_event_timing_system,
    pg_stat_wait_event_timing_statements, pg_stat_wait_event_timing_current,
    pg_stat_wait_event_timing_sessions, pg_stat_wait_event_timing_info,
    pg_stat_wait_event_timing_buckets TO PUBLIC;

REVOKE ALL ON FUNCTION wait_event_timing_reset(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION wait_event_timing_set(integer, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION wait_event_timing_benchmark(integer) FROM PUBLIC;
