"""`pgtare ladder`: a study of variants by whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from pgtare import cli
from pgtare.cli.command_line import command_line
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import files
from pgtare.weighing.ladder import planning, run, settings_check, status, terminal
from pgtare.weighing.ladder.page import write_page

RESULT, PAGE = "result.json", "report.html"

_STUDY = "run"
_EXAMPLE = "pgtare ladder studies/wait_event_timing.toml --quick"


class _StudyFirst(TyperGroup):
    """A group whose first argument may be a study: `pgtare ladder STUDY.toml` runs it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = next((a for a in args if not a.startswith("-")), None)
        if named is None and args and not {*args} & {*ctx.help_option_names}:
            raise UsageError(f"STUDY is missing: name the study's TOML file, as in `{_EXAMPLE}`")
        if named is not None and named not in self.commands:
            args = [_STUDY, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_StudyFirst,
    no_args_is_help=True,
    help="Compare variants that cannot be switched inside one server, by whole runs in "
    "randomised rounds: preloaded libraries, settings that need a restart, other builds.\n\n"
    f"Example: `{_EXAMPLE}`",
)


@app.command("run")
def run_study(
    study: Annotated[Path, typer.Argument(help="The study, a TOML file.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Short runs and few rounds: sizes, no verdicts.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The study's directory; default NAME-study, or NAME-quick, here."),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", "-w", help="Only these workloads.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeat the order of another study.")] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what would be run and how long it takes; check the settings; end.",
        ),
    ] = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Run a study (the word `run` may be left out).

    Every run is kept as soon as it is done: after Ctrl-C, a kill or a reboot `pgtare ladder resume`
    continues. Effects are shown only after the last run.

    Example: `pgtare ladder studies/wait_event_timing.toml --quick`
    """
    destination = Destination(json, output)
    where = out or Path(f"{study.stem}-{'quick' if quick else 'study'}")
    planned = planning.plan(
        study,
        where,
        quick=quick,
        workloads=workload or (),
        seed=seed,
        command=command_line(),
    )
    for warning in planned.warnings:
        cli.stderr().print(f"pgtare: {warning}", highlight=False, markup=False)
    settings_check.check_installations(planned.study)
    if plan:
        destination.refuse("--dry-run")
        with cli.stderr().status(f"pgtare: {run.ASKING}"):
            found = status.dry_run(planned)
        for line in found:
            typer.echo(line)
        return
    _go_on(planned, destination)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="A study's directory.")],
    json: Json = False,
    output: Output = None,
) -> None:
    """Continue a study that was interrupted.

    Example: `pgtare ladder resume wait_event_timing-study`
    """
    destination = Destination(json, output)
    _go_on(planning.resumed(directory), destination)


@app.command("status")
def show_status(
    directory: Annotated[Path, typer.Argument(help="A study's directory.")],
) -> None:
    """Show how far a study is: runs done and left, runs that failed, time left. No effects.

    Example: `pgtare ladder status wait_event_timing-study`
    """
    status.show(planning.resumed(directory), Console())


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A study's directory.")],
    close: Annotated[
        bool,
        typer.Option(
            "--close",
            help="End an unfinished study for good; its intervals then allow for a chosen moment.",
        ),
    ] = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Analyse a study's runs again: table, page and JSON.

    Example: `pgtare ladder report wait_event_timing-study`
    """
    destination = Destination(json, output)
    planned = planning.resumed(directory)
    if close and run.result(planned).state == "unfinished":
        with planned.directory.locked():  # another process that runs it would add to what is closed
            planned.directory.close()
    _deliver(planned, destination)


def _go_on(planned: planning.StudyPlan, destination: Destination) -> None:
    try:
        run.conduct(planned, cli.stderr())
    except (KeyboardInterrupt, SystemExit):
        _kept(planned)
        raise
    except MeasurementError:
        if planned.directory.begun and planned.directory.runs():
            _kept(planned)
        raise
    _deliver(planned, destination)


def _kept(planned: planning.StudyPlan) -> None:
    if planned.directory.begun:
        where = planned.directory.path
        cli.stderr().print(
            f"pgtare: {len(planned.directory.runs())} of {len(planned.steps)} runs are kept in "
            f"{where}; `pgtare ladder resume {where}` goes on",
            highlight=False,
            markup=False,
        )


def _deliver(planned: planning.StudyPlan, destination: Destination) -> None:
    """Raises MeasurementError, after it, if the study has ended and no workload counts."""
    with cli.stderr().status("pgtare: the tests and what they could have found"):
        result = run.result(planned)
    if not destination.printed:
        terminal.render(result, Console())
    where = planned.directory.path
    files.write_text(where / RESULT, result.to_json() + "\n")
    write_page(result, where / PAGE)
    for what, name in (("page", PAGE), ("JSON", RESULT)):
        destination.tell(f"{what}: {where / name}")
    destination.write(result.to_json())
    if result.state != "unfinished" and all(workload.why_not for workload in result.workloads):
        raise MeasurementError("no workload counts: the page says of each why not")
