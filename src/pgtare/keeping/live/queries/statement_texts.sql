-- Texts of statements by their identifiers.
SELECT run.server AS host, run.query_id AS statement, min(texts.text) AS words
FROM (
  SELECT server, query_id, text_hash
  FROM {rows:Identifier}
  WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} AND kind = 'statement'
    AND query_id IN {statements:Array(Int64)}
  GROUP BY server, query_id, text_hash
) AS run
JOIN texts ON run.text_hash = texts.text_hash
GROUP BY host, statement
ORDER BY host, statement
