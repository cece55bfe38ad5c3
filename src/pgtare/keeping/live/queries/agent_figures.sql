-- What the agent measured of itself in a window.
SELECT server AS host, kind AS figure, unit AS measured_in, sum(value) AS total_value,
  max(value) AS largest, count(*) AS readings, sum(covered_ns) AS watched_ns
FROM agent
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64}
GROUP BY host, figure, measured_in
ORDER BY host, figure, measured_in
