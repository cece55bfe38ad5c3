"""`pgtare weigh`: weigh instruments on a load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from pgtare import cli
from pgtare.cli.command_line import command_line
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.cli.shared_options import (
    Allow,
    Application,
    Arms,
    Catalogues,
    Details,
    InjectNs,
    Instruments,
    Margin,
    Participation,
    PgConfig,
    Role,
    Yes,
    what,
)
from pgtare.errors import UsageError
from pgtare.kit import files
from pgtare.kit.option_values import percentage, seconds
from pgtare.postgres import own_session, signals
from pgtare.postgres.load import LoadSpec, Script, parse_rate
from pgtare.postgres.load.spec import Protocol
from pgtare.weighing.instruments.arms import choose
from pgtare.weighing.instruments.catalogue import load_catalogue
from pgtare.weighing.outside.run import chosen_way
from pgtare.weighing.outside.run import dry_run as outside_dry_run
from pgtare.weighing.outside.run import weigh as weigh_outside
from pgtare.weighing.switches import Switch
from pgtare.weighing.weigh import limit, schema, store
from pgtare.weighing.weigh.measurement import Weighing
from pgtare.weighing.weigh.plan import arms_of
from pgtare.weighing.weigh.report.page import write_page
from pgtare.weighing.weigh.report.terminal import render
from pgtare.weighing.weigh.request import Request, ServerAddress, new_seed, slice_bounds
from pgtare.weighing.weigh.run import alone, dry_run
from pgtare.weighing.weigh.run import weigh as run_weighing
from pgtare.weighing.weigh.schema import WeighResult
from pgtare.weighing.whole_server.run import dry_run as dry_run_of_windows
from pgtare.weighing.whole_server.run import weigh as weigh_by_windows
from pgtare.weighing.whole_server.schedule import SHORTEST_S, least_s, window_s

if TYPE_CHECKING:
    from pgtare.observing.flame.why import Why

_how_long = partial(typer.Option, rich_help_panel="How long")
_load_option = partial(typer.Option, rich_help_panel="Load")
_deciding = partial(typer.Option, rich_help_panel="Deciding, in CI")
_server = partial(typer.Option, rich_help_panel="Server")
_watched = partial(typer.Option, rich_help_panel="What no session can switch")

_Load = Literal["select-only", "simple-update", "tpcb-like", "none"]

#: So long a weighing takes by default, and by windows at least, in s.
_DEFAULT_S, _BY_WINDOWS_S = 60.0, 600.0


def weigh(
    instruments: Instruments = None,
    arm: Arms = None,
    duration: Annotated[
        str | None,
        _how_long(
            "--duration",
            "-d",
            help="How long to measure, for example 90, 90s, 2m, 1h. By default 60s, and 10m or "
            "more with --switch or --reload.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        _how_long(
            help="Stop as soon as every interval is this narrow on both sides, for example 0.2%; "
            "--duration is the limit."
        ),
    ] = None,
    margin: Margin = "0.5%",
    at_most: Annotated[
        str | None,
        _deciding(
            help="The limit of what each instrument may cost, for example 3%: exit status 0 if all "
            "are shown to be below, 10 if one is shown to be above, 11 if it is not decided."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        _deciding(help="The limit of what all of them may cost together, in one more arm."),
    ] = None,
    summary: Annotated[
        Path | None, _deciding(help="Write what was decided as a table in Markdown.")
    ] = None,
    load: Annotated[
        _Load | None,
        _load_option(help="pgbench's; none (default with --dsn): the server's own."),
    ] = None,
    script: Annotated[
        list[str] | None,
        _load_option("--script", "-f", help="A pgbench script, FILE or FILE@WEIGHT, as load."),
    ] = None,
    sql: Annotated[
        str | None,
        _load_option(
            help="From outside: these statements as load, as in a pgbench script, for example "
            "'SELECT * FROM orders WHERE id = 7'."
        ),
    ] = None,
    writes: Annotated[
        bool, _load_option("--writes", help="From outside: the script may write to your tables.")
    ] = False,
    clients: Annotated[int, _load_option("--clients", "-c", help="Sessions of the load.")] = 1,
    protocol: Annotated[Protocol, _load_option(help="Of the load's statements.")] = "simple",
    scale: Annotated[int, _load_option(help="pgbench's scale: 15 MB each.")] = 10,
    rate: Annotated[
        str | None,
        _load_option(
            help="Transactions a second over all clients, for example 500, or a share of full "
            "speed, for example 50%."
        ),
    ] = None,
    pg_config: PgConfig = None,
    dsn: Annotated[
        str | None,
        _server(help="Weigh on this running server, and on its own traffic."),
    ] = None,
    outside: Annotated[
        bool,
        _server(
            "--outside",
            help="Weigh from outside, in a session of pgtare's own, even if the server module is "
            "there. Without it, this is what happens.",
        ),
    ] = False,
    server: Annotated[
        list[str] | None,
        _server(
            "--server",
            help="Compare servers: NAME: DSN, at least twice. The first is what the others are "
            "compared with.",
        ),
    ] = None,
    switch: Annotated[
        list[str] | None,
        _watched(
            "--switch",
            help="NAME: COMMAND, which runs in its windows only; or NAME: ON | OFF, commands that "
            "switch what is on now, and afterwards; NAME: ON | OFF | setting = value waits until "
            "the server shows that.",
        ),
    ] = None,
    reload: Annotated[
        list[str] | None,
        _watched(
            "--reload",
            help="NAME: setting = value, of the whole server by ALTER SYSTEM, put back afterwards.",
        ),
    ] = None,
    window: Annotated[
        str | None, _watched(help="The length of a window, 15s or more; by default 15s.")
    ] = None,
    period: Annotated[
        str | None, _watched(help="How often a watcher acts: windows hold whole periods.")
    ] = None,
    role: Role = None,
    application: Application = "*",
    participation: Participation = "100%",
    base: Annotated[
        Literal["off", "current"],
        what(help="off: instruments off in the base arm; current: as they are today."),
    ] = "off",
    allow: Allow = None,
    inject_ns: InjectNs = None,
    catalogue: Catalogues = None,
    unit: Annotated[
        Literal["run", "slice", "both"],
        what(
            help="What is randomised: run, of a session's transactions; slice: all sessions "
            "together, for some ms; both: one instrument, and what it costs other sessions."
        ),
    ] = "run",
    slice_ms: Annotated[
        str | None,
        what(
            help="Shortest and longest slice in ms, for --unit slice or both, for example 50-150; "
            "by default as long as a session takes for 64 transactions, and 50-150 at least."
        ),
    ] = None,
    seed: Annotated[int | None, what(help="Repeat the assignment of a result.")] = None,
    cpu: Annotated[bool, what(help="Measure CPU time for each transaction.")] = True,
    why: Annotated[
        bool,
        what(
            help="Sample the server with perf during the trial, as root, and name the functions "
            "and waits that each costing arm spends more time in."
        ),
    ] = False,
    details: Details = False,
    json: Json = False,
    output: Output = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Keep result, page and raw observations in this new directory."),
    ] = None,
    yes: Yes = False,
    plan_only: Annotated[
        bool,
        _how_long("--dry-run", help="Print what would be done, and do nothing."),
    ] = False,
) -> None:
    """Weigh instruments: what each costs a transaction, in µs and %, with 95 % intervals.

    By default on a PostgreSQL 18 of pgtare's own with a pgbench load; with --dsn on a running
    server and the traffic that is there. A server without the module is weighed from outside: in
    one session of pgtare's own, with statements of yours (--sql, --script) or harmless look-ups.

    Examples: `pgtare weigh pg_stat_statements track_io_timing --duration 30s --output w.json`

    `pgtare weigh track_io_timing --dsn "host=/var/run/postgresql dbname=app" --dry-run`

    `pgtare weigh pg_stat_statements --dsn service=app --sql 'SELECT * FROM orders WHERE id = 7'`

    `pgtare weigh --dsn service=app --switch 'exporter: systemctl start exp | systemctl stop exp'`

    `pgtare weigh --server 'old: host=db1 dbname=app' --server 'new: host=db2 dbname=app'`
    """
    servers = tuple(ServerAddress.parse(text) for text in server or ())
    switches = _switches(switch, reload)
    running = dsn is not None or bool(servers)
    chosen = tuple(choose(load_catalogue(catalogue or ()), instruments or (), arm or ()))
    each_s = _window_s(window, period, any_given=bool(switches))
    request = Request(
        chosen=chosen if budget is None or servers else limit.with_together(chosen),
        # an empty option is wrong: a limit whose variable is not set must not be none
        at_most=None if at_most is None else percentage("--at-most", at_most, below=1000),
        budget=None if budget is None else percentage("--budget", budget, below=1000),
        inject_ns=tuple(inject_ns or ()),
        duration_s=(
            _default_s(switches, each_s) if duration is None else seconds("--duration", duration)
        ),
        precision=None if precision is None else percentage("--precision", precision),
        margin=percentage("--margin", margin),
        seed=new_seed() if seed is None else seed,
        cpu=cpu,
        base=base,
        unit=unit,
        slice_ms=None if slice_ms is None else slice_bounds(slice_ms),
        load=_load_spec(load, script, clients, protocol, rate, running=running),
        headroom=percentage("--rate", rate) if rate is not None and "%" in rate else None,
        scale=scale,
        pg_config=pg_config,
        dsn=dsn,
        role=role,
        application=application,
        participation=percentage("--participation", participation, whole=True),
        allow=frozenset(allow or ()),
        assume_yes=yes,
        outside=outside,
        sql=sql,
        prepared=protocol == "prepared",
        writes=writes,
        servers=servers,
        switches=switches,
        window_s=each_s,
    )
    request = chosen_way(request)
    if summary is not None and not request.decides:
        raise UsageError("--summary says what was decided: give --at-most or --budget")
    if why and request.outside:
        raise UsageError("--why needs the server module, which is not used from outside")
    if request.outside:
        _check_outside(load, clients, rate)
    if not servers and not switches:
        arms_of(request)  # contradictions show before anything is started
    destination = Destination(json, output)
    if plan_only:
        destination.refuse("--dry-run")
        for line in _dry_run(request):
            cli.say(line)
        return
    files.check_target(summary)
    if out is not None:
        store.check_target(out)
    asked = _why() if why else None
    with signals.like_interrupt():
        if request.switches:
            done = weigh_by_windows(request, command_line(), cli.stderr())
        elif request.outside:
            done = weigh_outside(request, command_line(), cli.stderr(), cli.confirm)
        else:
            done = run_weighing(
                request, command_line(), cli.stderr(), cli.confirm, asked.during if asked else alone
            )
        try:
            if summary is not None:
                limit.write_summary(done.result, summary)
        finally:
            _deliver(done, destination, out, asked, details)
    if done.result.design.stopped_by == "interrupt":
        raise typer.Exit(cli.INTERRUPTED)
    windows = done.result.windows
    changed = windows is not None and not windows.put_back
    if done.result.design.partial or changed:
        raise typer.Exit(1)
    if request.decides:
        raise typer.Exit(limit.exit_status(done.result))


def _dry_run(request: Request) -> list[str]:
    with own_session.answered():
        if request.switches:
            return dry_run_of_windows(request)
        return outside_dry_run(request) if request.outside else dry_run(request)


def _switches(switch: list[str] | None, reload: list[str] | None) -> tuple[Switch, ...]:
    commands = [Switch.parse(text) for text in switch or ()]
    return (*commands, *(Switch.parse_reload(text) for text in reload or ()))


def _default_s(switches: Sequence[Switch], each_s: float) -> float:
    """How long a weighing takes if nobody says so: in windows of each_s, long enough for all."""
    if not switches:
        return _DEFAULT_S
    return max(_BY_WINDOWS_S, 60.0 * math.ceil(least_s(switches, each_s) / 60))


def _window_s(window: str | None, period: str | None, *, any_given: bool) -> float:
    if not any_given and (window is not None or period is not None):
        raise UsageError("--window and --period are for --switch and --reload")
    asked_s = None if window is None else seconds("--window", window)
    if asked_s is not None and asked_s < SHORTEST_S:
        raise UsageError(f"--window {window}: {SHORTEST_S:g}s at least, to be gentle to the server")
    return window_s(asked_s, None if period is None else seconds("--period", period))


def _check_outside(load: str | None, clients: int, rate: str | None) -> None:
    if clients != 1 or rate is not None:
        raise UsageError("from outside, one session is weighed: leave out --clients and --rate")
    if load not in (None, "none"):
        raise UsageError(
            f"--load {load} is pgbench's: from outside, give statements with --sql or --script"
        )


def _load_spec(
    load: _Load | None,
    scripts: list[str] | None,
    clients: int,
    protocol: Protocol,
    rate: str | None,
    *,
    running: bool,
) -> LoadSpec | None:
    """running: the server is there, and has traffic of its own."""
    if scripts and load is not None:
        raise UsageError("--script and --load are two loads: choose one")
    if load == "none" or (load is None and running and not scripts):
        if rate is not None:
            raise UsageError("--rate drives a load of pgtare's own; --load none has none")
        return None
    return LoadSpec(
        builtin=load or "select-only",
        scripts=tuple(Script.parse(s) for s in scripts or ()),
        protocol=protocol,
        clients=clients,
        rate=parse_rate(rate) if rate is not None and "%" not in rate else None,
    )


def _why() -> Why:
    from pgtare.observing.flame.why import Why  # perf's side of it is wanted here only

    return Why()


def _deliver(
    done: Weighing,
    destination: Destination,
    out: Path | None,
    why: Why | None,
    details: bool,
) -> None:
    try:
        if out is not None:  # first: whoever reads what is printed may be gone
            store.save(out, done.design, done.observations, done.result)
            write_page(done.result, done.observations, out / "report.html")
    finally:
        console = None if destination.printed else Console()
        if console is not None:
            render(done.result, console, details=details)
        result = done.result if why is None else _explained(done, why, console)
        destination.write(result.to_json())
    if out is not None:
        for what, name in (
            ("page", "report.html"),
            ("JSON", store.RESULT_FILE),
            ("observations", store.OBSERVATIONS_FILE),
        ):
            destination.tell(f"{what}: {out / name}")


def _explained(done: Weighing, why: Why, console: Console | None) -> WeighResult:
    """The result with what --why found, which is printed if there is a console."""
    from pgtare.observing.flame import why as reasons

    result = done.result
    names = [arm.name for arm in done.design.arms]
    found = why.explain(reasons.TrialArms(names, done.observations, result.design.started))
    if console is not None:
        costing = {
            arm.name: arm.verdict == "cost"
            for arm in result.arms
            if arm.verdict in ("cost", "inconclusive") and arm.role == "instrument"
        }
        reasons.render(found, costing, why.notes, console)
    said = schema.Why(
        computing=[schema.Reasons.model_validate(reason) for reason in found.get("on", [])],
        blocked=[schema.Reasons.model_validate(reason) for reason in found.get("off", [])],
        notes=why.notes,
    )
    return result.model_copy(update={"why": said})
