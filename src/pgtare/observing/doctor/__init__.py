"""What stalls a server, found from outside: by SQL alone, read-only, in seconds, no module."""
