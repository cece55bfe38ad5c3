-- Findings that were written in a span of time: each as it was written last, the most urgent first.
-- What was largest is so within the window; without a row in it, as it was written last.
-- (A join: windows over all rows take 50 times as long.)
SELECT last_rows.server AS host, last_rows.key AS finding, last_rows.since_us AS begun_us,
  last_rows.until_us AS ended_us, last_rows.ts_us AS seen_us, last_rows.event AS last_change,
  last_rows.class AS urgency, coalesce(each_one.worst, last_rows.class) AS worst_urgency,
  last_rows.level AS severity, last_rows.title AS heading, last_rows.episodes AS times_open,
  last_rows.share AS share_now, coalesce(each_one.most, last_rows.share) AS most_share,
  last_rows.aas AS sessions_now, coalesce(each_one.many, last_rows.aas) AS most_sessions,
  last_rows.limit_left_s AS left_s
FROM (
  SELECT server AS host, key AS finding, since_us AS begun_us, max(ts_us) AS newest_us,
    min(CASE WHEN ts_us > {after_us:Int64} AND ts_us <= {until_us:Int64} THEN class END) AS worst,
    max(CASE WHEN ts_us > {after_us:Int64} AND ts_us <= {until_us:Int64} THEN share END) AS most,
    max(CASE WHEN ts_us > {after_us:Int64} AND ts_us <= {until_us:Int64} THEN aas END) AS many
  FROM findings
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} {filters}
  GROUP BY host, finding, begun_us
) AS each_one
JOIN findings AS last_rows
ON each_one.host = last_rows.server AND each_one.finding = last_rows.key
  AND each_one.begun_us = last_rows.since_us AND each_one.newest_us = last_rows.ts_us
WHERE last_rows.since_us <= {until_us:Int64}
  AND (last_rows.until_us IS NULL OR last_rows.until_us >= {after_us:Int64})
ORDER BY worst_urgency, most_share DESC NULLS LAST, seen_us DESC, host, finding
LIMIT {most:Int64}
