"""The server of `bench.findings`: its tables, what acts on it, and what is asked of it."""
