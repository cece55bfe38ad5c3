"""Instruments that no session can switch: the whole server has them on and off by windows."""
