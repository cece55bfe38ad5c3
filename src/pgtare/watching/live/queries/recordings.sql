-- Traces that servers kept because of a trigger.
SELECT server AS host, number AS recording, cause AS trigger_words, started_us AS begun_us,
  pid AS process
FROM recordings
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} {filters}
ORDER BY begun_us DESC, host, recording
LIMIT {most:Int64}
