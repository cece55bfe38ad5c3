"""Flame graphs as one HTML file that needs nothing else, and as a part of another page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import pgtare
from pgtare.kit import page_frame
from pgtare.seeing.flame.graph import Graph


def script() -> str:
    """The program that draws every graph of a page."""
    return (resources.files("pgtare.seeing.flame") / "templates" / "flame.js").read_text(
        encoding="utf-8"
    )


def page(
    title: str,
    subtitle: str,
    graphs: Sequence[Graph],
    *,
    alarms: Sequence[str] = (),
    notes: Sequence[str] = (),
    answers: Sequence[str] = (),
    table: Sequence[Sequence[str]] = (),
    table_head: Sequence[str] = (),
) -> str:
    """The page as a string. table: what the graphs show, for readers who cannot see them."""
    return page_frame.render(
        "pgtare.seeing.flame",
        "page.html.j2",
        (),
        scripts=[script()],
        title=title,
        subtitle=subtitle,
        graphs=graphs,
        alarms=alarms,
        notes=notes,
        answers=answers,
        table=table,
        table_head=table_head,
        embedded=embedded,
        version=pgtare.__version__,
        created=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S %Z}",
    )


def fragment(graphs: Sequence[Graph], notes: Sequence[str] = ()) -> Markup:
    """Graphs as a part of another page, which runs `script` at its end."""
    environment = Environment(
        loader=PackageLoader("pgtare.seeing.flame"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("fragment.html.j2")
    text = template.render(graphs=graphs, notes=notes, embedded=embedded)
    return Markup(text)  # noqa: S704  # the template has escaped whatever is not ours


def embedded(graph: Graph) -> Markup:
    """A graph's data for `script`, safe within a page."""
    return Markup(page_frame.embeddable(graph.data))  # noqa: S704
