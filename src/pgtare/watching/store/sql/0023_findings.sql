-- Findings of the doctor.
CREATE TABLE IF NOT EXISTS {database}.findings{on_cluster} (
  server LowCardinality(String),
  agent LowCardinality(String),
  spool LowCardinality(String),
  seq Int64 CODEC(Delta, ZSTD),
  segment String ALIAS concat(spool, '-', leftPad(toString(seq), 10, '0')),
  epoch Int64 CODEC(ZSTD),
  ts DateTime64(6, 'UTC') CODEC(Delta, ZSTD),
  covered_ns Int64 CODEC(ZSTD),
  quality LowCardinality(String),
  id LowCardinality(String),
  severity LowCardinality(String),
  title String,
  detail String,
  INDEX seqs seq TYPE minmax GRANULARITY 1
)
ENGINE = {engine MergeTree}
PARTITION BY toDate(ts)
ORDER BY (server, ts)
TTL toDateTime(ts) + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;
