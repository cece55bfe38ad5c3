"""What a view is made of: sections with words, a chart and a table; and a table as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

from pgtare.keeping.live import time_window
from pgtare.keeping.live.worker_process import LiveRow
from pgtare.kit import numbers
from pgtare.kit.plots import Json

#: How a value is shown: plain text; AAS; ns; a count; a share of 1; a time in µs; others as named.
ColumnKind = Literal[
    "text", "aas", "ns", "us", "count", "bytes", "share", "time", "change", "ns_change"
]

#: Characters that a cell shows; CSV has the whole text, as a statement's own page has.
_LONGEST_CELL = 400
#: What a spreadsheet takes for a formula.
_FORMULA, _NUMBER = re.compile(r"[=+@\t\r-]"), re.compile(r"-?\d+")


@dataclass(frozen=True)
class PageColumn:
    """A column: its name in CSV, its heading, and how its values are shown.

    of: the value in a row of an answer: what makes it, or its key there; the name, if empty.
    """

    name: str
    heading: str
    kind: ColumnKind = "text"
    of: str | Callable[[LiveRow], Any] = ""

    def value(self, row: LiveRow) -> Any:
        """Its value in a row of an answer."""
        return row[self.of or self.name] if isinstance(self.of, str) else self.of(row)

    @property
    def numeric(self) -> bool:
        """Whether it is aligned to the right."""
        return self.kind not in ("text", "time")


@dataclass(frozen=True)
class PageRow:
    """A row: a value for each column; href: where its first cell leads."""

    values: Sequence[Any]
    href: str | None = None


def page_rows(
    columns: Sequence[PageColumn],
    found: Iterable[LiveRow],
    href: Callable[[LiveRow], str | None] = lambda row: None,
) -> list[PageRow]:
    """The rows of an answer as these columns show them."""
    return [PageRow([one.value(row) for one in columns], href(row)) for row in found]


@dataclass(frozen=True)
class PageTable:
    """A table; id: its name in the addresses of CSV. total: a last row, set apart."""

    id: str
    caption: str
    columns: Sequence[PageColumn]
    rows: Sequence[PageRow]
    total: PageRow | None = None
    empty: str = "Nothing in this window."

    def csv(self) -> str:
        """Names of columns, then all rows: numbers in full, times in UTC."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(column.name for column in self.columns)
        for row in self.rows:
            lines.writerow(
                _raw(value, column.kind)
                for value, column in zip(row.values, self.columns, strict=True)
            )
        return text.getvalue()


@dataclass(frozen=True)
class LiveChart:
    """A chart: label says in words what it shows. brush: dragging along it selects a window."""

    id: str
    label: str
    height: int
    data: list[Json]
    layout: Json
    brush: bool = False

    def figure(self) -> Json:
        """What the page's script needs to draw it."""
        return {"id": self.id, "data": self.data, "layout": self.layout, "brush": self.brush}


@dataclass(frozen=True)
class TreeNode:
    """A session, with the sessions that wait for it."""

    words: str
    about: str
    waiters: list[TreeNode] = field(default_factory=list)


@dataclass(frozen=True)
class PageLink:
    """A link; current: whether it leads to what is shown."""

    words: str
    href: str
    current: bool = False
    about: str = ""


@dataclass(frozen=True)
class PageItem:
    """A line of a list that leads to a page of its own. level: critical, warning or info."""

    level: str
    words: str
    href: str
    about: str


@dataclass(frozen=True)
class PageCommand:
    """A command to copy; facts: a word and what it says, such as the command's risk."""

    command: str
    facts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class PageSection:
    """A part of a view under a heading of its own. quality: exact, approximate or sampled."""

    title: str
    notes: Sequence[str] = ()
    quality: str = ""
    chart: LiveChart | None = None
    table: PageTable | None = None
    tree: Sequence[TreeNode] = ()
    text: str = ""
    links: Sequence[PageLink] = ()
    lines: Sequence[str] = ()
    items: Sequence[PageItem] = ()
    commands: Sequence[PageCommand] = ()


@dataclass(frozen=True)
class ViewPage:
    """A whole view."""

    title: str
    sections: Sequence[PageSection]
    alarms: Sequence[str] = ()

    @property
    def charts(self) -> list[LiveChart]:
        """All of its charts."""
        return [each.chart for each in self.sections if each.chart is not None]

    def table(self, id_: str) -> PageTable | None:
        """The table of that name."""
        tables = [each.table for each in self.sections if each.table is not None]
        return next((one for one in tables if one.id == id_), None)


def address(path: str, words: Mapping[str, Any]) -> str:
    """An address within the page; words without a value are left out."""
    given = [(name, value) for name, value in words.items() if value not in (None, "")]
    return f"{path}?{urlencode(given)}" if given else path


def shown_cell(value: Any, kind: ColumnKind) -> str:
    """A value as a reader sees it."""
    if value is None:
        return numbers.NONE if kind != "text" else ""
    if kind == "text":
        text = str(value)
        return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]} …"
    if kind == "time":
        return time_window.shown(value)
    if isinstance(value, float) and not math.isfinite(value):
        return numbers.NONE
    if kind == "aas":
        sign = numbers.MINUS if value < 0 else ""
        return sign + numbers.plain(value, numbers.decimals(None, value)) if value else "0"
    if kind == "change":
        return numbers.signed(value, numbers.decimals(None, value))
    if kind == "share":
        return numbers.percent(100 * value)
    if kind == "count":
        return numbers.count(round(value))
    if kind == "bytes":
        return numbers.volume(value)
    us = value if kind == "us" else value / 1000
    words = numbers.duration(us)
    return f"+{words}" if kind == "ns_change" and us > 0 else words


def _raw(value: Any, kind: ColumnKind) -> str:
    if value is None:
        return ""
    if kind == "time":
        return time_window.iso(value) + "Z"
    text = str(value)
    formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if kind == "text" and formula else text
