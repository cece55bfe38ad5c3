-- What made up the active time of a window: statements, the largest first.
SELECT busy.server AS host, busy.sort AS sort, busy.statement AS statement,
  {average} AS aas,
  busy.busy_ns AS spent_ns, busy.ended AS waits_ended, busy.ended_ns AS waited_ns,
  busy.longest_ns AS most_ns, busy.worst AS worst_quality
FROM (
  SELECT server, kind AS sort, query_id AS statement, sum(active_ns) AS busy_ns,
    sum(calls) AS ended, sum(total_ns) AS ended_ns, max(max_ns) AS longest_ns, min(quality) AS worst
  FROM {rows:Identifier}
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND {active} {filters}
  GROUP BY server, sort, statement
) AS busy
JOIN (
  SELECT server, sum(covered_ns) AS watched_ns
  FROM ticks
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND source = {source:String}
  GROUP BY server
) AS watched
ON busy.server = watched.server
WHERE watched.watched_ns > 0
ORDER BY spent_ns DESC, host, statement, sort
LIMIT {most:Int64}
