"""`pgtare instruments`: what can be weighed, and what a server lacks for it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from pgtare.cli.json_output import Destination, Json, Output
from pgtare.cli.shared_options import Catalogues
from pgtare.postgres import own_session
from pgtare.weighing.instruments.catalogue import load_catalogue
from pgtare.weighing.instruments.listing import Instrument, listing
from pgtare.weighing.instruments.requirements import read_facts


def instruments(
    dsn: Annotated[
        str | None, typer.Option(help="Say what this server has and what it lacks.")
    ] = None,
    catalogue: Catalogues = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List the instruments that can be weighed.

    Example: `pgtare instruments --dsn "host=/var/run/postgresql dbname=app"`
    """
    destination = Destination(json, output)
    entries = load_catalogue(catalogue or ()).values()
    if dsn is None:
        found = listing(entries, None)
    else:
        from pgtare.weighing.outside import settings_probe  # with what estimates need

        with own_session.connect(dsn) as conn:
            found = listing(entries, partial(settings_probe.entry_lacks, conn, read_facts(conn)))
    destination.write(found.to_json())
    if destination.printed:
        return
    console = Console()
    for one in found.instruments:
        console.print(f"[bold]{one.name}[/bold]  {escape(one.description)}", highlight=False)
        for line in _details(one):
            console.print(Padding(Text(line), (0, 0, 0, 4)), highlight=False)


def _details(one: Instrument) -> list[str]:
    first, *others = one.variants
    lines = []
    for name in [first, *others] if others else []:
        bare = ", what the bare name means" if name == first else ""
        lines.append(f"{one.name}/{name}{bare}: {one.variants[name]}".removesuffix(": "))
    if not one.safe_in_production:
        lines.append(f"on a server of yours only with --allow {one.name}: {one.reason}")
    if one.missing:
        lines += [f"this server: {lack}" for lack in one.missing]
    elif one.missing is not None:
        lines.append("this server: ready")
    return lines
