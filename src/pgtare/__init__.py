"""Weighs what watching a PostgreSQL server costs."""

__version__ = "1.0.0"
