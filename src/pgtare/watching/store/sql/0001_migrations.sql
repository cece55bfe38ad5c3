-- Which migrations were applied.
CREATE TABLE IF NOT EXISTS {database}.migrations{on_cluster} (
  name String,
  sha256 String,
  applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {engine ReplacingMergeTree(applied_at)}
ORDER BY name;
