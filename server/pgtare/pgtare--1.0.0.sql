/* pgtare--1.0.0.sql */

\echo Use "CREATE EXTENSION pgtare" to load this file. \quit

-- Whoever may create functions in the schema could put some next to ours that fit a call better.
DO $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_namespace n
            JOIN pg_catalog.pg_roles owner ON owner.oid OPERATOR(pg_catalog.=) n.nspowner
        WHERE n.oid OPERATOR(pg_catalog.=) '@extschema@'::pg_catalog.regnamespace::pg_catalog.oid
            AND (NOT owner.rolsuper
                 OR EXISTS (
                     SELECT FROM pg_catalog.aclexplode(n.nspacl) granted
                         LEFT JOIN pg_catalog.pg_roles r
                             ON r.oid OPERATOR(pg_catalog.=) granted.grantee
                     WHERE granted.privilege_type OPERATOR(pg_catalog.=) 'CREATE'::pg_catalog.text
                         AND r.rolsuper IS NOT TRUE)
                 OR EXISTS (
                     SELECT FROM pg_catalog.pg_proc p
                         JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) p.proowner
                     WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND NOT r.rolsuper)))
    THEN
        RAISE EXCEPTION 'schema @extschema@ is there already, and not only superusers have made it and can make functions in it'
            USING HINT = 'Rename or drop it, and create the extension again.';
    END IF;
END $$;

-- The version of the library that this session has loaded.
CREATE FUNCTION @extschema@.library_version() RETURNS text
AS 'MODULE_PATHNAME', 'pgtare_library_version' LANGUAGE C STABLE STRICT PARALLEL SAFE;

-- Files come first, then a restart, then the extension: rows of another version have other columns.
DO $$
BEGIN
    IF @extschema@.library_version() OPERATOR(pg_catalog.!~~) '1.0.%'::pg_catalog.text THEN
        RAISE EXCEPTION 'the server has loaded a library of pgtare that is not of version 1.0'
            USING HINT = 'Restart the server, and try again.';
    END IF;
END $$;

-- Starts a trial and returns its number. "values" holds, arm by arm, a value for
-- each of "settings", null where the arm keeps the session's own. One trial runs
-- at a time; it ends at trial_stop(), after "duration" seconds, with the session that
-- started it, or with its lease, if trial_renew() gave it one. "slices" names kinds of slices, in which all sessions
-- follow one arm (its index) or each session draws one (-1); they come in
-- permuted blocks, each for a time between the bounds. Without slices a session keeps
-- an arm for a run of transactions between the bounds; "block" has the arms of the runs
-- of a permuted block.
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
    run_shortest integer DEFAULT 16,
    run_longest integer DEFAULT 32
) RETURNS bigint
AS 'MODULE_PATHNAME', 'pgtare_trial_start' LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- Here and below, trial 0 is whichever was started last; a number is of trial_start's.

-- Gives the trial a lease, or renews it: without another call for so many seconds it ends by itself.
CREATE FUNCTION @extschema@.trial_renew(
    seconds double precision,
    trial bigint DEFAULT 0
) RETURNS boolean
AS 'MODULE_PATHNAME', 'pgtare_trial_renew' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.trial_stop(trial bigint DEFAULT 0) RETURNS boolean
AS 'MODULE_PATHNAME', 'pgtare_trial_stop' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.trial_status(
    OUT running boolean,
    OUT trial bigint,
    OUT owner_pid integer,
    OUT started timestamptz,
    OUT ended timestamptz,
    OUT seconds_left double precision,
    OUT end_reason text,
    OUT sessions integer,
    OUT sessions_now integer,
    OUT sessions_no_ring integer,
    OUT sessions_lacking_settings integer,
    OUT observations bigint,
    OUT lost bigint,
    OUT negative_clock bigint,
    OUT failed_arms integer[]
) AS 'MODULE_PATHNAME', 'pgtare_trial_status' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- Observations not read before; once the trial is over, also what it left open.
CREATE FUNCTION @extschema@.trial_drain(
    max_bytes integer DEFAULT 8388608,
    trial bigint DEFAULT 0
) RETURNS bytea
AS 'MODULE_PATHNAME', 'pgtare_trial_drain' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- The settings that a role may weigh without being a superuser.
CREATE FUNCTION @extschema@.arm_settings() RETURNS SETOF text
AS 'MODULE_PATHNAME', 'pgtare_arm_settings' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

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
) AS 'MODULE_PATHNAME', 'pgtare_info' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- An arm sets what only superusers may set, in the sessions of others.
REVOKE ALL ON FUNCTION @extschema@.trial_start(text[], text[], bigint[], integer[], bigint,
    double precision, name, name, text, double precision, integer, boolean, integer[], integer,
    integer, integer, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.trial_renew(double precision, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.trial_stop(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.trial_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.trial_drain(integer, bigint) FROM PUBLIC;
