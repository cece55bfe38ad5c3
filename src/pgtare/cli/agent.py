"""`pgtare agent`: watches servers all the time, and keeps what it reads in a spool."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgtare import cli
from pgtare.cli.durations import Duration, duration_s, stop_after
from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.keeping.agent import config as configuration
from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.config import AgentConfig, MetricsSettings, SpoolConfig, StoreSettings
from pgtare.keeping.agent.server_check import ServerCheck, check_server, require_usable
from pgtare.keeping.agent_log import AgentLog
from pgtare.kit import numbers, option_values
from pgtare.kit.fitted_table import Fitted

if TYPE_CHECKING:
    from pgtare.keeping.metrics.exporter import MetricsExporter
    from pgtare.keeping.spool.writer import Spool
    from pgtare.keeping.store.push_thread import PushThread

Dsn = Annotated[str | None, typer.Option(help="The only server, as a libpq connection string.")]
Config = Annotated[
    Path | None, typer.Option(help="A file that names the servers: agent.toml, see docs/agent.md.")
]

app = typer.Typer(invoke_without_command=True)


@app.callback()
def agent(
    context: typer.Context,
    dsn: Dsn = None,
    config: Config = None,
    spool: Annotated[
        Path | None,
        typer.Option(help="Directory to keep what is read; --config can name it as well."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Serve metrics to Prometheus at this address, as 127.0.0.1:9187."),
    ] = None,
    duration: Duration = None,
) -> None:
    """Watch servers all the time: every wait, exactly, in a directory that any tool can read.

    Each server is read by one connection, in short read-only transactions; the role needs
    pg_monitor and nothing more. With the module wait_event_timing waits are exact, without it
    sessions are sampled once a second. What is read is committed every ten seconds, completely or
    not at all, so an agent that was killed continues where it stopped. Ctrl-C or SIGTERM ends it;
    SIGHUP reads the configuration again.

    Example: `pgtare agent --dsn "host=db dbname=app" --spool /var/lib/pgtare-agent/spool`
    """
    if context.invoked_subcommand is not None:
        if any(option is not None for option in (dsn, config, spool, metrics, duration)):
            name = context.invoked_subcommand
            raise UsageError(f"options go after the command: pgtare agent {name} --config FILE")
        return
    found = _with_metrics(_read(dsn, config), metrics)
    directory = spool or found.spool.directory
    if directory is None:
        raise UsageError(
            "--spool is missing: name a directory, as in --spool /var/lib/pgtare-agent/spool"
        )
    if dsn is not None:
        require_usable(found.servers[configuration.ONLY_SERVER])
    lasting_s = duration_s(duration)
    from pgtare.keeping.agent.process_memory import leave_pandas_out
    from pgtare.keeping.spool.writer import Spool

    leave_pandas_out()
    with Spool.open(directory, found.spool.limits) as store:
        reload = (
            None if config is None else lambda: _with_metrics(configuration.read(config), metrics)
        )
        log = AgentLog()
        pushing = _push_thread(found, store, directory, log)
        running = Agent(found, store, log, reload, _show_metrics(found.metrics, store, log))
        stop_after(lasting_s, running.stop)
        with pushing or contextlib.nullcontext():
            running.run()


@app.command("check")
def check(dsn: Dsn = None, config: Config = None) -> None:
    """Connect to each server once, and say what the agent would see there and what is missing.

    It also says where the spool is and how much it may keep, and whether the store of the file, if
    it names one, takes rows. Nothing is written. The exit status is 1 if a server cannot be watched
    or the store cannot be used.

    Example: `pgtare agent check --config agent.toml`
    """
    found = _read(dsn, config)
    checks = []
    for name, server in found.servers.items():
        try:
            checks.append(check_server(name, server))
        except PgtareError as ex:
            if dsn is not None:
                raise
            checks.append(ServerCheck(name, problem=str(ex)))
    store, usable = (None, True) if found.store is None else _look_at_store(found.store)
    _print(checks)
    cli.say(_spool_sentence(found.spool))
    if store is not None:
        cli.say(store)
    failed = [each for each in checks if each.problem is not None]
    wrong = [f"{len(failed)} of {len(checks)} servers cannot be watched"] if failed else []
    if not usable:
        wrong.append("the store of [store] cannot be used")
    if wrong:
        raise MeasurementError("; ".join(wrong))


def _look_at_store(settings: StoreSettings) -> tuple[str, bool]:
    """A sentence on a store, and whether it can be used."""
    from pgtare.keeping.store import push_thread, store_check

    place = ""
    try:
        address = push_thread.address_of(settings.url)
        place = f"{address}: "
        found = store_check.check_for_agent(address)
    except PgtareError as ex:  # a wrong address may hold a password, so it is not shown
        return f"store: {place}{ex}", False
    said = "; ".join([*(found.faults or ["it takes rows"]), *found.notes])
    return f"store: {place}ClickHouse {found.version} as {found.user}; {said}", not found.faults


def _print(checks: list[ServerCheck]) -> None:
    table = Fitted("server", "PostgreSQL", "role", "waits", "statements", spare=("role",))
    for each in checks:
        version = each.version.split(" ")[0]
        table.add_row(each.server, version or "–", each.role or "–", each.waits, each.statements)
    cli.stdout().print(table, highlight=False)
    for each in checks:
        for note in (*([each.problem] if each.problem else ()), *each.notes):
            cli.say(f"{each.server}: {note}")


def _spool_sentence(found: SpoolConfig) -> str:
    ages = ", ".join(
        f"{name} {age_s / 86400:g} days" for name, age_s in found.limits.kept_s.items()
    )
    return (
        f"spool: {found.directory or 'none is named; give --spool'}; at most "
        f"{numbers.volume(found.most_bytes)}, {numbers.volume(found.reserve_bytes)} of its disk "
        f"left free; kept: {ages}"
    )


def _with_metrics(found: AgentConfig, address: str | None) -> AgentConfig:
    """A configuration with the address of --metrics, if it was given."""
    if address is None:
        return found
    option_values.address("--metrics", address)
    return found.model_copy(
        update={"metrics": found.metrics.model_copy(update={"listen": address})}
    )


def _push_thread(
    found: AgentConfig, spool: Spool, directory: Path, log: AgentLog
) -> PushThread | None:
    """What sends the spool's rows to the store of the configuration, if it names one."""
    if found.store is None:
        return None
    from pgtare.keeping.store import push_thread

    address = push_thread.address_of(found.store.url)
    commits = max(1, int(push_thread.EVERY_S / found.intervals.waits))
    log.write("info", "store", address=str(address))
    return push_thread.PushThread(directory, address, commits, spool, log)


def _show_metrics(settings: MetricsSettings, spool: Spool, log: AgentLog) -> MetricsExporter | None:
    """Metrics for Prometheus, if they are wanted."""
    if settings.listen is None:
        return None
    from pgtare.keeping.metrics.exporter import MetricsExporter

    exporter = MetricsExporter(spool.reading)
    host, port = exporter.listen(*option_values.address("--metrics", settings.listen))
    log.write("info", "metrics", listen=f"{host}:{port}")
    if not option_values.is_loopback(host):
        why = "anybody who can reach this address can read the metrics: there is no password"
        log.write("warning", "metrics", why=why)
    return exporter


def _read(dsn: str | None, config: Path | None) -> AgentConfig:
    if (dsn is None) == (config is None):
        raise UsageError(
            "give either --dsn or --config: one server by its connection string, or a file that "
            "names servers"
        )
    return configuration.of_dsn(dsn) if dsn is not None else configuration.read(config or Path())
