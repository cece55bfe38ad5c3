-- When sessions were seen waiting for other sessions, by bucket of time.
SELECT (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS bucket_us, server AS host,
  sum(covered_ns) AS spent_ns, count(*) AS times_seen, count(DISTINCT pid) AS waiters,
  max(ts_us) AS last_us
FROM sessions
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND length(blockers) > 0 {filters}
GROUP BY bucket_us, host
ORDER BY bucket_us, host
