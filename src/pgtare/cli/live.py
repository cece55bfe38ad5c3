"""`pgtare live`: a page on what an agent keeps, or on one server for a first look."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgtare import cli
from pgtare.cli.durations import Duration, duration_s, stop_after
from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import signals

if TYPE_CHECKING:
    from pgtare.keeping.live.access import ListenAddress, ProxyRules
    from pgtare.keeping.store.address import StoreAddress

_NAP_S = 0.3


def live(
    dsn: Annotated[
        str | None,
        typer.Option(help="Watch this server while the page runs: a libpq connection string."),
    ] = None,
    spool: Annotated[
        Path | None,
        typer.Option(help="Show this spool; with --dsn, keep what is read in it."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Show this store: clickhouse://USER@HOST:PORT/DATABASE."),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Where to serve the page: HOST:PORT.")
    ] = "127.0.0.1:8765",
    tls_cert: Annotated[
        Path | None, typer.Option(help="A certificate with its chain (PEM), for other machines.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate (PEM).")] = None,
    name: Annotated[
        str | None,
        typer.Option(help="What browsers call this machine, if not by the name in --listen."),
    ] = None,
    behind_proxy: Annotated[
        Path | None,
        typer.Option(help="A file that says how a proxy names users; see docs/live.md."),
    ] = None,
    duration: Duration = None,
) -> None:
    """Show where time goes on a live page: activity, waits, statements, locks, findings.

    With --spool it shows what an agent keeps, of one server or many; with --store what many agents
    have sent to ClickHouse. With --dsn it also watches a server, for a first look. With none of
    these it starts a private server with a changing load. The page is for this machine only. Open
    it by the printed address, which works once. docs/live.md shows how to open it to other
    machines. Ctrl-C ends it.

    Example: `pgtare live --dsn "host=db dbname=app"`
    """
    from pgtare.keeping.live import access, page_server

    lasting_s = duration_s(duration)
    if store is not None and (dsn is not None or spool is not None):
        raise UsageError("--store goes without --dsn and --spool: it shows what agents have sent")
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together: give both")
    proxy = None if behind_proxy is None else access.proxy_rules(behind_proxy)
    address = access.listen_address(listen, tls_cert is not None)
    access.check_reach(address, proxy)
    certificate = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    if certificate is not None:
        page_server.tls_context(*certificate)  # or it says what is wrong
    with signals.unwind_at_exit_signals(), contextlib.ExitStack() as opened:
        listening = opened.enter_context(contextlib.closing(page_server.bound(address)))
        address = access.ListenAddress(address.host, listening.getsockname()[1], address.tls)
        source: Path | StoreAddress
        steps: list[Callable[[], None]]
        if store is not None:
            source, steps = _reachable(store), []
        else:
            source, steps = _rows(dsn, spool, opened)
        rules = access.AccessRules(address, proxy, name, _say_again)
        server = page_server.PageServer(source, rules, listening, certificate)
        opened.enter_context(server)
        _say_address(address, proxy, rules.login_address())
        over = threading.Event()
        stop_after(lasting_s, over.set)
        with signals.asked_to_stop() as asked:
            while not (asked.made or over.wait(_NAP_S)):
                for step in steps:
                    step()
                if not server.alive:
                    raise MeasurementError("the page's server ended")


def _reachable(store: str) -> StoreAddress:
    """A store that answers, and has its tables."""
    from pgtare.keeping.store import address, store_schema
    from pgtare.keeping.store.connection import connect

    found = address.read(store)
    with connect(found) as connection:
        if fault := store_schema.fault(store_schema.version(connection)):
            raise UsageError(f"{found} cannot be used: {fault}")
    return found


def _rows(
    dsn: str | None, spool: Path | None, opened: contextlib.ExitStack
) -> tuple[Path, list[Callable[[], None]]]:
    """The spool to show, and what to do again and again while the page is served."""
    from pgtare.keeping.live.first_look import FirstLook, check
    from pgtare.keeping.spool import reader

    if dsn is None and spool is not None:
        reader.newest(spool)
        return spool, []
    scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="pgtare-live-")))
    steps: list[Callable[[], None]] = []
    if dsn is None:
        from pgtare.keeping.live.demo_server import demo_server
        from pgtare.postgres.binaries import from_wheel

        cli.say("starting a private server with a load that changes every 45 s", err=True)
        load = opened.enter_context(demo_server(from_wheel()))
        dsn = load.dsn
        steps.append(load.step)
    for note in check(dsn):
        cli.say(f"note: {note}", err=True)
    directory = spool or scratch / "spool"
    with signals.deferred():
        look = FirstLook(dsn, directory, scratch, quick=spool is None)
        opened.callback(look.stop)
    look.wait_ready(steps)
    return directory, [*steps, look.check]


def _say_address(address: ListenAddress, proxy: ProxyRules | None, login: str) -> None:
    if proxy is not None:
        cli.say(f"listening for the proxy on {address.url()}; users go to {login}")
        return
    cli.say("Open this address; it works once:")
    cli.say(f"  {login}")
    if address.loopback:
        cli.say(f"From another machine: ssh -L {address.port}:{address.host}:{address.port} …")


def _say_again(login: str) -> None:
    """Called while the browser waits, which is let in even if nobody reads what is printed."""
    with contextlib.suppress(BrokenPipeError, MeasurementError):
        cli.say(f"A browser has logged in. For another one, open {login}")
