"""`pgtare report`: analyse a kept result again, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pgtare.cli.json_output import Destination, Json, Output
from pgtare.cli.shared_options import Details, OtherMargin
from pgtare.errors import MeasurementError
from pgtare.kit import files
from pgtare.kit.option_values import percentage
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.reanalysis import reanalyse
from pgtare.weighing.weigh.report.page import write_page
from pgtare.weighing.weigh.report.terminal import render


def report(
    directory: Annotated[Path, typer.Argument(help="What `pgtare weigh --out` made.")],
    margin: OtherMargin = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the page; default DIRECTORY/report.html, or with --margin "
            "DIRECTORY/report-margin-….html."
        ),
    ] = None,
    details: Details = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Analyse the raw observations of a result again, print the table and write the page.

    The page of the recording stays as it is if the margin is another one.

    Example: `pgtare report results/monday --margin 1%`
    """
    share = None if margin is None else percentage("--margin", margin)
    own = "report.html" if share is None else f"report-margin-{100 * share:g}pct.html"
    page = html or directory / own
    files.check_target(html)
    destination = Destination(json, output)
    stored = store.load(directory)
    result = reanalyse(stored.design, stored.observations, stored.result, share)
    if not destination.printed:
        render(result, Console(), details=details)
    destination.write(result.to_json())
    try:
        write_page(result, stored.observations, page)
    except MeasurementError as ex:
        if html is not None:
            raise
        raise MeasurementError(f"{ex}; --html FILE writes the page to another place") from ex
    destination.tell(f"page: {page}")
