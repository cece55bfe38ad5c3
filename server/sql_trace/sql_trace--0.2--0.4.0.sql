/* sql_trace--0.2--0.4.0.sql */

\echo Use "ALTER EXTENSION sql_trace UPDATE" to load this file. \quit

-- as in sql_trace--0.4.0.sql
-- The version of the library that this session has loaded. An earlier one lacks the function: a
-- server that has it in memory needs a restart.
DO $$
BEGIN
    CREATE FUNCTION sql_trace_library_version() RETURNS text
    AS 'MODULE_PATHNAME' LANGUAGE C STABLE STRICT PARALLEL SAFE;
EXCEPTION WHEN undefined_function THEN
    RAISE EXCEPTION 'the server has loaded a library of sql_trace that is older than version 0.4.0'
        USING HINT = 'Restart the server, and try again.';
END $$;

-- The recorder: the memory reserved for its rings and what of it is free, the rings there are, how
-- many gave way to others, and how often there was no room for one. All are 0 if the server has none.
CREATE FUNCTION sql_trace_recorder(
    OUT bytes bigint,
    OUT free_bytes bigint,
    OUT rings bigint,
    OUT gave_way bigint,
    OUT refused bigint
) AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW pg_stat_sql_trace_recorder AS
    SELECT bytes, free_bytes, rings, gave_way, refused FROM sql_trace_recorder();

GRANT SELECT ON pg_stat_sql_trace_recorder TO PUBLIC;
