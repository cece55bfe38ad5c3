"""`pgtare fleet`: one study over many servers."""

from __future__ import annotations

import typer

from pgtare.cli.commands import GLOSSARY
from pgtare.cli.fleet_report import report

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Weigh instruments on many servers at once, and estimate what they cost over all of "
        "them.\n\nExample: `pgtare fleet report results/monday`"
    ),
    epilog=GLOSSARY,
)
app.command("report")(report)
