"""`pgtare findings`: what slowed servers, and who, as an agent kept it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import UsageError
from pgtare.kit.option_values import span

if TYPE_CHECKING:
    from pgtare.keeping.findings.history import KeptFinding, Stretch

#: The stretch that is shown if none is named.
_SINCE = "24h"
#: How often --follow looks, in s.
_FOLLOW_S = 5.0
#: Reads the rows of a stretch of time.
Rows = Callable[["Stretch"], Iterable[Sequence[Any]]]


def findings(
    spool: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The spool of an agent, on this machine.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="A store: clickhouse://USER@HOST:PORT/DATABASE.")
    ] = None,
    since: Annotated[str, typer.Option(help="The last so long, for example 24h or 7d.")] = _SINCE,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="Begin, local time: '2026-11-24 14:00'. Instead of --since."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="End, local time; with --from. Now if left out.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Compare with the same stretch so long before, for example 7d."),
    ] = None,
    server: Annotated[str | None, typer.Option(help="Of this server only.")] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Those that are open now.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print what opens and ends; Ctrl-C ends it.")
    ] = False,
    json: Json = False,
    output: Output = None,
) -> None:
    """Say what slowed servers, and who, at any time that an agent watched them.

    A line for each finding, the most urgent first: its share of all active time, how many sessions
    it held up, since when, and the session, statement, limit or setting that it comes from. Then
    what was seen, and what to do, to copy.

    Exit status: 0, whatever was found; 1, 2 and 130 (Ctrl-C) as of every command.

    Examples: `pgtare findings --spool /var/lib/pgtare-agent/spool --since 2h`

    `pgtare findings --spool DIR --from "2026-11-24 14:00" --to "2026-11-24 15:00" --against 7d`
    """
    if (spool is None) == (store is None):
        raise UsageError("name either --spool DIR or --store clickhouse://…")
    if follow and (begin or end or against or json or output or only_open or since != _SINCE):
        raise UsageError("--follow goes with --spool or --store and --server alone")
    if against is not None and (json or output or only_open):
        raise UsageError("--against prints all findings of two times: leave out --open, --json")
    if end is not None and begin is None:
        raise UsageError("--to goes with --from: give both ends, as '2026-11-24 14:00'")
    rows: Rows = partial(_of_store, str(store), server)
    if spool is not None:
        rows = partial(_of_spool, spool, server)
    if follow:
        _follow(rows)
        return
    destination = Destination(json, output)
    from pgtare.keeping.findings import history, show

    stretch = _stretch(since, begin, end)
    found = history.of_rows(rows(stretch), stretch)
    if only_open:
        found.findings = [one for one in found.findings if one.open]
    destination.write(found.to_json())
    if destination.printed:
        return
    if against is None:
        cli.show(show.view(found))
        return
    earlier = stretch.earlier(timedelta(seconds=span("--against", against)))
    before = history.of_rows(rows(earlier), earlier)
    both = history.compared(found, before)
    cli.show(show.difference(both, found, before))


def _stretch(since: str, begin: str | None, end: str | None) -> Stretch:
    from pgtare.keeping.findings.history import Stretch

    now = datetime.now(UTC)
    if begin is None:
        return Stretch(now - timedelta(seconds=span("--since", since)), now)
    stretch = Stretch(_time("--from", begin), now if end is None else _time("--to", end))
    if stretch.begin >= stretch.end:
        raise UsageError("--from is not before --to")
    return stretch


def _time(option: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as ex:
        raise UsageError(f"{option} {text!r}: write a time as in '2026-11-24 14:00'") from ex


def _of_spool(directory: Path, server: str | None, stretch: Stretch) -> Iterable[Sequence[Any]]:
    from pgtare.keeping.findings import history
    from pgtare.keeping.spool import reader

    only = None if server is None else reader.quoted(server)
    condition = stretch.condition("TIMESTAMP '{}'", only)
    answer = reader.query(directory, history.sql(f"SELECT * FROM findings WHERE {condition}"))
    for note in answer.notes:
        cli.say(f"pgtare: {note}", err=True)
    return answer.rows


def _of_store(store: str, server: str | None, stretch: Stretch) -> Iterable[Sequence[Any]]:
    from pgtare.keeping.findings import history
    from pgtare.keeping.live import store_views
    from pgtare.keeping.live.store_worker import SETTINGS
    from pgtare.keeping.store import address, repair
    from pgtare.keeping.store.connection import connect, quoted

    found = address.read(store)
    only = None if server is None else quoted(server)
    condition = stretch.condition("toDateTime64('{}', 6, 'UTC')", only)
    with connect(found) as connection:
        in_part = [one.table for one in repair.partial_seqs(connection, SETTINGS)]
        source = store_views.select("findings", found.database, condition, in_part)
        return connection.rows(history.sql(source), settings=SETTINGS)


def _follow(rows: Rows) -> None:
    """Print each finding as it opens, as its level changes, and as it ends."""
    from pgtare.keeping.findings import history
    from pgtare.keeping.findings.history import Stretch

    shown: dict[tuple[str, str], tuple[bool, str]] = {}
    while True:
        now = datetime.now(UTC)
        stretch = Stretch(now - timedelta(minutes=10), now)
        found = history.of_rows(rows(stretch), stretch)
        for one in sorted(found.findings, key=lambda each: each.since):
            before, now_is = shown.get((one.server, one.key)), (one.open, one.level)
            if before == now_is or (before is None and not one.open):
                continue
            _say(one, "opened" if before is None or not before[0] else "is now")
            shown[one.server, one.key] = now_is
        time.sleep(_FOLLOW_S)


def _say(one: KeptFinding, opened: str) -> None:
    at = (one.since if one.open else one.until or one.since).astimezone()
    what = opened if one.open else "ended"
    share = "" if one.share is None else f"{100 * one.share:.0f} %  "
    cli.say(f"{at:%H:%M:%S}  {one.server}  {what}  {one.level}  {share}{one.title}")
