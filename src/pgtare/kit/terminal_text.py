"""Text of a server or of its users for a terminal: what would steer the terminal is taken out."""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` on one line: control characters and those that are not seen become question marks.

    Names, statements and titles of processes are whatever their owners made them, escape sequences
    included. White space becomes a space.
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
