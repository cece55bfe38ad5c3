"""The trace file: its layout, writing it and reading it."""
