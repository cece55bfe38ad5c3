/* sql_trace--0.4.0--0.5.0.sql */

\echo Use "ALTER EXTENSION sql_trace UPDATE" to load this file. \quit

-- New are the recorder and the kept traces: the library must have them.
DO $$
BEGIN
    IF pg_catalog.string_to_array(sql_trace_library_version(), '.')::pg_catalog.int4[]
        OPERATOR(pg_catalog.<) '{0,5}'::pg_catalog.int4[] THEN
        RAISE EXCEPTION 'the server has loaded a library of sql_trace that is older than version 0.5.0'
            USING HINT = 'Restart the server, and try again.';
    END IF;
END $$;

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

REVOKE ALL ON FUNCTION sql_trace_kept() FROM PUBLIC;
REVOKE ALL ON FUNCTION sql_trace_kept_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION sql_trace_kept_file(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION sql_trace_kept_forget(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION sql_trace_kept(), sql_trace_kept_info(), sql_trace_kept_file(bigint)
    TO pg_read_all_stats;

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

CREATE VIEW pg_stat_sql_trace_recorder AS
    SELECT bytes, free_bytes, rings, gave_way, refused, dictionary_bytes, dictionary_free_bytes,
           dictionary_entries, dictionary_replaced
    FROM sql_trace_recorder();

GRANT SELECT ON pg_stat_sql_trace_recorder TO PUBLIC;
