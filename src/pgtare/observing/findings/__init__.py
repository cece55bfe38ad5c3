"""What slows a server, and who: causes of active time, limits and settings, ranked."""
