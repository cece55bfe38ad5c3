"""The spool: a directory of Parquet segments that keeps what an agent saw; free of PostgreSQL."""
