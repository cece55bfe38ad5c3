"""`pgtare report`: analyse a kept result again, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pgtare.cli.json_output import Destination, Json, Output
from pgtare.cli.shared_options import OtherMargin
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
        Path | None, typer.Option(help="Where to write the page; default DIRECTORY/report.html.")
    ] = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Analyse the raw observations of a result again, print the table and write the page.

    Example: `pgtare report results/monday --margin 1%`
    """
    page = html or directory / "report.html"
    files.check_target(html)
    destination = Destination(json, output)
    stored = store.load(directory)
    share = percentage("--margin", margin) if margin else None
    result = reanalyse(stored.design, stored.observations, stored.result, share)
    write_page(result, stored.observations, page)
    if not destination.printed:
        render(result, Console())
    destination.tell(f"page: {page}")
    destination.write(result.to_json())
