"""Something found, as a terminal shows it: lines with labels, commands that are never broken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pgtare.kit.terminal_text import plain

_WIDTH = 9
#: As wide as the labels of the lines around it.
_REMEDY = f"  {'remedy':{_WIDTH}}  "


def rows(lines: Iterable[tuple[str, str]]) -> Table:
    """Lines, each with its label."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(min_width=_WIDTH, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, line in lines:
        table.add_row(Text(plain(label)), Text(plain(line)))
    return table


def finding(
    title: str,
    evidence: Sequence[str],
    why: str,
    remedies: Iterable[Mapping[str, str]],
    more: Iterable[tuple[str, str]],
) -> RenderableType:
    """What was seen, and what to do. remedies: command, does, risk, privilege of each."""
    seen = [("seen" if not n else "", line) for n, line in enumerate(evidence)]
    parts: list[RenderableType] = [Text(plain(title), style="bold")]
    parts.append(_indented([*seen, ("why", why)]))
    for number, remedy in enumerate(remedies):
        parts += _remedy(**remedy, first=not number)
    return Group(*parts, _indented(more))


def _indented(lines: Iterable[tuple[str, str]]) -> Padding:
    return Padding(rows(lines), (0, 0, 0, 2))


def _remedy(
    command: str, does: str, risk: str, privilege: str, *, first: bool
) -> list[RenderableType]:
    """A command to copy, and below it in comments what it does, may break, and needs."""
    words = [does, risk and f"risk: {risk}", privilege and f"needs: {privilege}"]
    label = _REMEDY if first else " " * len(_REMEDY)
    made: list[RenderableType] = []
    if command:
        text = Text(no_wrap=True, overflow="ignore")
        made.append(text.append(label, "dim").append(plain(command)))
        label = " " * len(_REMEDY)
    for word in filter(None, words):
        if label.strip():
            made.append(Text.assemble((label, "dim"), f"-- {plain(word)}"))
            label = " " * len(_REMEDY)
        else:
            made.append(Padding(Text(f"-- {plain(word)}"), (0, 0, 0, len(_REMEDY) + 3)))
    return made
