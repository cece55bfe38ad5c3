"""Puts what the code says of itself into the pages: JSON fields, a spool's tables, instruments.

A page has a comment where it belongs, as <!-- generated: spool tables -->.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import catalogue_table
import spool_tables
from sphinx.application import Sphinx

import json_documents

_PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "JSON fields": json_documents.lines,
    "spool tables": spool_tables.lines,
    "catalogue": catalogue_table.table,
    "remarks": catalogue_table.remarks,
}
_MARK = re.compile(r"<!-- generated: (.+) -->")


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _MARK.sub(lambda found: "\n".join(_PARTS[found[1]]()), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
