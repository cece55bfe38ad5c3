-- Findings of a window: when each was seen first and last.
SELECT server AS host, id AS finding, severity AS level, title AS heading,
  detail AS words, count(*) AS times_seen, min(ts_us) AS first_us, max(ts_us) AS last_us
FROM findings
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} {filters}
GROUP BY host, finding, level, heading, words
ORDER BY last_us DESC, host, finding, heading, words
LIMIT {most:Int64}
