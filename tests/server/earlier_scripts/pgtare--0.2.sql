/* pgtare--0.2.sql */

\echo Use "CREATE EXTENSION pgtare" to load this file. \quit

-- Starts a trial and returns its number. "values" holds, arm by arm, a value for
-- each of "settings", null where the arm keeps the session's own. One trial runs
-- at a time; it ends at trial_stop(), after "duration" seconds, or with the
-- session that started it. "slices" names kinds of slices, in which all sessions
-- follow one arm (its index) or draw one for each transaction (-1); they come in
-- permuted blocks, each for a time between the bounds.
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

-- Lets each session finish its block, and begins no new ones; trial_stop() ends it.
CREATE FUNCTION @extschema@.trial_close() RETURNS boolean
AS 'MODULE_PATHNAME', 'pgtare_trial_close' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.trial_stop() RETURNS boolean
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

CREATE FUNCTION @extschema@.trial_drain(max_bytes integer DEFAULT 8388608) RETURNS bytea
AS 'MODULE_PATHNAME', 'pgtare_trial_drain' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

CREATE FUNCTION @extschema@.info(
    OUT version text,
    OUT usable boolean,
    OUT clock text,
    OUT clock_hz double precision,
    OUT slots_installed integer,
    OUT slots_intact integer,
    OUT ring_bytes bigint,
    OUT max_sessions integer
) AS 'MODULE_PATHNAME', 'pgtare_info' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- An arm sets what only superusers may set, in the sessions of others.
REVOKE ALL ON FUNCTION @extschema@.trial_start(text[], text[], bigint[], integer[], bigint,
    double precision, name, name, text, double precision, integer, boolean, integer[], integer,
    integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.trial_close() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.trial_stop() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.trial_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.trial_drain(integer) FROM PUBLIC;
