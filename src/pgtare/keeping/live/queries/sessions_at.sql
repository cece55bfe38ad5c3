-- All sessions that were seen in a short span of time, with those that they waited for. The newest
-- come first: if there are more than are read, earlier ones are left out.
SELECT ts_us AS seen_us, server AS host, pid AS process, role AS user_role, database AS base,
  application AS program, state AS condition, type AS wait_class, event AS wait_event,
  query_id AS statement, query_age_us AS running_us, xact_age_us AS open_us, blockers AS waits_for
FROM sessions
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} {filters}
ORDER BY seen_us DESC, host, process
LIMIT {most:Int64}
