"""`pgtare fleet report`: estimate a fleet's weighing again from its raw data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.kit import files
from pgtare.kit.option_values import percentage
from pgtare.kit.progress import Counted


def report(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX",
            help="What `pgtare fleet weigh --out` made: a directory, or s3://BUCKET/PREFIX.",
        ),
    ],
    margin: Annotated[
        str | None, typer.Option(help="Another equivalence margin, for example 1%.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write the page to this file.")
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Processes of this machine that estimate servers.")
    ] = 1,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Estimate on the Dask cluster of this scheduler, as tcp://HOST:8786.",
        ),
    ] = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Estimate each server of a fleet again from its raw observations, and combine them.

    The estimators are those of `pgtare weigh`. Servers whose data are damaged or incomplete are
    named and left out. The figures are the same whoever estimates. It needs no server.

    Example: `pgtare fleet report results/monday --html monday.html --processes 4`
    """
    from pgtare.weighing.fleet.reestimation import Reestimation, check_workers
    from pgtare.weighing.fleet.report.page import write_page
    from pgtare.weighing.fleet.report.terminal import render

    workers = check_workers(processes, scheduler)
    files.check_target(html)
    destination = Destination(json, output)
    share = percentage("--margin", margin) if margin else None
    with cli.stderr().status(f"pgtare: looking for servers in {prefix}"):
        found = Reestimation(prefix, share)
    with Counted(cli.stderr(), "estimating", len(found.listing.servers), "servers") as display:
        result = found.run(workers, display.tick)
    if destination.printed:  # the table says it as well
        for one in result.left_out:
            cli.say(f"pgtare: {one.server} is left out: {one.reason}", err=True)
    if html is not None:
        write_page(result, html)
        destination.tell(f"page: {html}")
    if not destination.printed:
        render(result, cli.stdout())
    destination.write(result.to_json())
