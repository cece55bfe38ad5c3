-- Histograms of waits over time: how many ended in each of the 32 classes of duration.
SELECT (ts_us - 1) - (ts_us - 1) % {step_us:Int64} AS bucket_us, sum(calls) AS waits_ended,
  sum(total_ns) AS waited_ns,
  sum(h00) AS in_h00, sum(h01) AS in_h01, sum(h02) AS in_h02, sum(h03) AS in_h03,
  sum(h04) AS in_h04, sum(h05) AS in_h05, sum(h06) AS in_h06, sum(h07) AS in_h07,
  sum(h08) AS in_h08, sum(h09) AS in_h09, sum(h10) AS in_h10, sum(h11) AS in_h11,
  sum(h12) AS in_h12, sum(h13) AS in_h13, sum(h14) AS in_h14, sum(h15) AS in_h15,
  sum(h16) AS in_h16, sum(h17) AS in_h17, sum(h18) AS in_h18, sum(h19) AS in_h19,
  sum(h20) AS in_h20, sum(h21) AS in_h21, sum(h22) AS in_h22, sum(h23) AS in_h23,
  sum(h24) AS in_h24, sum(h25) AS in_h25, sum(h26) AS in_h26, sum(h27) AS in_h27,
  sum(h28) AS in_h28, sum(h29) AS in_h29, sum(h30) AS in_h30, sum(h31) AS in_h31
FROM {rows:Identifier}
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND {active} {filters}
GROUP BY bucket_us
ORDER BY bucket_us
