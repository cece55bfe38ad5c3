-- Active sessions, every second.
CREATE TABLE IF NOT EXISTS {database}.sessions{on_cluster} (
  server LowCardinality(String),
  agent LowCardinality(String),
  spool LowCardinality(String),
  seq Int64 CODEC(Delta, ZSTD),
  segment String ALIAS concat(spool, '-', leftPad(toString(seq), 10, '0')),
  epoch Int64 CODEC(ZSTD),
  ts DateTime64(6, 'UTC') CODEC(Delta, ZSTD),
  covered_ns Int64 CODEC(ZSTD),
  quality LowCardinality(String),
  pid Int32 CODEC(ZSTD),
  role_oid Int64 CODEC(ZSTD),
  role LowCardinality(String),
  database_oid Int64 CODEC(ZSTD),
  database LowCardinality(String),
  application LowCardinality(String),
  backend_type LowCardinality(String),
  state LowCardinality(String),
  type LowCardinality(Nullable(String)),
  event LowCardinality(Nullable(String)),
  query_id Nullable(Int64) CODEC(ZSTD),
  query_age_us Nullable(Int64) CODEC(ZSTD),
  xact_age_us Nullable(Int64) CODEC(ZSTD),
  blockers Array(Int32),
  INDEX seqs seq TYPE minmax GRANULARITY 1
)
ENGINE = {engine MergeTree}
PARTITION BY toDate(ts)
ORDER BY (server, ts)
TTL toDateTime(ts) + INTERVAL 2 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;
