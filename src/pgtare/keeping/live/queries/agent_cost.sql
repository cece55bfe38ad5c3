-- What agents took of processors over time, in cores: the sum over spools.
SELECT each_spool.bucket_us AS bucket_us,
  1000000000 * sum(CAST(each_spool.spent_s AS DOUBLE) / CAST(each_spool.watched_ns AS DOUBLE))
    AS cores
FROM (
  SELECT substring(segment, 1, 36) AS spool_id,
    (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS bucket_us,
    sum(value) AS spent_s, sum(covered_ns) AS watched_ns
  FROM agent
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND server = '' AND kind = 'cpu'
    AND covered_ns > 0
  GROUP BY spool_id, bucket_us
) AS each_spool
GROUP BY bucket_us
ORDER BY bucket_us
