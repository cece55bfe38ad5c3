"""`pgtare store`: the tables of many agents in ClickHouse: made, checked, repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pgtare import cli
from pgtare.cli.commands import GLOSSARY
from pgtare.errors import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgtare.keeping.store.repair import PartialCommits
    from pgtare.keeping.store.store_check import StoreCheck

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Keep what many agents read in one ClickHouse server.\n\n"
        "Passwords come from a file (?password_file=FILE) or from the environment "
        "(PGTARE_STORE_PASSWORD). docs/store.md says how to set up a store and its roles.\n\n"
        "Example: `pgtare store create --store clickhouse://admin@ch.example:8443/pgtare`"
    ),
    epilog=GLOSSARY,
)
Store = Annotated[str, typer.Option(help="The store: clickhouse://USER@HOST:PORT/DATABASE.")]


@app.command()
def create(
    store: Store,
    roles: Annotated[
        bool, typer.Option("--roles", help="Also make roles for agents, pages and repairs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the SQL and change nothing.")
    ] = False,
) -> None:
    """Make the tables of a store.

    --dry-run connects to nothing, and prints all SQL.

    Example: `pgtare store create --store clickhouse://admin@ch.example:8443/pgtare --roles`
    """
    from pgtare.keeping.store import store_schema
    from pgtare.keeping.store.address import read
    from pgtare.keeping.store.connection import connect

    address = read(store)
    of_roles = list(store_schema.role_statements(address.database)) if roles else []
    if dry_run:
        for statement in (*store_schema.statements(address.database), *of_roles):
            typer.echo(f"{statement};\n")
        return
    with connect(address) as connection:
        made = store_schema.make(connection)
        for statement in of_roles:
            connection.command(statement)
    cli.say(f"{address}: {'tables made' if made else 'the tables are there already'}")
    if roles:
        cli.say(f"roles: {store_schema.AGENT}, {store_schema.PAGE}, {store_schema.REPAIR}")


@app.command()
def check(store: Store) -> None:
    """Say whether a store can be used: version, tables, rights, clock, what was sent.

    The exit status is 1 if something keeps it from being used.

    Example: `pgtare store check --store clickhouse://agent@ch.example:8443/pgtare`
    """
    from pgtare.keeping.store import store_check
    from pgtare.keeping.store.address import read
    from pgtare.keeping.store.connection import connect

    address = read(store)
    with connect(address) as connection:
        found = store_check.check(connection)
    _print_check(found, str(address))
    if found.faults:
        raise MeasurementError(f"{address} cannot be used: {found.faults[0]}")


@app.command()
def repair(
    store: Store,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete these rows; without it they are only listed.")
    ] = False,
) -> None:
    """Delete the rows of commits that came only in part, so that the agent sends them whole.

    It takes the role pgtare_repair, or another one that may delete.

    Example: `pgtare store repair --store clickhouse://repair@ch.example:8443/pgtare --yes`
    """
    from pgtare.keeping.store import repair as repairing
    from pgtare.keeping.store.address import read
    from pgtare.keeping.store.connection import connect

    with connect(read(store)) as connection:
        found = repairing.partial(connection)
        if yes:
            for one in found:
                repairing.delete(connection, one)
    _print_partial(found)
    if found:
        cli.say("deleted; the agent sends them again" if yes else "--yes deletes these rows")


def _print_check(found: StoreCheck, name: str) -> None:
    from pgtare.kit.fitted_table import Fitted

    cli.say(
        f"{name}: ClickHouse {found.version} on {found.server}, as {found.user}; "
        f"{found.tables} tables; its clock is {found.clock_s:+.1f} s from this machine's"
    )
    if found.spools:
        table = Fitted("spool", "commits", "last rows")
        for one in found.spools:
            table.add_row(one.spool, str(one.seq), f"{one.age_s:.0f} s ago")
        cli.stdout().print(table, highlight=False)
    _print_partial(found.partial)
    for sentence in (*found.faults, *found.notes):
        cli.say(sentence)


def _print_partial(found: Sequence[PartialCommits]) -> None:
    from pgtare.kit.fitted_table import Fitted

    if not found:
        cli.say("no commit is partial")
        return
    table = Fitted("partial of spool", "table", "day", "commits", "rows there")
    for one in found:
        table.add_row(one.spool, one.table, one.day, str(len(one.seqs)), str(one.rows))
    cli.stdout().print(table, highlight=False)
