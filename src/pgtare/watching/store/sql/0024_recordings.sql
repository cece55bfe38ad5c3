-- Traces that a server kept because of a trigger, each once.
CREATE TABLE IF NOT EXISTS {database}.recordings{on_cluster} (
  server LowCardinality(String),
  agent LowCardinality(String),
  spool LowCardinality(String),
  seq Int64 CODEC(Delta, ZSTD),
  segment String ALIAS concat(spool, '-', leftPad(toString(seq), 10, '0')),
  epoch Int64 CODEC(ZSTD),
  ts DateTime64(6, 'UTC') CODEC(Delta, ZSTD),
  covered_ns Int64 CODEC(ZSTD),
  quality LowCardinality(String),
  number Int64 CODEC(ZSTD),
  cause LowCardinality(String),
  detail String,
  started DateTime64(6, 'UTC'),
  pid Int32 CODEC(ZSTD),
  role_oid Int64 CODEC(ZSTD),
  role LowCardinality(String),
  database_oid Int64 CODEC(ZSTD),
  database LowCardinality(String),
  application LowCardinality(String),
  query_id Nullable(Int64) CODEC(ZSTD),
  bytes Int64 CODEC(ZSTD),
  file Nullable(String),
  incident Nullable(Int64) CODEC(ZSTD),
  INDEX seqs seq TYPE minmax GRANULARITY 1
)
ENGINE = {engine MergeTree}
PARTITION BY toYYYYMM(ts)
ORDER BY (server, ts)
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800;
