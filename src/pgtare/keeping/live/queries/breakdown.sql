-- What made up the active time of a window: the members of one dimension, the largest first.
SELECT busy.member AS member,
  sum({average}) AS aas,
  sum(busy.busy_ns) AS spent_ns, sum(busy.ended) AS waits_ended, sum(busy.ended_ns) AS waited_ns,
  max(busy.longest_ns) AS most_ns, min(busy.worst) AS worst_quality
FROM (
  SELECT server, CAST({dimension:Identifier} AS VARCHAR) AS member, sum(active_ns) AS busy_ns,
    sum(calls) AS ended, sum(total_ns) AS ended_ns, max(max_ns) AS longest_ns, min(quality) AS worst
  FROM {rows:Identifier}
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND {active} {filters}
  GROUP BY server, member
) AS busy
JOIN (
  SELECT server, sum(covered_ns) AS watched_ns
  FROM ticks
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND source = {source:String}
  GROUP BY server
) AS watched
ON busy.server = watched.server
WHERE watched.watched_ns > 0
GROUP BY member
ORDER BY spent_ns DESC, member
LIMIT {most:Int64}
