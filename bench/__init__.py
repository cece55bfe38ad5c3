"""Benchmarks: they print the figures of the documentation."""
