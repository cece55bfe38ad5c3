"""Estimators of a study by whole runs."""
