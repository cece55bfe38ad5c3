"""`pgtare instruments`: what can be weighed, and what a server lacks for it."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pgtare.instruments import Entry, ServerFacts, availability, load_catalogue, read_facts
from pgtare.server import trials


def instruments(
    dsn: Annotated[
        str | None, typer.Option(help="Say what this server has and what it lacks.")
    ] = None,
    catalogue: Annotated[
        list[Path] | None, typer.Option("--catalog", help="A file with instruments of your own.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the instruments that can be weighed.

    Example: `pgtare instruments --dsn "host=/var/run/postgresql dbname=app"`
    """
    facts = None
    if dsn is not None:
        with trials.connect(dsn) as conn:
            facts = read_facts(conn)
    rows = [_row(entry, facts) for entry in load_catalogue(catalogue or ()).values()]
    if json:
        typer.echo(jsonlib.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("instrument", "variants", "what it is", "in production"):
        table.add_column(title, overflow="fold")
    if facts is not None:
        table.add_column("this server", overflow="fold")
    for row in rows:
        cells = [
            row["name"],
            ", ".join(row["variants"]),
            row["description"],
            "safe" if row["safe_in_production"] else f"needs --allow: {row['reason']}",
        ]
        if facts is not None:
            cells.append("\n".join(row["missing"]) or "ready")
        table.add_row(*cells)
    Console().print(table, highlight=False, markup=False)


def _row(entry: Entry, facts: ServerFacts | None) -> dict[str, Any]:
    return {
        "name": entry.name,
        "variants": list(entry.variants),
        "description": entry.description,
        "safe_in_production": entry.safe_in_production,
        "reason": entry.reason,
        "remarks": entry.remarks,
        "missing": None if facts is None else [str(lack) for lack in availability(entry, facts)],
    }
