-- What a finding took over time, the newest first.
SELECT ts_us AS seen_us, event AS last_change, class AS urgency, share AS share_then,
  victims AS held_up
FROM findings
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND key = {finding:String}
  AND since_us >= {since_from:Int64} AND since_us < {since_to:Int64} {filters}
ORDER BY seen_us DESC
LIMIT {most:Int64}
