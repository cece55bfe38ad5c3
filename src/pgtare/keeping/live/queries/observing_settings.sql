-- Settings that observe, each time that they changed.
SELECT server AS host, ts_us AS seen_us, settings AS content
FROM activity
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND settings IS NOT NULL {filters}
ORDER BY seen_us, host
