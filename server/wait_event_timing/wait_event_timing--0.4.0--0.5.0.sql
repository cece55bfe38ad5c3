/* wait_event_timing--0.4.0--0.5.0.sql */

\echo Use "ALTER EXTENSION wait_event_timing UPDATE" to load this file. \quit

-- all of this as in wait_event_timing--0.5.0.sql
-- The functions below ask for names that an earlier library lacks.
DO $$
BEGIN
    IF pg_catalog.string_to_array(wait_event_timing_library_version(), '.')::pg_catalog.int4[]
        OPERATOR(pg_catalog.<) '{0,5}'::pg_catalog.int4[] THEN
        RAISE EXCEPTION 'the server has loaded a library of wait_event_timing that is older than version 0.5.0'
            USING HINT = 'Restart the server, and try again.';
    END IF;
END $$;

-- Views of others stand on ours, and ours on functions: the old ones step aside, ours take to the new
-- ones, and the old ones go.
ALTER FUNCTION wait_event_timing_backends() RENAME TO wait_event_timing_backends_0_4;
ALTER FUNCTION wait_event_timing_system() RENAME TO wait_event_timing_system_0_4;
ALTER FUNCTION wait_event_timing_moment() RENAME TO wait_event_timing_moment_0_4;
ALTER FUNCTION wait_event_timing_statements() RENAME TO wait_event_timing_statements_0_4;
ALTER FUNCTION wait_event_timing_info() RENAME TO wait_event_timing_info_0_4;

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
AS 'MODULE_PATHNAME', 'wait_event_timing_backends_0_5' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

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
AS 'MODULE_PATHNAME', 'wait_event_timing_system_0_5' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

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
AS 'MODULE_PATHNAME', 'wait_event_timing_moment_0_5' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

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
AS 'MODULE_PATHNAME', 'wait_event_timing_statements_0_5' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

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
) AS 'MODULE_PATHNAME', 'wait_event_timing_info_0_5' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE OR REPLACE VIEW pg_stat_wait_event_timing AS
    SELECT pid, backend_type, wait_event_type, wait_event, idle, waits, calls, total_time,
           total_time OPERATOR(pg_catalog./) waits::pg_catalog.float8 AS mean_time,
           max_time, histogram, total_ns, max_ns
    FROM wait_event_timing_backends();

CREATE OR REPLACE VIEW pg_stat_wait_event_timing_system AS
    SELECT backend_type, wait_event_type, wait_event, idle, waits, calls, total_time,
           CASE WHEN waits OPERATOR(pg_catalog.>) 0
                THEN total_time OPERATOR(pg_catalog./) waits::pg_catalog.float8 END AS mean_time,
           max_time, histogram, running_waits, running_time, total_ns, max_ns, running_ns, processes
    FROM wait_event_timing_system();

CREATE OR REPLACE VIEW pg_stat_wait_event_timing_statements AS
    SELECT userid, dbid, queryid, wait_event_type, wait_event, idle, waits, calls, total_time,
           CASE WHEN waits OPERATOR(pg_catalog.>) 0
                THEN total_time OPERATOR(pg_catalog./) waits::pg_catalog.float8 END AS mean_time,
           max_time, histogram, total_ns, max_ns, running_waits, running_ns, identity
    FROM wait_event_timing_statements()
    WHERE wait_event IS NOT NULL;

CREATE OR REPLACE VIEW pg_stat_wait_event_timing_info AS
    SELECT * FROM wait_event_timing_info();

DROP FUNCTION wait_event_timing_backends_0_4();
DROP FUNCTION wait_event_timing_system_0_4();
DROP FUNCTION wait_event_timing_moment_0_4();
DROP FUNCTION wait_event_timing_statements_0_4();
DROP FUNCTION wait_event_timing_info_0_4();
