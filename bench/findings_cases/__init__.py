"""What happens to the server of `bench.findings`, by what it is about."""
