/* pgtare--0.3--0.4.0.sql */

\echo Use "ALTER EXTENSION pgtare UPDATE" to load this file. \quit

-- as in pgtare--0.4.0.sql
-- The version of the library that this session has loaded. An earlier one lacks the function: a
-- server that has it in memory needs a restart.
DO $$
BEGIN
    CREATE FUNCTION @extschema@.library_version() RETURNS text
    AS 'MODULE_PATHNAME', 'pgtare_library_version' LANGUAGE C STABLE STRICT PARALLEL SAFE;
EXCEPTION WHEN undefined_function THEN
    RAISE EXCEPTION 'the server has loaded a library of pgtare that is older than version 0.4.0'
        USING HINT = 'Restart the server, and try again.';
END $$;
