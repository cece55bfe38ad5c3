"""A fleet's result on a terminal: the answer first, then the tables, then what is missing."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.fitted_table import Fitted
from pgtare.kit.interval import Interval
from pgtare.kit.terminal_text import plain
from pgtare.weighing import verdict_names
from pgtare.weighing.fleet.documents import FleetArm, FleetWeighing
from pgtare.weighing.fleet.report import wording

#: With more servers than this, the page and JSON list them.
_MOST_SERVERS = 20
_MOST_SUBGROUPS = 6


def render(result: FleetWeighing, console: Console) -> None:
    """Print a result. Names steer no terminal."""
    for text in wording.alarms(result):
        _say(console, text, "bold yellow")
    for _, text in wording.answers(result):
        _say(console, text)
    console.print()
    console.print(_arms(result), highlight=False)
    for arm in wording.instruments(result):
        _arm(arm, result, console)
    _list(console, "Left out", [f"{one.server}: {one.reason}" for one in result.left_out])
    _list(console, "Warnings", result.warnings)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(plain(text), style=style), highlight=False, soft_wrap=True)


def _list(console: Console, title: str, lines: list[str]) -> None:
    if lines:
        console.print()
        _say(console, title, "bold")
        for line in lines:
            _say(console, f"- {line}")


def _arms(result: FleetWeighing) -> Fitted:
    level = f"{100 * result.confidence:g} %"
    table = Fitted(
        "instrument",
        "servers",
        "mean %",
        f"{level} interval",
        "next server %",
        "mean µs",
        "interval µs",
        "I²",
        "verdict",
        spare=("I²", "interval µs", "mean µs", "servers"),
    )
    for arm in wording.all_arms(result):
        table.add_row(wording.arm_name(arm), *wording.arm_cells(arm), wording.verdict(arm))
    return table


def _arm(arm: FleetArm, result: FleetWeighing, console: Console) -> None:
    console.print()
    _say(console, arm.name, "bold")
    if arm.k > 1:
        _say(console, f"{wording.spread(arm.cost_pct)}.")
    for text in wording.outliers(arm):
        _say(console, text, "yellow")
    missing = [f"{one.server} ({one.left_out})" for one in arm.servers if one.left_out]
    if missing:
        _say(console, f"Without: {', '.join(missing)}.")
    if groups := wording.shown_subgroups(arm.cost_pct):
        table = Fitted(*wording.SUBGROUP_HEADINGS)
        for one in groups[:_MOST_SUBGROUPS]:
            table.add_row(*wording.subgroup_cells(one))
        console.print(table, highlight=False)
    if len(arm.servers) > _MOST_SERVERS:
        _say(console, f"{len(arm.servers)} servers: --html and --json list them.")
        return
    console.print(_servers(arm, result), highlight=False)


def _servers(arm: FleetArm, result: FleetWeighing) -> Fitted:
    table = Fitted(
        "server",
        "base µs",
        "cost µs",
        f"{100 * result.confidence:g} % interval",
        "cost %",
        "verdict",
        spare=("base µs", "cost %"),
    )
    base = {one.name: one for one in result.servers}
    for one in arm.servers:
        shown = one.verdict != "not_verified"
        nothing = Interval(estimate=None, lo=None, hi=None)
        us, pct = (one.us, one.pct) if shown else (nothing, nothing)
        verdict = verdict_names.NAMES[one.verdict] if one.verdict else numbers.NONE
        table.add_row(
            one.server,
            wording.base_us(base[one.server]),
            numbers.estimate(us),
            numbers.bounds(us),
            numbers.estimate(pct),
            verdict,
        )
    return table
