"""A table that fits the terminal: it gives up whole columns, so that no figure is ever cut.

Names in it are whatever a server's users made them: none of them steers the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from pgtare.kit.terminal_text import plain

#: Spaces between two columns.
_GAP = 2
#: The first column is cut to this, but no further, before others are given up.
_LEAST = 26


class Fitted:
    """Rows of texts under these columns, the first one left-aligned and cut if it is too long.

    spare: columns that a narrow terminal does without, the first one first; a line names them.
    least: how far the first column is cut before that.
    """

    def __init__(self, *columns: str, spare: tuple[str, ...] = (), least: int = _LEAST) -> None:
        self.columns, self.spare, self.least = columns, spare, least
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """A row; columns without a text stay empty."""
        cleaned = map(plain, cells)
        self.rows.append((*cleaned, *[""] * (len(self.columns) - len(cells))))

    def kept(self, width: int) -> dict[int, int]:
        """The columns that are shown in this many characters, by index, and how wide each is."""
        widths = {
            i: max(cell_len(text) for text in (name, *(row[i] for row in self.rows)))
            for i, name in enumerate(self.columns)
        }
        for name in self.spare:
            narrowest = {**widths, 0: min(widths[0], self.least)}
            if sum(narrowest.values()) + _GAP * (len(narrowest) - 1) <= width:
                break
            del widths[self.columns.index(name)]
        over = sum(widths.values()) + _GAP * (len(widths) - 1) - width
        return {**widths, 0: max(widths[0] - max(over, 0), min(widths[0], self.least))}

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        kept = self.kept(options.max_width)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, width in kept.items():
            table.add_column(
                self.columns[i], justify="right" if i else "left", width=width, no_wrap=True
            )
        for row in self.rows:
            table.add_row(*(Text(row[i]) for i in kept))
        yield table
        gone = [name for i, name in enumerate(self.columns) if i not in kept]
        if gone:
            yield Text(f"(no room for: {', '.join(gone)})", style="dim")
