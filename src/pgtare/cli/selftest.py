"""`pgtare selftest`: is the scale itself calibrated, here and now?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pgtare import cli
from pgtare.cli.shared_options import PgConfig
from pgtare.kit.option_values import seconds
from pgtare.postgres.load import LoadSpec
from pgtare.weighing.weigh import selftest as selftests
from pgtare.weighing.weigh.request import Request


def selftest(
    duration: Annotated[
        str, typer.Option("--duration", "-d", help="Length of each of two recordings.")
    ] = "15s",
    pg_config: PgConfig = None,
) -> None:
    """Check the scale: error rates on control-only trials, and delays that are known.

    Exit status 1 if a figure is not as it should be; a correct scale gets there about once in
    a hundred runs.

    Example: `pgtare selftest --duration 20`
    """
    request = Request(
        chosen=(),
        inject_ns=selftests.DELAYS_NS,
        duration_s=seconds("--duration", duration),
        load=LoadSpec(),
        pg_config=pg_config,
    )
    done = selftests.run(request, cli.stderr())
    _print(done)
    if not done.passed:
        raise typer.Exit(1)


def _print(done: selftests.Selftest) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("check", "measured", "should be", ""):
        table.add_column(title, overflow="fold")
    for check in done.checks:
        verdict = "ok" if check.passed else "NOT OK"
        table.add_row(
            check.name,
            check.measured,
            check.wanted,
            verdict,
            style="" if check.passed else "bold red",
        )
    Console().print(table, highlight=False, markup=False)
    typer.echo(f"{done.transactions:,} transactions, seed {done.seed}")
    if done.passed:
        typer.echo("The scale is sound: every figure is as it should be.")
    else:
        typer.echo(
            "The scale is NOT sound here, or this was the one run in a hundred: repeat it, longer."
        )
