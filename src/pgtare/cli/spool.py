"""`pgtare spool`: what an agent has kept, by SQL and as a summary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgtare import cli
from pgtare.cli.commands import GLOSSARY
from pgtare.cli.json_output import Destination, Json, Output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pgtare.keeping.spool.information import SpoolInfo
    from pgtare.keeping.spool.reader import Answer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Query what an agent keeps of the servers that it watches.\n\n"
        'Example: `pgtare spool sql /var/lib/pgtare-agent/spool "SELECT event, sum(active_ns) FROM '
        'waits_1h GROUP BY event"`'
    ),
    epilog=GLOSSARY,
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The spool's directory.")]


@app.command()
def sql(
    directory: Directory,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT, as DuckDB has it.")],
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV with a line of names, and nothing else.")
    ] = False,
) -> None:
    """Answer a query about a spool: every table is a view, and nothing is changed.

    An agent may go on writing meanwhile. Times are in UTC. docs/spool.md lists the tables with
    their columns; so does "SHOW TABLES" and "DESCRIBE waits".

    Example: `pgtare spool sql DIR "SELECT ts, sum(calls) FROM waits_1m GROUP BY ts ORDER BY ts"`
    """
    from pgtare.keeping.spool import reader

    answer = reader.query(directory, query)
    for note in answer.notes:
        cli.say(f"pgtare: {note}", err=True)
    if as_csv:
        typer.echo(reader.as_csv(answer), nl=False)
        return
    cli.stdout().print(_table(answer), highlight=False)


@app.command()
def info(directory: Directory, json: Json = False, output: Output = None) -> None:
    """Show what a spool holds: tables, spans of time, sizes, and what is missing.

    Example: `pgtare spool info /var/lib/pgtare-agent/spool`
    """
    destination = Destination(json, output)
    from pgtare.keeping.spool import information

    found = information.info(directory)
    destination.write(found.to_json())
    for note in found.notes:
        cli.say(f"pgtare: {note}", err=True)
    if not destination.printed:
        _print_info(found)


def _table(answer: Answer) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from pgtare.keeping.spool import reader
    from pgtare.kit.terminal_text import plain

    numbers = ("INT", "DOUBLE", "DECIMAL", "FLOAT")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, type_ in zip(answer.names, answer.types, strict=True):
        right = any(word in type_ for word in numbers) and not type_.endswith("[]")
        justify = "right" if right else "left"
        table.add_column(Text(plain(name)), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in answer.rows:
        table.add_row(*(Text(plain(reader.shown_value(value))) for value in row))
    return table


def _print_info(found: SpoolInfo) -> None:
    from pgtare.kit.fitted_table import Fitted
    from pgtare.kit.numbers import volume

    writer = "nobody writes it"
    if found.writer_pid is not None:
        writer = f"written by process {found.writer_pid or '(unknown)'}"
    cli.say(
        f"{found.directory}: {volume(found.bytes)}, {volume(found.free_bytes)} free on its disk, "
        f"{found.commits} commits, {writer}"
    )
    tables = Fitted(
        "table", "rows", "size", "files", "first", "last", "dropped", spare=("files", "first")
    )
    for table in found.tables:
        dropped = str(table.dropped_rows) if table.dropped_rows else ""
        times = (_shown(table.first), _shown(table.last))
        size = volume(table.bytes)
        tables.add_row(table.name, str(table.rows), size, str(table.segments), *times, dropped)
    _section(tables, bool(found.tables))
    gaps = Fitted("missing of", "kind", "gaps", "last")
    for gap in found.gaps:
        gaps.add_row(gap.server or "(unknown)", gap.kind, str(gap.rows), _shown(gap.last))
    _section(gaps, bool(found.gaps))
    for name, why in found.damaged.items():
        cli.say(f"damaged, set aside: {name} ({why})")


def _section(content: RenderableType, wanted: bool) -> None:
    if wanted:
        typer.echo()
        cli.stdout().print(content, highlight=False)


def _shown(time: str | None) -> str:
    return "" if time is None else time.replace("T", " ").removesuffix("Z")
