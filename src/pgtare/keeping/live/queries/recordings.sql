-- Traces that servers kept because of a trigger, by the time at which it fired.
SELECT server AS host, number AS recording, cause AS trigger_words, detail AS how_much,
  started_us AS begun_us, pid AS process, role AS user_role, database AS base,
  application AS program, query_id AS statement, bytes AS size_bytes, file AS place,
  incident AS shared
FROM recordings
WHERE started_us > {from_us:Int64} AND started_us <= {to_us:Int64} {filters}
ORDER BY begun_us DESC, host, recording
LIMIT {most:Int64}
