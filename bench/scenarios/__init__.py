"""Hostile data with a known truth: how often intervals cover, and how often verdicts are wrong."""
