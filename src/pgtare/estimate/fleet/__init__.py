"""Estimators of a fleet: one arm over many servers, and the guards of its trials."""
