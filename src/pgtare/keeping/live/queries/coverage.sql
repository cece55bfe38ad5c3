-- How long each server was watched in a window, by the source of the ticks.
SELECT server AS host, source AS origin, sum(covered_ns) AS watched_ns,
  max(ts_us) AS last_us
FROM ticks
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} {filters}
GROUP BY host, origin
ORDER BY host, origin
