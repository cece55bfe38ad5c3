"""Estimators: arrays in, numbers out, nothing of PostgreSQL."""
