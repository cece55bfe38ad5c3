"""Findings that agents kept: read again, of any time, and compared with another time."""
