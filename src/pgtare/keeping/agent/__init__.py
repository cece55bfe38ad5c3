"""Reads servers at a steady pace, and hands what changed between two readings to the spool."""
