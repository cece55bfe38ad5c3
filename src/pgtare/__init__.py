"""Weighs what watching a PostgreSQL server costs."""

__version__ = "0.5.0"
