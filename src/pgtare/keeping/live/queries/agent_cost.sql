-- What the agent measured of itself, over time.
SELECT (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS bucket_us, kind AS figure,
  sum(value) AS total_value, sum(covered_ns) AS watched_ns
FROM agent
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND server = ''
GROUP BY bucket_us, figure
ORDER BY bucket_us, figure
