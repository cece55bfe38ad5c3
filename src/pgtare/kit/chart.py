"""One chart of a page, with the words and the table that say the same."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.kit.plots import Json


@dataclass(frozen=True)
class Chart:
    """One chart: `label` replaces it for a reader who cannot see it, with the table behind it."""

    id: str
    title: str
    label: str
    caption: str
    height: int
    data: list[Json]
    layout: Json
    table_head: list[str]
    table_rows: list[list[str]]

    def figure(self) -> Json:
        """What the page's script needs to draw it."""
        return {"id": self.id, "data": self.data, "layout": self.layout}
