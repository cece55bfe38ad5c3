\echo Use "CREATE EXTENSION namesakes" to load this file. \quit

CREATE FUNCTION namesakes_wait(number integer, us integer) RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE;
