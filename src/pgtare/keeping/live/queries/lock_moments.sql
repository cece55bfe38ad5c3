-- When sessions waited for other sessions, by bucket of time: all that waited for locks while the
-- blockers of some are known. last_us: the last time at which some are.
SELECT busy.bucket_us AS bucket_us, busy.server AS host, {average} AS aas,
  busy.busy_ns AS spent_ns, busy.waiters AS waiters, busy.last_us AS last_us
FROM (
  SELECT server, (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS bucket_us,
    sum(covered_ns) AS busy_ns, count(DISTINCT pid) AS waiters,
    max(CASE WHEN length(blockers) > 0 THEN ts_us ELSE 0 END) AS last_us
  FROM sessions
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64}
    AND (type = 'Lock' OR length(blockers) > 0) {filters}
  GROUP BY server, bucket_us
) AS busy
JOIN (
  SELECT server, (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS watched_us,
    sum(covered_ns) AS watched_ns
  FROM ticks
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND source = 'sessions'
    AND covered_ns > 0
  GROUP BY server, watched_us
) AS watched
ON busy.server = watched.server AND busy.bucket_us = watched.watched_us
WHERE busy.last_us > 0
ORDER BY bucket_us, host
