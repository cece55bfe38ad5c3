"""What reading the time costs on this machine, and whether the clock can be trusted."""
