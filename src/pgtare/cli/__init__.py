"""The command line: parses, calls, prints. Errors become one sentence and an exit status."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

import pgtare
from pgtare.errors import PgtareError

INTERRUPTED = 130

app = typer.Typer(
    name="pgtare",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help=(
        "Weighs what watching a PostgreSQL server costs, on your own load.\n\n"
        "It reaches servers on Linux hosts where a file can be put into PostgreSQL's library "
        "directory; managed services do not allow that. The server module changes call slots in "
        "the server's memory, and a crash of any module restarts the whole server.\n\n"
        "Example: `pgtare weigh pg_stat_statements track_io_timing --duration 30`"
    ),
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"pgtare {pgtare.__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", "-V", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def stderr() -> Console:
    """For progress and errors; what is piped onward stays clean."""
    return Console(stderr=True, soft_wrap=True)


def main() -> None:
    """Entry point of the console command."""
    from pgtare.cli import commands

    commands.register(app)
    try:
        app()
    except PgtareError as ex:
        sys.stderr.write(f"pgtare: {ex}\n")
        raise SystemExit(ex.exit_status) from None
    except KeyboardInterrupt:
        sys.stderr.write("pgtare: interrupted\n")
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        raise SystemExit(1) from None
