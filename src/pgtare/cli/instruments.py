"""`pgtare instruments`: what can be weighed, and what a server lacks for it."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

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
    console = Console()
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {escape(row['description'])}", highlight=False)
        for line in _details(row):
            console.print(Padding(Text(line), (0, 0, 0, 4)), highlight=False)


def _details(row: dict[str, Any]) -> list[str]:
    first, *others = row["variants"]
    lines = [f"variants: {first} (what the bare name means), {', '.join(others)}"] if others else []
    if not row["safe_in_production"]:
        lines.append(f"on a server of yours only with --allow {row['name']}: {row['reason']}")
    if row["missing"]:
        lines += [f"this server: {lack}" for lack in row["missing"]]
    elif row["missing"] is not None:
        lines.append("this server: ready")
    return lines


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
