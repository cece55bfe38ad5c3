-- Average active sessions over time, by the members of one dimension, summed over servers.
SELECT busy.bucket_us AS bucket_us, busy.member AS member,
  sum({average}) AS aas
FROM (
  SELECT server, (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS bucket_us,
    CAST({dimension:Identifier} AS VARCHAR) AS member, sum(active_ns) AS busy_ns
  FROM {rows:Identifier}
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND {active} {filters}
  GROUP BY server, bucket_us, member
) AS busy
JOIN (
  SELECT server, (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS watched_us,
    sum(covered_ns) AS watched_ns
  FROM ticks
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND source = {source:String}
    AND covered_ns > 0
  GROUP BY server, watched_us
) AS watched
ON busy.server = watched.server AND busy.bucket_us = watched.watched_us
GROUP BY bucket_us, member
ORDER BY bucket_us, member
