"""What a trace says: its time line, and every sum over it."""
