"""The ladder: whole runs of variants that cannot be switched inside one server, compared."""
