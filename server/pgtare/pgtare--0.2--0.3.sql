/* pgtare--0.2--0.3.sql */

\echo Use "ALTER EXTENSION pgtare UPDATE" to load this file. \quit

-- all of this as in pgtare--0.3.sql
CREATE FUNCTION @extschema@.arm_settings() RETURNS SETOF text
AS 'MODULE_PATHNAME', 'pgtare_arm_settings' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

DROP FUNCTION @extschema@.trial_start(text[], text[], bigint[], integer[], bigint,
    double precision, name, name, text, double precision, integer, boolean, integer[], integer,
    integer);
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
    slice_max_us integer DEFAULT 45000,
    runs integer[] DEFAULT '{}',
    runs_every integer DEFAULT 60,
    run_shortest integer DEFAULT 24,
    run_longest integer DEFAULT 96
) RETURNS bigint
AS 'MODULE_PATHNAME', 'pgtare_trial_start' LANGUAGE C VOLATILE PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION @extschema@.trial_start(text[], text[], bigint[], integer[], bigint,
    double precision, name, name, text, double precision, integer, boolean, integer[], integer,
    integer, integer[], integer, integer, integer) FROM PUBLIC;

DROP FUNCTION @extschema@.info();
CREATE FUNCTION @extschema@.info(
    OUT version text,
    OUT usable boolean,
    OUT clock text,
    OUT clock_hz double precision,
    OUT slots_installed integer,
    OUT slots_intact integer,
    OUT ring_bytes bigint,
    OUT max_sessions integer,
    OUT slots_problem text,
    OUT clock_reason text
) AS 'MODULE_PATHNAME', 'pgtare_info_0_3' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
