"""Weighs what watching a PostgreSQL server costs."""

__version__ = "0.4.0"
