-- What is missing in a window, and why.
SELECT server AS host, kind AS reason, from_ts_us AS since_us, ts_us AS until_us,
  covered_ns AS missing_ns, detail AS words
FROM gaps
WHERE ts_us > {from_us:Int64} AND from_ts_us <= {to_us:Int64} {filters}
ORDER BY until_us, host, reason, words
LIMIT {most:Int64}
