"""Weighings of many servers: their raw data, and one estimate over all of them."""
