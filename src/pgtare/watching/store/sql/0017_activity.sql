-- What databases did, every minute.
CREATE TABLE IF NOT EXISTS {database}.activity{on_cluster} (
  server LowCardinality(String),
  agent LowCardinality(String),
  spool LowCardinality(String),
  seq Int64 CODEC(Delta, ZSTD),
  segment String ALIAS concat(spool, '-', leftPad(toString(seq), 10, '0')),
  epoch Int64 CODEC(ZSTD),
  ts DateTime64(6, 'UTC') CODEC(Delta, ZSTD),
  covered_ns Int64 CODEC(ZSTD),
  quality LowCardinality(String),
  database_oid Int64 CODEC(ZSTD),
  database LowCardinality(String),
  commits Int64 CODEC(ZSTD),
  rollbacks Int64 CODEC(ZSTD),
  blocks_read Int64 CODEC(ZSTD),
  blocks_hit Int64 CODEC(ZSTD),
  rows_returned Int64 CODEC(ZSTD),
  rows_fetched Int64 CODEC(ZSTD),
  rows_inserted Int64 CODEC(ZSTD),
  rows_updated Int64 CODEC(ZSTD),
  rows_deleted Int64 CODEC(ZSTD),
  temp_files Int64 CODEC(ZSTD),
  temp_bytes Int64 CODEC(ZSTD),
  deadlocks Int64 CODEC(ZSTD),
  processors Nullable(Float64),
  sessions Int32 CODEC(ZSTD),
  settings Nullable(String),
  INDEX seqs seq TYPE minmax GRANULARITY 1
)
ENGINE = {engine MergeTree}
PARTITION BY toDate(ts)
ORDER BY (server, ts)
TTL toDateTime(ts) + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;
