"""SQL trace: recording, the trace file, and what a trace says."""
