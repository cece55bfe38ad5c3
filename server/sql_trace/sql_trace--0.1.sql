\echo Use "CREATE EXTENSION sql_trace" to load this file. \quit

CREATE FUNCTION sql_trace_row_sources(
    OUT node_id integer, OUT parent_id integer, OUT depth integer,
    OUT node text, OUT relation text,
    OUT calls bigint, OUT rows bigint, OUT loops bigint, OUT calls_timed bigint,
    OUT time_ms double precision, OUT low_ms double precision, OUT high_ms double precision,
    OUT workers integer, OUT told_by text, OUT sampling integer)
RETURNS SETOF record AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT;
