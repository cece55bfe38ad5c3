/* sql_trace--0.1--0.2.sql */

\echo Use "ALTER EXTENSION sql_trace UPDATE" to load this file. \quit

-- all of this as in sql_trace--0.2.sql
DROP VIEW pg_stat_sql_trace_info;
DROP FUNCTION sql_trace_info();
CREATE FUNCTION sql_trace_info(
    OUT traced_sessions integer,
    OUT records bigint,
    OUT bytes bigint,
    OUT lost_records bigint,
    OUT lost_bytes bigint,
    OUT wait_requests bigint,
    OUT row_sources bigint,
    OUT refused bigint,
    OUT unread_sessions bigint,
    OUT unread_records bigint,
    OUT unread_bytes bigint,
    OUT clock_reason text
) AS 'MODULE_PATHNAME', 'sql_trace_info_0_2' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW pg_stat_sql_trace_info AS
    SELECT traced_sessions, records, bytes, lost_records, lost_bytes, wait_requests, row_sources,
           refused, unread_sessions, unread_records, unread_bytes, clock_reason
    FROM sql_trace_info();
GRANT SELECT ON pg_stat_sql_trace_info TO PUBLIC;
