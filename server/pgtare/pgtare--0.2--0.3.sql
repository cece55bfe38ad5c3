/* pgtare--0.2--0.3.sql */

\echo Use "ALTER EXTENSION pgtare UPDATE" to load this file. \quit

-- as in pgtare--0.3.sql
CREATE FUNCTION @extschema@.arm_settings() RETURNS SETOF text
AS 'MODULE_PATHNAME', 'pgtare_arm_settings' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
