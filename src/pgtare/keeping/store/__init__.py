"""The store of many agents: tables of ClickHouse, and what sends a spool's commits there."""
