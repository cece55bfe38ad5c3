\echo Use "CREATE EXTENSION idler" to load this file. \quit

CREATE FUNCTION idle_for(place integer, microseconds double precision) RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL SAFE COST 1;

CREATE FUNCTION idled(place integer, OUT calls bigint, OUT milliseconds double precision)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION idled_reset() RETURNS void AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE;
