"""What the agent has counted, as metrics for Prometheus; a scrape asks no server."""
