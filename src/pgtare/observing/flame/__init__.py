"""Flame graphs: where a server's processes compute, and where and by whom they are kept waiting."""
