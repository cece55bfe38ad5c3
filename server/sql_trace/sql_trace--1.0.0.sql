/* sql_trace--1.0.0.sql */

\echo Use "CREATE EXTENSION sql_trace" to load this file. \quit

-- The version of the library that this session has loaded.
CREATE FUNCTION sql_trace_library_version() RETURNS text
AS 'MODULE_PATHNAME' LANGUAGE C STABLE STRICT PARALLEL SAFE;

-- Files come first, then a restart, then the extension: rows of another version have other columns.
DO $$
BEGIN
    IF sql_trace_library_version() OPERATOR(pg_catalog.!~~) '1.0.%'::pg_catalog.text THEN
        RAISE EXCEPTION 'the server has loaded a library of sql_trace that is not of version 1.0'
            USING HINT = 'Restart the server, and try again.';
    END IF;
END $$;

-- Records of a session's trace from a position on, as docs/trace-format.md has them.
CREATE FUNCTION sql_trace_drain(
    pid integer,
    "from" bigint,
    OUT next bigint,
    OUT lost bigint,
    OUT started timestamptz,
    OUT ended boolean,
    OUT data bytea
) AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Sets the level of another session (0, 1, 4, 8 or 12); NULL gives it back to its settings.
-- False, with a warning, where there is no such session.
CREATE FUNCTION sql_trace_set(pid integer, level integer) RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- Gives up the traces of sessions that have ended; how many that were.
CREATE FUNCTION sql_trace_reset() RETURNS integer
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- Sessions that are traced, or have been; "lost" counts what no reader had fetched.
CREATE FUNCTION sql_trace_sessions(
    OUT pid integer,
    OUT userid oid,
    OUT dbid oid,
    OUT application_name text,
    OUT level integer,
    OUT reason text,
    OUT waits boolean,
    OUT started timestamptz,
    OUT ended timestamptz,
    OUT records bigint,
    OUT bytes bigint,
    OUT lost_records bigint,
    OUT lost_bytes bigint,
    OUT ring_bytes bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Sums over all sessions since the server started; "refused" counts traces without memory, "unread"
-- those of sessions that had ended and what of them was given up before anybody had read it.
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
) AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- The recorder: the memory reserved for its rings and what of it is free, the rings there are, how
-- many gave way to others, and how often there was no room for one; the same of the dictionary of
-- texts and plans. All are 0 if the server has none.
CREATE FUNCTION sql_trace_recorder(
    OUT bytes bigint,
    OUT free_bytes bigint,
    OUT rings bigint,
    OUT gave_way bigint,
    OUT refused bigint,
    OUT dictionary_bytes bigint,
    OUT dictionary_free_bytes bigint,
    OUT dictionary_entries bigint,
    OUT dictionary_replaced bigint
) AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Row sources of the session's last statement that was measured; times in ms, of the node and all
-- below it, with a 95 % interval. A statement that reads this does not count.
CREATE FUNCTION sql_trace_row_sources(
    OUT node_id integer,
    OUT parent_id integer,
    OUT depth integer,
    OUT node text,
    OUT relation text,
    OUT calls bigint,
    OUT rows bigint,
    OUT loops bigint,
    OUT calls_timed bigint,
    OUT time_ms double precision,
    OUT low_ms double precision,
    OUT high_ms double precision,
    OUT workers integer,
    OUT told_by text,
    OUT sampling integer
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

CREATE VIEW pg_stat_sql_trace AS
    SELECT pid, userid, dbid, application_name, level, reason, waits, started, ended,
           records, bytes, lost_records, lost_bytes, ring_bytes
    FROM sql_trace_sessions();

CREATE VIEW pg_stat_sql_trace_info AS
    SELECT traced_sessions, records, bytes, lost_records, lost_bytes, wait_requests, row_sources,
           refused, unread_sessions, unread_records, unread_bytes, clock_reason
    FROM sql_trace_info();

CREATE VIEW pg_stat_sql_trace_recorder AS
    SELECT bytes, free_bytes, rings, gave_way, refused, dictionary_bytes, dictionary_free_bytes,
           dictionary_entries, dictionary_replaced
    FROM sql_trace_recorder();

GRANT SELECT ON pg_stat_sql_trace, pg_stat_sql_trace_info, pg_stat_sql_trace_recorder TO PUBLIC;

REVOKE ALL ON FUNCTION sql_trace_set(integer, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION sql_trace_reset() FROM PUBLIC;

-- Traces that were kept because a trigger fired (sql_trace.keep_...), for members of
-- pg_read_all_stats. "bytes": of shared memory; "file": in sql_trace.keep_directory, once it is there;
-- "incident": the same of a session that waited for a lock, and of those that held it up.
CREATE FUNCTION sql_trace_kept(
    OUT id bigint,
    OUT pid integer,
    OUT userid oid,
    OUT dbid oid,
    OUT application_name text,
    OUT cause text,
    OUT detail text,
    OUT query_id bigint,
    OUT at timestamptz,
    OUT bytes bigint,
    OUT file text,
    OUT incident bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Since when; how many have been kept, were not by their limits, and not for lack of memory; and
-- where they are written, if they are.
CREATE FUNCTION sql_trace_kept_info(
    OUT since timestamptz,
    OUT kept bigint,
    OUT skipped bigint,
    OUT refused bigint,
    OUT directory text
) AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- A kept trace as a file that pgtare trace reads.
CREATE FUNCTION sql_trace_kept_file(id bigint) RETURNS bytea
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Gives up a kept trace; a file of it stays. False where there is none.
CREATE FUNCTION sql_trace_kept_forget(id bigint) RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- Asks for the traces of these sessions, for a finding that the label names: the server writes them to
-- sql_trace.keep_directory within moments, sql_trace.keep_findings in an hour. A row for each; what
-- is not kept has the reason in "missing". Nobody may call it until it is granted.
CREATE FUNCTION sql_trace_keep_for_finding(
    pids integer[],
    label text,
    OUT pid integer,
    OUT id bigint,
    OUT file text,
    OUT incident bigint,
    OUT missing text
) RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION sql_trace_keep_for_finding(integer[], text) FROM PUBLIC;
REVOKE ALL ON FUNCTION sql_trace_kept() FROM PUBLIC;
REVOKE ALL ON FUNCTION sql_trace_kept_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION sql_trace_kept_file(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION sql_trace_kept_forget(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION sql_trace_kept(), sql_trace_kept_info(), sql_trace_kept_file(bigint)
    TO pg_read_all_stats;
