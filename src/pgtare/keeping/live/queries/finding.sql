-- One finding as it was written last; since_from, since_to: when it began.
SELECT server AS host, key AS finding, kind AS sort, event AS last_change, class AS urgency,
  level AS severity, since_us AS begun_us, until_us AS ended_us, ts_us AS seen_us,
  episodes AS times_open, share AS share_now, active_s AS spent_s,
  limit_left_s AS left_s, root AS holder, gate AS queue_head, query_id AS statement,
  title AS heading, evidence AS seen_lines, why AS reason, remedy AS cures,
  sure AS certainty, because AS grounds, follows AS came_after,
  traces AS linked
FROM findings
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND key = {finding:String}
  AND since_us >= {since_from:Int64} AND since_us < {since_to:Int64} {filters}
ORDER BY seen_us DESC, host
LIMIT 1
