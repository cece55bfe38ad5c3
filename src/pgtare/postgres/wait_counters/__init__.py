"""What wait_event_timing counted: its views read, its counters as values, their differences."""
