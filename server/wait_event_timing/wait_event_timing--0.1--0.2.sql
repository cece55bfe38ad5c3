/* wait_event_timing--0.1--0.2.sql */

\echo Use "ALTER EXTENSION wait_event_timing UPDATE" to load this file. \quit

-- all of this as in wait_event_timing--0.2.sql
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
    OUT taken timestamptz
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

DROP VIEW pg_stat_wait_event_timing_info;
DROP FUNCTION wait_event_timing_info();
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
    OUT clock_reason text
) AS 'MODULE_PATHNAME', 'wait_event_timing_info_0_2' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW pg_stat_wait_event_timing_info AS
    SELECT * FROM wait_event_timing_info();
GRANT SELECT ON pg_stat_wait_event_timing_info TO PUBLIC;
