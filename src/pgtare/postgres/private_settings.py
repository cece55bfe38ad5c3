"""Settings whose values may hold a secret: they never leave the server."""

from __future__ import annotations

_WORDS = ("password", "conninfo", "command", "krb_", "ssl_passphrase")


def is_private(name: str, *, is_text: bool = False) -> bool:
    """Whether a setting may hold a secret. is_text: as any text of an extension may."""
    return any(word in name for word in _WORDS) or (is_text and "." in name)
