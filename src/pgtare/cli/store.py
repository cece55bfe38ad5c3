"""`pgtare store`: the tables of many agents in ClickHouse: made, checked, planned, repaired."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgtare import cli
from pgtare.cli.commands import GLOSSARY
from pgtare.errors import MeasurementError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgtare.keeping.store.address import StoreAddress
    from pgtare.keeping.store.connection import StoreConnection
    from pgtare.keeping.store.repair import PartialCommits
    from pgtare.keeping.store.size_plan import StorePlan
    from pgtare.keeping.store.store_check import StoreCheck

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Keep what many agents read in one ClickHouse server or cluster.\n\n"
        "Passwords come from a file or from the environment (PGTARE_STORE_PASSWORD). docs/store.md "
        "says how to set up a store and its roles.\n\n"
        "Example: `pgtare store create --store clickhouse://admin@ch.example:8443/pgtare`"
    ),
    epilog=GLOSSARY,
)
Store = Annotated[str, typer.Option(help="The store: clickhouse://USER@HOST:PORT/DATABASE.")]
PasswordFile = Annotated[
    Path | None, typer.Option(help="A file whose first line is the user's password.")
]
Cluster = Annotated[
    str | None,
    typer.Option(help="Make tables on all servers of this cluster, replicated (untried)."),
]
_RATE_ROWS = 100_000


@app.command()
def create(
    store: Store,
    password_file: PasswordFile = None,
    cluster: Cluster = None,
    roles: Annotated[
        bool, typer.Option("--roles", help="Also make roles for agents, pages and repairs.")
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(help="With --roles: a role that sees only servers with this label, env=prod."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the SQL and change nothing.")
    ] = False,
) -> None:
    """Make the tables of a store.

    --dry-run connects to nothing, and prints all SQL.

    Example: `pgtare store create --store clickhouse://admin@ch.example:8443/pgtare --roles`
    """
    from pgtare.keeping.store import roles as store_roles
    from pgtare.keeping.store import store_schema

    if label and not roles:
        raise UsageError("--label goes with --roles")
    if cluster is not None:
        store_schema.check_cluster(cluster)
    address = _address(store, password_file)
    of_roles = []
    if roles:
        of_roles = list(store_roles.statements(address.database, tuple(label or ()), cluster))
    if dry_run:
        for statement in (*store_schema.statements(address.database, cluster), *of_roles):
            typer.echo(f"{statement};\n")
        return
    with _connected(address) as connection:
        made = store_schema.make(connection, cluster)
        for statement in of_roles:
            connection.command(statement)
    cli.say(f"{address}: {'tables made' if made else 'the tables are there already'}")
    if roles:
        cli.say(f"roles: {store_roles.AGENT}, {store_roles.PAGE}, {store_roles.REPAIR}")


@app.command()
def check(store: Store, password_file: PasswordFile = None) -> None:
    """Say whether a store can be used: version, tables, rights, clock, what was sent.

    The exit status is 1 if something keeps it from being used.

    Example: `pgtare store check --store clickhouse://agent@ch.example:8443/pgtare`
    """
    from pgtare.keeping.store import store_check

    address = _address(store, password_file)
    with _connected(address) as connection:
        found = store_check.check(connection)
    _print_check(found, str(address))
    if found.faults:
        raise MeasurementError(f"{address} cannot be used: {found.faults[0]}")


@app.command()
def plan(
    servers: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many servers.")],
    spool: Annotated[
        Path | None, typer.Option(help="Take the rates of rows from this agent's spool.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Take the bytes of a row from this store's tables.")
    ] = None,
    password_file: PasswordFile = None,
    disk: Annotated[str, typer.Option(help="Room for rows on the disks of a shard.")] = "1000G",
) -> None:
    """Say what a number of servers needs: rows, bytes, parts, shards, and what goes when.

    Without --spool and --store the figures are those of a simulated server with 500 sessions.

    Example: `pgtare store plan --servers 1000 --spool /var/lib/pgtare-agent/spool`
    """
    from pgtare.keeping.store import size_plan
    from pgtare.kit.option_values import size

    disk_bytes = size("--disk", disk)
    if disk_bytes < 1 << 30:
        raise UsageError("--disk: give 1G or more")
    rates = size_plan.simulated_rates()
    if spool is not None:
        rates |= _rates(spool)
    sizes = size_plan.simulated_sizes()
    if store is not None:
        with _connected(_address(store, password_file)) as connection:
            found = size_plan.bytes_of_store(connection)
        sizes |= {name: (value, "measured") for name, value in found.items()}
    _print_plan(size_plan.plan(servers, rates, sizes, disk_bytes, _RATE_ROWS))


@app.command()
def repair(
    store: Store,
    password_file: PasswordFile = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete these rows; without it they are only listed.")
    ] = False,
) -> None:
    """Delete the rows of commits that came only in part, so that the agent sends them whole.

    It takes the role pgtare_repair, or another one that may delete.

    Example: `pgtare store repair --store clickhouse://repair@ch.example:8443/pgtare --yes`
    """
    from pgtare.keeping.store import repair as repairing

    with _connected(_address(store, password_file)) as connection:
        found = repairing.partial(connection)
        if yes:
            for one in found:
                repairing.delete(connection, one)
    _print_partial(found)
    if found:
        cli.say("deleted; the agent sends them again" if yes else "--yes deletes these rows")


def _address(store: str, password_file: Path | None) -> StoreAddress:
    from pgtare.keeping.store import address

    return address.read(store).of_user(None, password_file)


def _connected(address: StoreAddress) -> StoreConnection:
    from pgtare.keeping.store.connection import connect

    return connect(address)


def _rates(spool: Path) -> Mapping[str, tuple[float, str]]:
    """Rows a day and server of a spool."""
    from pgtare.keeping.spool import reader
    from pgtare.keeping.store import size_plan

    content, _ = reader.newest(spool)
    found = size_plan.rates_of_spool(content)
    if not found:
        raise UsageError(f"{spool} has no rows of an hour or more: let its agent run for a while")
    counted = reader.query(
        spool, "SELECT count(DISTINCT server) FROM ticks_1h WHERE server != ''"
    ).rows[0][0]
    watched = max(int(counted), 1)
    return {name: (rate / watched, "measured") for name, rate in found.items()}


def _print_check(found: StoreCheck, name: str) -> None:
    from pgtare.kit.fitted_table import Fitted

    roles = ", ".join(found.roles) or "no role"
    cli.say(
        f"{name}: ClickHouse {found.version} on {found.server}, as {found.user} ({roles}); "
        f"{found.tables} tables; its clock is "
        f"{found.clock_s:+.1f} s from this machine's"
    )
    if found.spools:
        table = Fitted("spool", "commits", "last rows", "dropped unsent")
        for one in found.spools:
            dropped = str(one.unsent_rows) if one.unsent_rows else ""
            table.add_row(one.spool, str(one.seq), f"{one.age_s:.0f} s ago", dropped)
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


def _print_plan(found: StorePlan) -> None:
    from pgtare.kit.fitted_table import Fitted
    from pgtare.kit.numbers import volume

    table = Fitted(
        "table", "rows/day", "from", "bytes/row", "from ", "kept", "rows", "size", "parts"
    )
    for one in found.tables:
        if one.rows:
            table.add_row(
                one.table,
                f"{one.rows_a_day:.3g}",
                one.rate_from,
                f"{one.bytes_a_row:.1f}",
                one.bytes_from,
                f"{one.kept_s // 86400} d" if one.ttl else "always",
                f"{one.rows:.3g}",
                volume(one.bytes),
                str(one.parts),
            )
    cli.stdout().print(table, highlight=False)
    cli.say(
        f"Computed for {found.servers} servers: {found.rows:.3g} rows, {volume(found.bytes)} on "
        f"disk (one replica), {found.parts} parts; {found.rows_a_second:.0f} rows a second in "
        f"{found.inserts_a_minute:.0f} inserts a minute from {found.agents} agents; "
        f"{found.shards} shards of {volume(found.disk_bytes)}, each taking at most "
        f"{found.shard_rows_a_second:.0f} rows a second."
    )
    cli.say(
        "Tables without a line (texts, findings, gaps, …) have few rows. The columns 'from' say "
        "what rates and bytes of a row are: measured, simulated (measured on simulated rows), or "
        "assumed. All else is computed."
    )
