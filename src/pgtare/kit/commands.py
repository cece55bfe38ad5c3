"""Commands to copy, as a terminal shows them: never broken into two lines."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from pgtare.kit.terminal_text import plain

#: As wide as the labels of the lines around it.
_LABEL = "  remedy     "


def lines(
    command: str, does: str, risk: str, privilege: str, *, first: bool
) -> list[RenderableType]:
    """A command, and below it in comments what it does, may break, and needs."""
    words = [does, risk and f"risk: {risk}", privilege and f"needs: {privilege}"]
    label = _LABEL if first else " " * len(_LABEL)
    made: list[RenderableType] = []
    if command:
        text = Text(no_wrap=True, overflow="ignore")
        made.append(text.append(label, "dim").append(plain(command)))
        label = " " * len(_LABEL)
    for word in filter(None, words):
        if label.strip():
            made.append(Text.assemble((label, "dim"), f"-- {plain(word)}"))
            label = " " * len(_LABEL)
        else:
            made.append(Padding(Text(f"-- {plain(word)}"), (0, 0, 0, len(_LABEL) + 3)))
    return made
