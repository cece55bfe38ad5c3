"""`pgtare flame`: flame graphs of a server's processes, and what changed between two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psycopg
import typer
from rich.console import Console

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import MeasurementError, UsageError
from pgtare.kit import files
from pgtare.kit.option_values import seconds
from pgtare.kit.progress import Display
from pgtare.observing.flame import labels as flame_labels
from pgtare.observing.flame import perf, processes, show
from pgtare.observing.flame import profile as profiles
from pgtare.observing.flame.processes import FlameTarget
from pgtare.observing.flame.record import record
from pgtare.observing.flame.recording import FlameRecording, Mode
from pgtare.postgres import own_session, signals

app = typer.Typer(
    no_args_is_help=True,
    help="Draw flame graphs of a server's processes, with perf as the collector.\n\n"
    "Example: `sudo $(command -v pgtare) flame off --postmaster $(pgrep -xo postgres) "
    "--html off.html`",
)
Dsn = Annotated[
    str | None, typer.Option(help="The server, as a libpq connection string; it must run here.")
]
Pid = Annotated[
    int | None,
    typer.Option(min=1, help="One process; with --dsn, by the server's own number for it."),
]
Postmaster = Annotated[
    int | None, typer.Option(min=1, help="All processes of the server with this postmaster.")
]
Duration = Annotated[str, typer.Option("--duration", "-d", help="How long: 10, 10s, 2m.")]
Idle = Annotated[bool, typer.Option("--idle", help="Include waits for something to do.")]
Trace = Annotated[
    bool, typer.Option("--trace", help="Trace all sessions by wait_event_timing during it (--dsn).")
]
Html = Annotated[Path | None, typer.Option(help="Write one self-contained page.")]
Folded = Annotated[Path | None, typer.Option(help="Write folded stacks, in µs.")]


@dataclass(frozen=True)
class _Outputs:
    """Where a result goes. Raises UsageError if something cannot be written."""

    html: Path | None
    folded: Path | None
    destination: Destination

    def __post_init__(self) -> None:
        for path in (self.html, self.folded):
            files.check_target(path)

    def deliver(self, recording: FlameRecording, *, idle: bool) -> None:
        """Write and print it."""
        found = profiles.profile(recording.shown(idle=idle))
        if self.html is not None:
            files.write_text(self.html, show.recording_page(recording, found, idle=idle))
        if self.folded is not None:
            files.write_text(self.folded, profiles.folded(found))
        self.destination.write(show.document(recording, found).to_json())
        if self.destination.printed:
            return
        for line in show.lines(recording, found, idle=idle):
            typer.echo(line)
        if not found:
            typer.echo("There are no samples: the processes did nothing of this kind.")
        written = {"page": self.html, "folded stacks": self.folded}
        _print(show.HEAD, show.rows(found), recording.notes, written)


@app.command("on")
def on(
    dsn: Dsn = None,
    pid: Pid = None,
    postmaster: Postmaster = None,
    duration: Duration = "10s",
    rate: Annotated[int, typer.Option(min=1, max=10000, help="Samples a second.")] = 99,
    trace: Trace = False,
    html: Html = None,
    folded: Folded = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Show where processes compute, by sampling.

    Example: `sudo $(command -v pgtare) flame on --pid 4711 --duration 30s --html cpu.html`
    """
    outputs = _Outputs(html, folded, Destination(json, output))
    _run("on", dsn, pid, postmaster, duration, trace, outputs, rate=rate)


def _waits(mode: Mode, text: str) -> None:
    """A command for blocked time; text: its help."""

    def command(
        dsn: Dsn = None,
        pid: Pid = None,
        postmaster: Postmaster = None,
        duration: Duration = "10s",
        idle: Idle = False,
        trace: Trace = False,
        html: Html = None,
        folded: Folded = None,
        json: Json = False,
        output: Output = None,
    ) -> None:
        outputs = _Outputs(html, folded, Destination(json, output))
        _run(mode, dsn, pid, postmaster, duration, trace, outputs, idle=idle)

    app.command(mode, help=text)(command)


_waits(
    "off",
    "Where processes are blocked, from every switch of the scheduler; as root.\n\n"
    "Example: `sudo $(command -v pgtare) flame off --pid 4711 -d 10s --folded off.folded`",
)
_waits(
    "wake",
    "Where processes are blocked, and on top of it what ended each wait; as root.\n\n"
    "Example: `sudo $(command -v pgtare) flame wake --pid 4711 --html wake.html`",
)


@app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(help="Folded stacks, as --folded writes them.")],
    after: Annotated[Path, typer.Argument(help="The other ones.")],
    html: Html = None,
) -> None:
    """Compare two recordings: what takes a larger or smaller share of the time.

    Example: `pgtare flame diff max400.folded max100.folded --html change.html`
    """
    files.check_target(html)
    old, new = profiles.alike(profiles.parse_folded(before), profiles.parse_folded(after))
    found = profiles.changes(old, new)
    if html is not None:
        names = (before.name, after.name)
        files.write_text(html, show.change_page(names, old, new, found))
    _print(show.CHANGE_HEAD, show.change_rows(found), [], {"page": html})


def _run(
    mode: Mode,
    dsn: str | None,
    pid: int | None,
    postmaster: int | None,
    duration: str,
    trace: bool,
    outputs: _Outputs,
    *,
    rate: int = 99,
    idle: bool = False,
) -> None:
    if trace and dsn is None:
        raise UsageError("--trace asks the server: give --dsn")
    length = seconds("--duration", duration)
    perf.find_perf()
    with signals.unwind_at_exit_signals(), _target(dsn, pid, postmaster) as target:
        with (
            Display(cli.stderr(), f"recording {target.name}", length) as display,
            flame_labels.labels(dsn, target, trace=trace) as joined,
        ):
            recording = record(
                mode,
                target,
                length,
                rate,
                lambda now, samples, lost: display.tick(
                    now, f"{samples:,} samples, {lost:,} events lost", "; Ctrl-C ends it"
                ),
            )
        recording = joined.put(recording)
    outputs.deliver(recording, idle=idle)
    if recording.stopped_by == "interrupt":
        raise typer.Exit(cli.INTERRUPTED)


@contextmanager
def _target(dsn: str | None, pid: int | None, postmaster: int | None) -> Iterator[FlameTarget]:
    if postmaster is not None:
        if dsn is not None or pid is not None:
            raise UsageError(
                "--postmaster cannot be given with --dsn or --pid, which name what to record as "
                "well: choose one"
            )
        yield processes.of_postmaster(postmaster)
    elif dsn is not None:
        try:
            conn = own_session.connect(dsn)
        except MeasurementError as ex:
            raise MeasurementError(
                f"{ex}; --postmaster $(pgrep -xo postgres) needs no connection (the oldest server "
                "here)"
            ) from ex
        with conn:
            try:
                yield processes.of_connection(conn, pid)
            except psycopg.Error as ex:
                raise UsageError(f"the server did not answer: {own_session.first_line(ex)}") from ex
    elif pid is not None:
        yield processes.of_pid(pid)
    else:
        raise UsageError("nothing to record: give --pid, --dsn or --postmaster")


def _print(
    head: list[str], rows: list[list[str]], notes: list[str], written: dict[str, Path | None]
) -> None:
    if rows:
        Console(soft_wrap=False).print(show.table(head, rows), highlight=False)
    for note in notes:
        typer.echo(f"note: {note}")
    for what, path in written.items():
        if path is not None:
            typer.echo(f"{what}: {path}")
