-- What a finding took over time, by step of time: the largest share of each, when that was seen and
-- whom it held up then, and whether it was closed all the while; the newest first.
SELECT (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS bucket_us,
  argMax(ts_us, coalesce(share, 0.0)) AS seen_us, max(share) AS share_then,
  min(class) AS urgency, min(CASE WHEN event = 'close' THEN 1 ELSE 0 END) AS is_closed,
  argMax(victims, coalesce(share, 0.0)) AS held_up
FROM findings
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND key = {finding:String}
  AND since_us >= {since_from:Int64} AND since_us < {since_to:Int64} {filters}
GROUP BY bucket_us
ORDER BY bucket_us DESC
