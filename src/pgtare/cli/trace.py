"""`pgtare trace`: what sessions did, call by call and wait by wait, and where their time went."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from pgtare import cli
from pgtare.cli import trace_grab, trace_kept, trace_state
from pgtare.cli.command_line import command_line
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import UsageError
from pgtare.kit import files
from pgtare.kit.numbers import counted, volume
from pgtare.kit.option_values import seconds, size
from pgtare.kit.progress import BAR_WIDTH, Display, Frame
from pgtare.observing.trace.analysis import merge
from pgtare.observing.trace.analysis.ledger import Ledger, ledger
from pgtare.observing.trace.analysis.merge import Way
from pgtare.observing.trace.analysis.profile import Grouping, Scope, profile
from pgtare.observing.trace.analysis.statements import Sort, report
from pgtare.observing.trace.capture import kept
from pgtare.observing.trace.capture.record import UNNUMBERED, TraceRecorder
from pgtare.observing.trace.capture.server import Need, open_server
from pgtare.observing.trace.capture.target import LEVELS, Target
from pgtare.observing.trace.documents import TraceClients, TraceRecorded, TraceStatements
from pgtare.observing.trace.file.blocks import SUFFIX
from pgtare.observing.trace.file.disk_limits import MIB, Limits
from pgtare.observing.trace.file.reader import load, losses_notes
from pgtare.observing.trace.file.tables import Table
from pgtare.observing.trace.output import export as exports
from pgtare.observing.trace.output import show

app = typer.Typer(
    no_args_is_help=True,
    help="Trace sessions of a server that has sql_trace or wait_event_timing loaded, and say where "
    "their time went.\n\n"
    'Example: `pgtare trace record monday --dsn "dbname=app" --application "shop*" -d 60s`, '
    "then `pgtare trace profile monday`",
)
Dsn = Annotated[str, typer.Option(help="The server, as a libpq connection string.")]
Source = Annotated[Path, typer.Argument(help="What `pgtare trace record` made.")]
Pids = Annotated[
    list[int] | None, typer.Option("--pid", help="Only this session; may be repeated.")
]
MergeBy = Annotated[Way, typer.Option(help="What a client is.")]
#: So many statements without identifiers are mostly few, with many literals.
_MANY = 20


@app.command("record")
def record(
    path: Annotated[Path, typer.Argument(help="A new file for the trace.")],
    dsn: Dsn,
    pid: Annotated[list[int] | None, typer.Option(help="This session; may be repeated.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="Sessions of this role.")] = None,
    database: Annotated[list[str] | None, typer.Option(help="Sessions in this database.")] = None,
    application: Annotated[
        str | None, typer.Option(help="Sessions by application_name: a pattern, for example shop*.")
    ] = None,
    armed: Annotated[
        bool, typer.Option("--armed", help="Record only what is traced already.")
    ] = False,
    level: Annotated[
        int | None,
        typer.Option(
            help="1 calls and SQL, 4 with values, 8 with waits, 12 with both; the most there is by "
            "default."
        ),
    ] = None,
    waits: Annotated[
        bool, typer.Option("--waits", help="Record waits and statements alone, without sql_trace.")
    ] = False,
    duration: Annotated[
        str | None, typer.Option("--duration", "-d", help="How long; without it, until Ctrl-C.")
    ] = None,
    max_size: Annotated[str, typer.Option(help="Size at which the recording stops.")] = "1G",
    reserve: Annotated[str, typer.Option(help="Space to leave free on the volume.")] = "512M",
    json: Json = False,
    output: Output = None,
) -> None:
    """Trace the client sessions that match, new ones included, into a file.

    At the end they return to their own settings, even if pgtare is killed.

    Example: `pgtare trace record monday --dsn "dbname=app" --role etl --duration 5m`
    """
    if level is not None and level not in LEVELS:
        raise UsageError(f"--level {level}: choose among {', '.join(map(str, LEVELS))}")
    if armed and level is not None:
        raise UsageError("--armed records at the levels that settings have set: leave out --level")
    length = seconds("--duration", duration) if duration is not None else None
    target = Target(
        pids=frozenset(pid or ()),
        roles=frozenset(role or ()),
        databases=frozenset(database or ()),
        application=application,
        armed_only=armed,
    )
    limits = Limits(total=size("--max-size", max_size), reserve=size("--reserve", reserve))
    _require_apart(path, "--output", output)
    destination = Destination(json, output)
    with open_server(dsn, Need.WAITS if waits else Need.EITHER) as server:
        target = dataclasses.replace(target, level=server.level(level))
        recorder = TraceRecorder(server, dsn, path, target, limits, command_line())
        with Display(cli.stderr(), "tracing", length) as display:
            begun = time.monotonic()
            done = recorder.run(length, lambda now: _tick(display, time.monotonic() - begun, now))
    destination.write(done.to_json())
    if not destination.printed:
        for line in _summary(done, target):
            cli.say(line)
    if done.stopped_by == "space":
        lacks_calls = done.calls and not done.call_bytes
        why = f"{done.why}, and no call had room" if lacks_calls else done.why
        read = f"pgtare trace profile {path}" if _kept(done) else None
        raise files.ended_by_full_disk(path, why, read)
    if done.stopped_by == "error" or done.still_traced or not _kept(done):
        raise typer.Exit(1)


def _kept(done: TraceRecorded) -> bool:
    return bool(done.call_bytes or done.waits)


#: What the bar, the seconds and the time left take of a line.
_BAR = 64


def _tick(display: Display, passed_s: float, recorder: TraceRecorder) -> None:
    now, writer = recorder.drain, recorder.writer
    sessions = counted(now.sessions, "session")
    lost = "nothing lost"
    if now.lost_waits or now.lost_bytes:
        lost = f"lost {counted(now.lost_waits, 'wait')} and {volume(now.lost_bytes)} of calls"
    if now.unread.sessions:
        lost += f", {now.unread.sessions:,} ended unread"
    waits, written = counted(writer.taken[Table.WAITS], "wait"), f"{writer.written / MIB:.1f} MiB"
    text, hint = f"{sessions}, {waits}, {written}, {lost}", "; Ctrl-C ends it"
    console = cli.stderr()
    room = console.width - _BAR
    if console.is_terminal and len(text) > room:  # the bar would give way, and the time left
        text = f"{sessions}, {lost}"
    display.tick(passed_s, text, hint if len(text + hint) <= room else "")


#: Why a recording traced no session, and where to look.
_NOBODY = (
    "no matching session answered a request in that time, so none was traced: "
    "`SELECT pid, usename, datname, application_name FROM pg_stat_activity` lists the sessions"
)
_NOBODY_ARMED = (
    "no session traced by settings answered a request in that time, so none was recorded: "
    "`pgtare trace status` shows what is armed, and `ALTER ROLE name SET sql_trace.level = 12` "
    "arms sessions to come; of sql_trace.query_ids, a statement has to run that it names "
    "(pg_stat_statements.queryid)"
)
_NOBODY_ARMED_WAITS = (
    "no session had wait_event_timing.capture = trace, so none was recorded: leave out --armed to "
    "have them traced"
)


def _nobody(target: Target, calls: bool) -> str:
    if target.armed_only:
        return _NOBODY_ARMED if calls else _NOBODY_ARMED_WAITS
    return _NOBODY


def _summary(done: TraceRecorded, target: Target) -> list[str]:
    calls = f"{volume(done.call_bytes)} of calls and " if done.calls else ""
    lines = [
        f"{counted(done.sessions, 'session')}, {calls}{counted(done.waits, 'wait')} in "
        f"{done.duration_s:.1f} s; {volume(done.bytes)} on disk",
        *_lost(done),
    ]
    if done.why and done.stopped_by != "space":
        lines.append(f"stopped early: {done.why}")
    lines += done.notes
    if done.stopped_by == "space":
        return lines  # the error says the rest
    if not done.sessions:
        lines.append(_nobody(target, done.calls))
    elif not _kept(done):
        lines.append(f"nothing of theirs could be kept in {done.path}")
    if not _kept(done):
        return lines
    return [*lines, f"trace: {done.path} (`pgtare trace profile {done.path}` says where time went)"]


def _lost(done: TraceRecorded) -> list[str]:
    if not done.losses:
        return []
    return [
        *losses_notes("bytes of calls", ((one.pid, one.lost_bytes) for one in done.losses)),
        *losses_notes("waits", ((one.pid, one.lost_waits) for one in done.losses)),
        "larger rings (sql_trace.ring_size, wait_event_timing.trace_ring_records) lose less",
    ]


@app.command("profile")
def profile_(
    path: Source,
    by: Annotated[Grouping, typer.Option(help="What the lines are.")] = "event",
    pid: Pids = None,
    statement: Annotated[
        str | None, typer.Option(help="Only statements with this text or query identifier.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Only one client, as `pgtare trace clients` names it.")
    ] = None,
    merge_by: MergeBy = "application",
    workers: Annotated[
        bool, typer.Option("--workers", help="Parallel workers instead of the sessions.")
    ] = False,
    busy: Annotated[bool, typer.Option("--busy", help="Leave out the client's time.")] = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Show where the time went, in lines that add up to all of it.

    Example: `pgtare trace profile monday --by statement`
    """
    _require_apart(path, "--output", output)
    destination = Destination(json, output)
    book = _book(path)
    if client is not None:
        book = merge.only(book, merge_by, client)
    words = ", ".join(
        [*(f"process {p}" for p in pid or ())]
        + ([f"client {client}"] if client else [])
        + (["parallel workers"] if workers else [])
    )
    scope = Scope(frozenset(pid) if pid else None, statement, workers, busy, words)
    found = profile(book, by, scope)
    destination.deliver(found, show.profile_view(found))
    console = cli.stdout()
    if console.is_terminal and by == "event" and not destination.printed:
        console.print(
            f"next: --by statement, or pgtare trace report {path}",
            style="dim",
            highlight=False,
            markup=False,
        )


@app.command("clients")
def clients(
    path: Source, merge_by: MergeBy = "application", json: Json = False, output: Output = None
) -> None:
    """Show the time by client, merged from the pooled connections that served it.

    `trace` takes the traceparent that sqlcommenter writes into comments of statements.

    Example: `pgtare trace clients monday --merge-by trace`
    """
    _require_apart(path, "--output", output)
    destination = Destination(json, output)
    found = merge.clients(_book(path), merge_by)
    destination.deliver(TraceClients(clients=found), show.clients_view(found))


@app.command("statements")
def statements(
    path: Source,
    sort: Annotated[Sort, typer.Option(help="The largest first.")] = "elapsed",
    pid: Pids = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """List statements: calls with count, CPU, elapsed time, buffers and rows; waits; row sources.

    Statements that ran within others (functions, triggers) are listed separately.

    Example: `pgtare trace statements monday --sort cpu`
    """
    _require_apart(path, "--output", output)
    destination = Destination(json, output)
    found = report(_book(path), sort, frozenset(pid) if pid else None)
    if sum(not statement.query_id for statement in found) >= _MANY:
        cli.say(f"note: {UNNUMBERED}", err=True)
    destination.deliver(TraceStatements(statements=found), show.statements_view(found))


@app.command("export")
def export(
    path: Source,
    directory: Annotated[Path, typer.Argument(help="A new directory for the files.")],
    format_: Annotated[
        exports.Format, typer.Option("--format", help="parquet needs the extra `agent`.")
    ] = "parquet",
) -> None:
    """Write calls, waits, transactions, plans, row sources, binds and more as tables.

    Example: `pgtare trace export monday monday-parquet`
    """
    exports.check(directory, format_)  # before a long trace is read
    for name, rows in exports.write(_book(path), directory, format_).items():
        cli.say(f"{directory / name}: {rows:,} rows")


@app.command("report")
def report_(
    path: Source,
    html: Annotated[
        Path | None, typer.Option(help="Where to write the page; default: TRACE.html.")
    ] = None,
) -> None:
    """Write the page of a trace: profile, time line, statements with all that they did.

    Example: `pgtare trace report monday`
    """
    from pgtare.observing.trace.output.page import write_page  # what draws pages takes long to load

    target = html or path.parent / f"{path.name.removesuffix(SUFFIX)}.html"
    _require_apart(path, "--html", target)
    files.check_target(target)
    book = _book(path)
    write_page(book, target, [ledger(other) for other in kept.next_to(book.trace)])
    cli.say(f"page: {target}")


app.command("grab")(trace_grab.grab_)
app.command("kept")(trace_kept.kept_)
app.command("status")(trace_state.status)
app.command("stop")(trace_state.stop)


class _Reading(Frame):
    """The progress of reading a trace, with the time left."""

    def __init__(self, console: Console, path: Path) -> None:
        super().__init__(
            console,
            TextColumn("reading {task.fields[name]}", markup=False),
            BarColumn(bar_width=BAR_WIDTH),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            total=1.0,
            name=path.name,
        )
        self._path, self._start = path, time.monotonic()

    def tell(self, share: float) -> None:
        """So much of 1 is done."""
        line = f"reading {self._path}: {100 * share:.0f} %"
        self._show(time.monotonic() - self._start, line, completed=share)


def _require_apart(path: Path, option: str, result: Path | None) -> None:
    """Raise UsageError if what is written about a trace would replace it."""
    if result is not None and os.path.realpath(result) == os.path.realpath(path):
        raise UsageError(f"{option} {result} would replace the trace itself: name another file")


def _book(path: Path) -> Ledger:
    """The ledger of a trace, without what cannot be read; notes on standard error."""
    with _Reading(cli.stderr(), path) as reading:
        book = ledger(load(path), tell=reading.tell)
    for note in book.notes:
        cli.say(f"note: {note}", err=True)
    if not len(book.entries):
        why = "no session was traced in it"
        if any(ring.kind == "sql" for ring in book.trace.rings.values()):
            why = "the sessions traced in it did nothing while it was recorded"
        raise UsageError(f"{path} holds no calls and no waits: {why}")
    return book
