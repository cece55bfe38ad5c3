"""A page on what a spool holds: queries, a worker that runs them, access, and views."""
