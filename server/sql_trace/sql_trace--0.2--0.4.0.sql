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
