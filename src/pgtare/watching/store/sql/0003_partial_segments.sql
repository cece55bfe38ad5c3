-- Commits of which a table has some rows but not all. state: 1 partial, 0 repaired. repairs: how
-- often rows were deleted. Only the newest row of a commit, table and day counts.
CREATE TABLE IF NOT EXISTS {database}.partial_segments{on_cluster} (
  spool LowCardinality(String),
  seq Int64,
  table_name LowCardinality(String),
  day Date,
  state UInt8,
  repairs UInt32,
  at DateTime64(6, 'UTC') DEFAULT now64(6)
)
ENGINE = {engine ReplacingMergeTree(at)}
ORDER BY (spool, seq, table_name, day);
