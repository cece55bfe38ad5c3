-- What was spun after the first transactions, by the delay that was asked for.
CREATE FUNCTION spinner_counted(
    OUT settled_ns integer,
    OUT transactions bigint,
    OUT spun_ns bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'spinner_counted' LANGUAGE C VOLATILE STRICT;

CREATE FUNCTION spinner_forget() RETURNS void
AS 'MODULE_PATHNAME', 'spinner_forget' LANGUAGE C VOLATILE STRICT;
