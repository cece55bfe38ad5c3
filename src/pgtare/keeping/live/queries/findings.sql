-- Findings that were written in a span of time: each as it was written last, the most urgent first.
SELECT host, finding, begun_us, ended_us, seen_us, last_change, urgency, worst_urgency, severity,
  heading, times_open, share_now, most_share, sessions_now, most_sessions, left_s
FROM (
  SELECT server AS host, key AS finding, since_us AS begun_us, until_us AS ended_us,
    ts_us AS seen_us, event AS last_change, class AS urgency, level AS severity, title AS heading,
    episodes AS times_open, share AS share_now, aas AS sessions_now, limit_left_s AS left_s,
    min(class) OVER (PARTITION BY server, key, since_us) AS worst_urgency,
    max(share) OVER (PARTITION BY server, key, since_us) AS most_share,
    max(aas) OVER (PARTITION BY server, key, since_us) AS most_sessions,
    row_number() OVER (PARTITION BY server, key, since_us ORDER BY ts_us DESC) AS newest_first
  FROM findings
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} {filters}
) AS written
WHERE newest_first = 1 AND begun_us <= {until_us:Int64}
  AND (ended_us IS NULL OR ended_us >= {after_us:Int64})
ORDER BY worst_urgency, most_share DESC NULLS LAST, seen_us DESC, host, finding
LIMIT {most:Int64}
