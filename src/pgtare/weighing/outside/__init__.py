"""Weighs from outside: a driver's own sessions and the server's clock, without a server module."""
