-- What was sent of each spool: all commits up to seq. rolled_us: up to which ts the rolled-up tables
-- go, in µs since 1970. Only the newest row of a spool counts.
CREATE TABLE IF NOT EXISTS {database}.pushes{on_cluster} (
  spool LowCardinality(String),
  seq Int64,
  rolled_us Map(LowCardinality(String), Int64),
  unsent_rows Int64,
  at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {engine ReplacingMergeTree(at)}
ORDER BY spool;
