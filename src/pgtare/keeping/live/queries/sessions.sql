-- Sessions that were seen active in a window, by process and what it ran.
SELECT server AS host, pid AS process, role AS user_role, database AS base,
  application AS program, query_id AS statement, sum(active_ns) AS spent_ns, count(*) AS times_seen,
  max(ts_us) AS last_us
FROM samples
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND {active} {filters}
GROUP BY host, process, user_role, base, program, statement
ORDER BY spent_ns DESC, host, process, statement, user_role, base, program
LIMIT {most:Int64}
