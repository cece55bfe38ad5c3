"""`pgtare report`: analyse a kept result again, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pgtare import cli, store
from pgtare.report import files
from pgtare.report.page import write_page
from pgtare.report.terminal import render
from pgtare.weigh.again import reanalyse
from pgtare.weigh.request import percentage


def report(
    directory: Annotated[Path, typer.Argument(help="What `pgtare weigh --out` made.")],
    margin: Annotated[
        str | None, typer.Option(help="Another margin of equivalence, as in 1%.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Where to write the page; default DIRECTORY/report.html.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the result as JSON; - for standard output.")
    ] = None,
) -> None:
    """Analyse the raw observations of a result again, print the table and write the page.

    Example: `pgtare report results/monday --margin 1%`
    """
    stored = store.load(directory)
    share = percentage("--margin", margin) if margin else None
    result = reanalyse(stored.design, stored.observations, stored.result, share)
    page = html or directory / "report.html"
    write_page(result, stored.observations, page)
    to_stdout = json is not None and str(json) == "-"
    told = cli.stderr() if to_stdout else Console(soft_wrap=True)
    render(result, cli.stderr() if to_stdout else Console())
    told.print(f"page: {page}", highlight=False, markup=False)
    if to_stdout:
        typer.echo(result.to_json())
    elif json is not None:
        files.write_text(json, result.to_json() + "\n")
        told.print(f"JSON: {json}", highlight=False, markup=False)
