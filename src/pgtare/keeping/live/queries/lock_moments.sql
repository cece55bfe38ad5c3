-- When sessions waited for other sessions, by bucket of time: all that waited for locks while the
-- blockers of some are known. waiters, longest_us: of the longest queue, and when that was seen last.
SELECT busy.bucket_us AS bucket_us, busy.server AS host, {average} AS aas,
  busy.busy_ns AS spent_ns, busy.waiters AS waiters, busy.longest_us AS longest_us
FROM (
  SELECT server, bucket_us, sum(waited_ns) AS busy_ns, max(known * queue) AS waiters,
    argMax(at_us, known * (queue * 4294967296.0 + (at_us - {from_us:Int64}) * 0.000001))
      AS longest_us
  FROM (
    SELECT server, (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS bucket_us, ts_us AS at_us,
      sum(covered_ns) AS waited_ns, count(DISTINCT pid) AS queue,
      max(CASE WHEN length(blockers) > 0 THEN 1 ELSE 0 END) AS known
    FROM sessions
    WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64}
      AND (type = 'Lock' OR length(blockers) > 0) {filters}
    GROUP BY server, bucket_us, at_us
  ) AS looks
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
WHERE busy.waiters > 0
ORDER BY bucket_us, host
