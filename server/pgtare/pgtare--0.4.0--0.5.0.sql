/* pgtare--0.4.0--0.5.0.sql */

\echo Use "ALTER EXTENSION pgtare UPDATE" to load this file. \quit

-- All extensions have the version of their libraries, so it is checked.
DO $$
BEGIN
    IF pg_catalog.string_to_array(@extschema@.library_version(), '.')::pg_catalog.int4[]
        OPERATOR(pg_catalog.<) '{0,5}'::pg_catalog.int4[] THEN
        RAISE EXCEPTION 'the server has loaded a library of pgtare that is older than version 0.5.0'
            USING HINT = 'Restart the server, and try again.';
    END IF;
END $$;

-- Gives the trial a lease, or renews it: without another call for so many seconds it ends by itself.
CREATE FUNCTION @extschema@.trial_renew(seconds double precision) RETURNS boolean
AS 'MODULE_PATHNAME', 'pgtare_trial_renew' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION @extschema@.trial_renew(double precision) FROM PUBLIC;
