-- Transactions and processors of each server in a window.
SELECT server AS host, sum(commits) AS committed, sum(rollbacks) AS rolled_back,
  max(processors) AS most_processors
FROM activity
WHERE ts_us > {from_us:Int64} AND ts_us <= {to_us:Int64} {filters}
GROUP BY host
ORDER BY host
