"""Watches servers all the time: the agent, and the spool that it writes."""
