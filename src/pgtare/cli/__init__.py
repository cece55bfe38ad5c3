"""The command line: parses, calls, prints. Errors become one sentence and an exit status."""

from __future__ import annotations

import sys
from io import StringIO
from typing import Any, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

import pgtare
from pgtare import interrupt
from pgtare.cli import standard_output
from pgtare.errors import PgtareError
from pgtare.kit.terminal_text import plain

USAGE = 2
INTERRUPTED = interrupt.INTERRUPTED
_WIDE = 1000


class _Interrupted(PgtareError):
    """Ctrl-C, for which typer would end the command without a word."""

    exit_status = INTERRUPTED


class _Commands(TyperGroup):
    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        from pgtare.cli.commands import ORDER

        return sorted(self.commands, key=ORDER.index)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        interrupt.unwind_at_interrupt()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as ex:
            raise _Interrupted(str(ex) or interrupt.INTERRUPTION) from None


#: Packages that only some commands need, by the extra that installs them.
EXTRAS = {
    "agent": ("duckdb", "prometheus_client", "pyarrow", "starlette", "uvicorn"),
    "build": ("plotly",),  # a wheel has what is needed of it
}

app = typer.Typer(
    name="pgtare",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help=(
        "Weighs what watching a PostgreSQL server costs, on your own load.\n\n"
        "`weigh`, `doctor` and `agent` need no module in the server, so they also reach a managed "
        "one. `waits`, `trace`, and weighing a server's own traffic need modules, on a Linux host. "
        "The server module changes call slots in the server's memory, and a crash of any module "
        "restarts the whole server.\n\n"
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


class _PlainConsole(Console):
    """Prints text in which names may be, or what a file or a server said: it steers no terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_plain_lines(text), **options)


def stderr() -> Console:
    """For progress and errors; what is piped onward stays clean."""
    return _PlainConsole(stderr=True, soft_wrap=True)


def stdout() -> Console:
    """For tables; elsewhere than on a terminal as wide as what is printed."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def show(found: RenderableType) -> None:
    """Print it as a terminal shows it, without blanks at the ends of lines elsewhere."""
    console = Console()
    if console.is_terminal:
        console.print(found, highlight=False, crop=False)
        return
    text = StringIO()
    Console(width=_WIDE, file=text).print(found, highlight=False, crop=False)
    for line in text.getvalue().splitlines():
        typer.echo(line.rstrip())


def say(text: str, *, err: bool = False) -> None:
    """A line in which names may be, or what a file or a server said: it steers no terminal."""
    typer.echo(plain(text), err=err)


def confirm(question: str) -> bool:
    """Whether the user says yes; nobody does if there is no terminal."""
    return sys.stdin.isatty() and typer.confirm(question, err=True)


def main() -> None:
    """Run the command of sys.argv, and end the process with its exit status."""
    interrupt.leave_at_interrupt()
    standard_output.watch()
    try:
        status = _run(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
        raise SystemExit(status)
    except PgtareError as ex:
        _fail(str(ex), ex.exit_status)
    except TyperException as ex:
        where = getattr(ex, "ctx", None)
        path = where.command_path if where is not None else _command()
        if ex.exit_code == USAGE and not ex.format_message():
            raise SystemExit(USAGE) from None  # the help was shown
        message = _in_own_words(ex).rstrip()
        stop = "" if message.endswith((".", "?", "!")) else "."
        _fail(f"{message}{stop} See `{path} --help`.", ex.exit_code)
    except (KeyboardInterrupt, Abort):
        _fail(interrupt.INTERRUPTION, INTERRUPTED)
    except ModuleNotFoundError as ex:
        package = (ex.name or "").partition(".")[0]
        extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
        if extra is None:
            raise
        _fail(
            f"`{_command()}` needs packages that are not installed: install pgtare's wheel with "
            f"its extra, pip install 'WHEEL[{extra}]'",
            USAGE,
        )
    except BrokenPipeError:
        standard_output.give_up()  # the program that read our output has gone
        raise SystemExit(1) from None
    finally:
        interrupt.unwind_at_interrupt()


def _in_own_words(ex: TyperException) -> str:
    """What is wrong with an option. typer checks values with pydantic, whose words are left out."""
    from pydantic import ValidationError

    if isinstance(ex.__cause__, ValidationError):
        found = ex.__cause__.errors(include_url=False)[0].get("ctx", {}).get("error")
        if isinstance(found, ValueError):
            ex.message = str(found)
    return ex.format_message()


def _run(arguments: list[str]) -> int:
    from pgtare.cli import commands

    named = next((word for word in arguments if not word.startswith("-")), None)
    commands.register(app, named)
    status = app(standalone_mode=False)
    return status if isinstance(status, int) else 0


def _command() -> str:
    """The command of sys.argv, for errors that do not say theirs."""
    from pgtare.cli.commands import ORDER

    return f"pgtare {sys.argv[1]}" if sys.argv[1:2] and sys.argv[1] in ORDER else "pgtare"


def _fail(message: str, status: int) -> NoReturn:
    sys.stderr.write(f"pgtare: {_plain_lines(message)}\n")
    raise SystemExit(status) from None


def _plain_lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.split("\n"))
