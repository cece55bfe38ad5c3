-- What agents measured of themselves in a window; each_ns: for each ns, summed over spools.
SELECT host, figure, measured_in, sum(total) AS total_value, max(most) AS largest,
  sum(times) AS readings, count(*) AS spools,
  sum(CAST(total AS DOUBLE) / CAST(watched_ns AS DOUBLE)) AS each_ns
FROM (
  SELECT server AS host, kind AS figure, unit AS measured_in,
    substring(segment, 1, 36) AS spool_id, sum(value) AS total, max(value) AS most,
    count(*) AS times, sum(covered_ns) AS watched_ns
  FROM agent
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64}
  GROUP BY host, figure, measured_in, spool_id
) AS each_spool
GROUP BY host, figure, measured_in
ORDER BY host, figure, measured_in
