/* pgtare--0.1--0.2.sql */

\echo Use "ALTER EXTENSION pgtare UPDATE" to load this file. \quit

DROP FUNCTION @extschema@.trial_start(text[], text[], bigint[], integer[], bigint,
    double precision, name, name, text, double precision, integer, boolean);

-- as in version 0.2
CREATE FUNCTION @extschema@.trial_start(
    settings text[],
    "values" text[],
    inject_ns bigint[],
    block integer[],
    seed bigint,
    duration double precision,
    database name DEFAULT pg_catalog.current_database(),
    role name DEFAULT NULL,
    application text DEFAULT '*',
    participation double precision DEFAULT 1,
    sessions integer DEFAULT 64,
    cpu boolean DEFAULT true,
    slices integer[] DEFAULT '{}',
    slice_min_us integer DEFAULT 15000,
    slice_max_us integer DEFAULT 45000
) RETURNS bigint
AS 'MODULE_PATHNAME', 'pgtare_trial_start' LANGUAGE C VOLATILE PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION @extschema@.trial_start(text[], text[], bigint[], integer[], bigint,
    double precision, name, name, text, double precision, integer, boolean, integer[], integer,
    integer) FROM PUBLIC;
