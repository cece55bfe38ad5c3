"""Watches servers all the time: the agent reads them, the spool keeps what it read."""
