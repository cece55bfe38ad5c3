"""Where time goes on a server that has wait_event_timing loaded: seen live, kept, compared."""
