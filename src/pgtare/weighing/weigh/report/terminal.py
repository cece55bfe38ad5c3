"""A result on the terminal: the table, what must be known of it, and on request all figures."""

from __future__ import annotations

import re

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.fitted_table import Fitted
from pgtare.kit.terminal_text import plain
from pgtare.weighing import verdict_names
from pgtare.weighing.weigh.report import alarms, contention, footnotes, wording
from pgtare.weighing.weigh.report.rows import ANSWER, DETAILS, headings, table
from pgtare.weighing.weigh.schema import WeighResult

# What a narrow terminal does without, the first one first.
_DROP = ("proof", "cpu_us", "p99_us", "p50_us", "tail_us", "pct", "waiting_us", "interval_us", "us")
_GAP = 2
_NARROWEST_NAME = 18  # to which it is folded before columns are left out
_INDENT = 2  # of a folded name's further lines, to tell them from the next row
_LEFT = ("name", "answer", "proof")
# Like rich's SIMPLE_HEAD, for terminals that have no line-drawing characters.
_ASCII_HEAD = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def render(result: WeighResult, console: Console, *, details: bool = False) -> None:
    """Print a result, with all figures if asked; colours and width are the console's.

    Control characters in names never reach the terminal.
    """
    report = _Report(result, console)
    report.print()
    if details:
        report.print_details()


class _Report:
    def __init__(self, result: WeighResult, console: Console) -> None:
        self.result = result
        self.console = console

    def print(self) -> None:
        """The table, and what must be known of it."""
        for alarm in alarms.alarms(self.result):
            self._line(alarm, "bold yellow")
        self._line(wording.subject(self.result))
        self.console.print()
        self._table(headings(self.result), wording.table_title(self.result))
        for note in wording.notes(self.result):
            self._line(note)

    def print_details(self) -> None:
        """Everything else."""
        self._list("Answers", [sentence for _, sentence in wording.answers(self.result)], "")
        self.console.print()
        self._table({"name": headings(self.result)["name"], **DETAILS}, "other figures")
        self._line(footnotes.threshold_sentence(self.result), "dim")
        self.console.print()
        self._contention()
        self._facts()
        self._list("These figures do not show", wording.not_shown(self.result), "dim")

    def _table(self, columns: dict[str, str], title: str) -> None:
        rows = table(self.result)
        if not rows:
            return
        heads = {
            key: text
            for key, text in columns.items()
            if key in ANSWER or any(row.cells[key] != numbers.NONE for row in rows)
        }
        keys = list(heads)
        fitted = Fitted(
            *heads.values(),
            spare=tuple(heads[key] for key in _DROP if key in heads),
            least=_NARROWEST_NAME,
        )
        for row in rows:
            fitted.add_row(*(row.cells[key] for key in keys))
        kept = fitted.kept(self.console.width)
        room = self.console.width - sum(_GAP + width for i, width in kept.items() if i)
        grid = self._grid()
        grid.title = Text(title)
        for i, width in kept.items():
            grid.add_column(
                Text(fitted.columns[i]),
                justify="left" if keys[i] in _LEFT else "right",
                overflow="fold",
                no_wrap=i > 0,
                min_width=width if i else None,
            )
        for row, cells in zip(rows, fitted.rows, strict=True):
            style = "dim" if row.arm.role in ("control", "injected") else ""
            tones = {"answer": verdict_names.STYLES.get(row.tone, "")}
            shown = [Text(cells[i], style=tones.get(keys[i], "")) for i in kept]
            shown[0] = Text(_fold(cells[0], max(room, _INDENT + 1)))
            grid.add_row(*shown, style=style)
        if "answer" in columns:
            for name in wording.left_out(self.result):
                said = {0: plain(name), keys.index("answer"): "left out: see below"}
                grid.add_row(*(said.get(i, numbers.NONE) for i in kept))
        self.console.print(grid)
        hidden = [text for i, text in enumerate(fitted.columns) if i not in kept]
        if hidden:
            self._line(f"Left out at this width: {', '.join(hidden)}.", "dim")
        self.console.print()

    def _grid(self) -> Table:
        return Table(
            box=_ASCII_HEAD if self.console.options.ascii_only else box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, _GAP - 1, 0, 0),  # the box adds a column between
            header_style="bold",
            show_edge=False,
        )

    def _contention(self) -> None:
        """Where the cost falls, of a saturation design."""
        view = contention.view(self.result)
        if view is None:
            return
        grid = self._grid()
        for i, heading in enumerate(view.headings):
            grid.add_column(self._text(heading), justify="right" if i else "left", overflow="fold")
        for row in view.rows:
            grid.add_row(*(self._text(cell) for cell in row))
        self.console.print(grid)
        self.console.print()
        self._line(view.basis, "dim")
        self._list("These rows assume", view.assumptions, "dim")
        self.console.print()

    def _facts(self) -> None:
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in footnotes.facts(self.result):
            grid.add_row(self._text(label), self._text(text))
        self.console.print(grid)

    def _list(self, title: str, items: tuple[str, ...] | list[str], style: str) -> None:
        if not items:
            return
        self.console.print()
        self._line(title, "bold")
        for item in items:
            bullet = Table.grid(padding=(0, 1, 0, 0))
            bullet.add_row("-", self._text(item, style))
            self.console.print(Padding(bullet, (0, 0, 0, 1)))

    def _line(self, text: str, style: str = "") -> None:
        self.console.print(self._text(text, style), highlight=False)

    def _text(self, text: str, style: str = "") -> Text:
        # Text, never markup: a name such as "[red]" must stay what it is.
        return Text(plain(text), style=style)


def _fold(name: str, width: int) -> str:
    """`name` in lines of at most `width` cells, broken after a separator if there is one."""
    lines = [""]
    for part in re.findall(r"[^_./=, ]+[_./=, ]*|[_./=, ]+", name):
        for piece in _pieces(part, width - _INDENT):
            if lines[-1].strip() and cell_len(lines[-1]) + cell_len(piece.rstrip()) > width:
                lines.append(" " * _INDENT)
            lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _pieces(part: str, width: int) -> list[str]:
    """`part` in pieces of at most `width` cells, whole if it fits."""
    pieces = [""]
    for c in part:
        if cell_len(pieces[-1] + c) > width and not c.isspace():
            pieces.append("")
        pieces[-1] += c
    return pieces
