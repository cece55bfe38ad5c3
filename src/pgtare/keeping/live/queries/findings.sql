-- Findings that were open within a window: each as it was written last, the most urgent first.
SELECT server AS host, key AS finding, arg_max(kind, ts_us) AS sort, arg_max(level, ts_us) AS level,
  arg_max(class, ts_us) AS urgency, arg_max(event, ts_us) AS last_change,
  arg_max(title, ts_us) AS heading, arg_max(evidence, ts_us) AS seen, arg_max(why, ts_us) AS reason,
  arg_max(remedy, ts_us) AS cures, max(share) AS most_share, max(aas) AS most_sessions,
  min(since) AS first_us, max(ts_us) AS last_us
FROM findings
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} {filters}
GROUP BY host, finding
ORDER BY urgency, most_share DESC NULLS LAST, last_us DESC, host, finding
LIMIT {most:Int64}
