\echo Use "CREATE EXTENSION taker" to load this file. \quit

CREATE FUNCTION taker_calls() RETURNS bigint AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE;
