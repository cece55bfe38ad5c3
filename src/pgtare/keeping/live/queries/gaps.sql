-- What is missing after a time and up to until_us, and why. A gap's row is written at its end, so
-- rows from after that count, too. Rows that were dropped for room come last: there may be many.
SELECT server AS host, kind AS reason, from_ts_us AS since_us, ts_us AS until_us,
  detail AS words
FROM gaps
WHERE ts_us > {from_us:Int64} AND from_ts_us <= {until_us:Int64} {filters}
ORDER BY CASE WHEN kind = 'dropped' THEN 1 ELSE 0 END, until_us, host, reason, words
LIMIT {most:Int64}
