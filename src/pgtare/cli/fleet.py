"""`pgtare fleet`: one study over many servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgtare import cli
from pgtare.cli.command_line import command_line
from pgtare.cli.commands import GLOSSARY
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.cli.shared_options import (
    Allow,
    Application,
    Arms,
    Catalogues,
    InjectNs,
    Instruments,
    Margin,
    OtherMargin,
    Participation,
    Role,
    Yes,
)
from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import files, numbers
from pgtare.kit.fitted_table import Fitted
from pgtare.kit.option_values import percentage, seconds
from pgtare.kit.progress import Counted
from pgtare.postgres import inventory as inventories
from pgtare.weighing.instruments.arms import choose, refuse_reported
from pgtare.weighing.instruments.catalogue import load_catalogue
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.weigh.request import new_seed

#: What goes with --resume.
_RESUMED = frozenset({"catalogue", "inventory", "json", "output", "resume", "skip_unready", "yes"})

if TYPE_CHECKING:
    from pgtare.weighing.fleet.directory import FleetDirectory
    from pgtare.weighing.fleet.readiness import Readiness
    from pgtare.weighing.fleet.state import FleetDesign

InventoryFile = Annotated[
    Path,
    typer.Option("--inventory", "-i", help="A file that names the servers: see docs/fleet.md."),
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Weigh instruments on many servers at once, and estimate what they cost over all of "
        "them.\n\nExample: `pgtare fleet weigh track_io_timing --inventory fleet.toml --out monday`"
    ),
    epilog=GLOSSARY,
)


@app.command("check")
def check(
    inventory: InventoryFile,
    instruments: Instruments = None,
    catalogue: Catalogues = None,
    limit: Annotated[
        str, typer.Option(help="Longest time for each server, for example 20s.")
    ] = "20s",
) -> None:
    """Say whether each server can be weighed, and the command that fixes what is missing.

    It looks at up to 32 servers at a time, and changes nothing. It checks the version of
    PostgreSQL, the module and its version, privileges, the clock, and whether the server is a
    replica or behind a pooler. The exit status is 0 if all servers are ready, and 1 otherwise.

    Example: `pgtare fleet check pg_stat_statements --inventory fleet.toml`
    """
    servers = inventories.read(inventory).servers
    chosen = choose(load_catalogue(catalogue or ()), instruments, ()) if instruments else []
    from pgtare.weighing.fleet import readiness

    found = readiness.check_fleet(servers, chosen, limit_s=seconds("--limit", limit))
    _print_checks(found)
    failed = [one for one in found if not one.ready]
    if failed:
        raise MeasurementError(f"{len(failed)} of {len(found)} servers cannot be weighed")


def _print_checks(found: Sequence[Readiness]) -> None:
    table = Fitted(
        "server", "PostgreSQL", "pgtare", "clock", "role", "state", spare=("clock", "role")
    )
    for one in found:
        module = one.extension or one.library or "–"
        if one.library and one.extension and one.library != one.extension:
            module = f"{one.extension} (library {one.library})"
        state = "ready" if one.ready else "not ready"
        role = f"{one.role} (superuser)" if one.superuser else one.role
        table.add_row(one.server, one.version or "–", module, one.clock or "–", role or "–", state)
    cli.stdout().print(table, highlight=False)
    for one in found:
        if one.problem is not None:
            cli.say(f"{one.server}: {one.problem}")
        for step in one.steps:
            cli.say(f"{one.server}: → {step}")
        for note in one.notes:
            cli.say(f"{one.server}: note: {note}")


@app.command("doctor")
def doctor(
    inventory: InventoryFile,
    interval: Annotated[
        str, typer.Option(help="Time between two looks at the counters, for example 3s.")
    ] = "3s",
    json: Json = False,
    output: Output = None,
) -> None:
    """Look for what stalls each server, on all at once: read-only, in seconds, without a module.

    One table over all servers: the worst finding first, and of equals that of the server with the
    greatest weight. `pgtare doctor --dsn` says more of one server. Exit status: 0 nothing found, 10
    a warning, 11 something critical; 1 nothing found, but a server could not be looked at.

    Example: `pgtare fleet doctor --inventory fleet.toml`
    """
    from pgtare.observing.doctor import fleet as fleet_doctor

    every = seconds("--interval", interval)
    if every < 1:
        raise UsageError(f"--interval {interval}: give 1s or more")
    destination = Destination(json, output)
    servers = inventories.read(inventory).servers
    examined = fleet_doctor.examine_fleet(servers, every)
    found = fleet_doctor.document(examined)
    destination.write(found.to_json())
    if not destination.printed:
        if found.findings:
            cli.stdout().print(fleet_doctor.table(found), highlight=False)
        for ranked in found.findings:
            for line in ranked.finding.commands:
                cli.say(f"{ranked.server}: {ranked.finding.kind}: {line}")
        looked = [one for one in found.servers if one.problem is None]
        cli.say(
            f"{numbers.counted(len(looked), 'server')} looked at, "
            f"{numbers.counted(len(found.findings), 'finding')}"
        )
    for one in found.servers:
        if one.problem is not None:
            cli.say(f"pgtare: {one.server} could not be looked at: {one.problem}", err=True)
    raise typer.Exit(found.exit_status)


@app.command("weigh")
def weigh(
    ctx: typer.Context,
    inventory: InventoryFile,
    instruments: Instruments = None,
    arm: Arms = None,
    duration: Annotated[
        str, typer.Option("--duration", "-d", help="How long to weigh each server, as 60s, 10m.")
    ] = "60s",
    canary: Annotated[
        str | None,
        typer.Option(help="How long each earlier stage takes; by default a sixth, 5s to 60s."),
    ] = None,
    margin: Margin = "0.5%",
    harm: Annotated[
        str,
        typer.Option(help="Harm at which all trials are stopped, as a share of transaction time."),
    ] = "25%",
    participation: Participation = "100%",
    role: Role = None,
    application: Application = "*",
    allow: Allow = None,
    inject_ns: InjectNs = None,
    at_once: Annotated[int, typer.Option(min=1, help="Most servers to weigh at a time.")] = 16,
    catalogue: Catalogues = None,
    out: Annotated[Path | None, typer.Option(help="Keep everything in this new directory.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the weighing in this directory.")
    ] = None,
    skip_unready: Annotated[
        bool, typer.Option("--skip-unready", help="Weigh only the servers that are ready.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Weigh instruments on all servers, several at once: a canary first, then a few, then all.

    A guard watches all trials and stops them within a second if an instrument does harm. Trials
    live by a lease: if this command is killed or cut off, each ends by itself within 15 s. Ctrl-C
    stops them and keeps what was measured; --resume goes on. The headline is what to expect of the
    next server, with its prediction interval.

    Example: `pgtare fleet weigh track_io_timing --inventory fleet.toml --out monday`
    """
    from pgtare.weighing.fleet import run
    from pgtare.weighing.fleet.directory import FleetDirectory
    from pgtare.weighing.fleet.server_weighing import LEASE
    from pgtare.weighing.fleet.state import FleetDesign

    if (out is None) == (resume is None):
        raise UsageError("give either --out or --resume: a new directory, or one to go on with")
    destination = Destination(json, output)
    servers = inventories.read(inventory)
    if resume is not None:
        _refuse_with_resume(ctx)
        design = FleetDirectory.open(resume).state.design
    else:
        design = FleetDesign(
            instruments=list(instruments or ()),
            arms=list(arm or ()),
            inject_ns=list(inject_ns or ()),
            seed=new_seed(),
            duration_s=seconds("--duration", duration),
            canary_s=None if canary is None else seconds("--canary", canary),
            margin_pct=100 * percentage("--margin", margin),
            harm_pct=100 * percentage("--harm", harm, below=100_000.0),
            participation=percentage("--participation", participation, whole=True),
            application=application,
            role=role,
            allow=list(allow or ()),
            at_once=at_once,
            lease_s=LEASE.seconds,
        )
    request = run.FleetRequest(
        inventory=servers,
        design=design,
        chosen=_chosen(design, catalogue),
        out=out or resume or Path(),
        resumed=resume is not None,
        skip_unready=skip_unready,
    )
    console = cli.stderr()
    console.print(f"pgtare: looking at {len(servers.servers)} servers", highlight=False)
    prepared = run.prepare(request)
    for line in prepared.description():
        cli.say(f"pgtare: {line}", err=True)
    if not (yes or cli.confirm("Go on?")):
        raise UsageError("nothing was done: --yes goes on without a question")
    directory = run.run(prepared, console, command_line())
    _deliver(directory, destination)


def _refuse_with_resume(ctx: typer.Context) -> None:
    """Refuse what would be ignored, as the design is that of what was begun."""
    given = [
        max(param.opts, key=len)
        for param in ctx.command.params
        if param.name is not None
        and param.name not in _RESUMED
        and getattr(ctx.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise UsageError(
            f"--resume goes on with what was begun: leave out {', '.join(sorted(given))}"
        )


def _chosen(design: FleetDesign, catalogue: list[Path] | None) -> tuple[Chosen, ...]:
    chosen = tuple(choose(load_catalogue(catalogue or ()), design.instruments, design.arms))
    refuse_reported(chosen)
    return chosen


def _deliver(directory: FleetDirectory, destination: Destination) -> None:
    """Combine what the servers gave, as `pgtare fleet report` does, and say how it ended."""
    from pgtare.weighing.fleet.reestimation import report as combined
    from pgtare.weighing.fleet.report.terminal import render

    state = directory.state
    breach = state.breach
    if breach is not None:
        cli.say(
            f"pgtare: the guard stopped all trials: {breach.what} on {breach.server}, in stage "
            f"{breach.stage}, after {breach.after_s:.1f} s and {breach.transactions:,} "
            f"transactions with an instrument on; the last trial had ended {breach.stopped_s:.2f} "
            "s later",
            err=True,
        )
    if directory.usable():
        result = combined(directory.path)
        directory.write_result(result.to_json())
        if not destination.printed:
            render(result, cli.stdout())
        destination.write(result.to_json())
        destination.tell(f"observations and result: {directory.path}")
    if state.ended_by == "interrupt":
        cli.say(f"pgtare: interrupted; --resume {directory.path} goes on", err=True)
        raise typer.Exit(cli.INTERRUPTED)
    if state.ended_by == "breach":
        raise MeasurementError("an instrument does harm: it was stopped everywhere")
    lost = [server.name for server in state.servers if server.state == "lost"]
    if lost:
        raise MeasurementError(
            f"{numbers.counted(len(lost), 'server')} lost: {', '.join(lost)}; --resume "
            f"{directory.path} weighs what is missing"
        )


@app.command("report")
def report(
    prefix: Annotated[
        Path,
        typer.Argument(metavar="PREFIX", help="What `pgtare fleet weigh --out` made."),
    ],
    margin: OtherMargin = None,
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write the page to this file.")
    ] = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Estimate each server of a fleet again from its raw observations, and combine them.

    The estimators are those of `pgtare weigh`. Servers whose data are damaged or incomplete are
    named and left out. It needs no server.

    Example: `pgtare fleet report results/monday --html monday.html`
    """
    from pgtare.weighing.fleet import raw_data, reestimation
    from pgtare.weighing.fleet.report.page import write_page
    from pgtare.weighing.fleet.report.terminal import render

    files.check_target(html)
    destination = Destination(json, output)
    share = None if margin is None else percentage("--margin", margin)
    with cli.stderr().status(f"pgtare: looking for servers in {prefix}"):
        servers = raw_data.listing(prefix).servers
    with Counted(cli.stderr(), "estimating", len(servers), "servers") as display:
        result = reestimation.report(prefix, share, display.tick)
    if destination.printed:  # the table says it as well
        for one in result.left_out:
            cli.say(f"pgtare: {one.server} is left out: {one.reason}", err=True)
    if html is not None:
        write_page(result, html)
        destination.tell(f"page: {html}")
    if not destination.printed:
        render(result, cli.stdout())
    destination.write(result.to_json())
