"""`pgtare bill`: what watching costs, in cores and in money."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgtare import cli
from pgtare.cli.json_output import Destination, Json, Output
from pgtare.errors import UsageError

if TYPE_CHECKING:
    from pgtare.weighing.bill.sums import Price, Watching

CURRENCY = "USD"


def bill(
    weighed: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...",
            help="What `pgtare fleet weigh --out` or `pgtare weigh --out` made.",
        ),
    ],
    spool: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Add what the agent that writes this spool costs."),
    ] = None,
    basis: Annotated[
        Literal["service", "cpu"],
        typer.Option(help="Costs of the time of transactions, or of their time on a processor."),
    ] = "service",
    core_month: Annotated[
        float | None, typer.Option("--core-month", help="The price of a core for a month.")
    ] = None,
    currency: Annotated[
        str | None, typer.Option(help=f"The currency of that price; default {CURRENCY}.")
    ] = None,
    json: Json = False,
    output: Output = None,
) -> None:
    """Add up what watching costs: µs a transaction times transactions a second, in cores.

    Each server has its own costs and its own rate, those of its weighing. Then it lists what could
    be switched off, the most expensive first. It needs no server.

    Example: `pgtare bill results/monday --core-month 40`
    """
    price = _price(core_month, currency)
    destination = Destination(json, output)
    from pgtare.weighing.bill import sums as bills
    from pgtare.weighing.bill import text as bill_text
    from pgtare.weighing.bill import weighed as bill_input

    found = bill_input.read(weighed)
    watching, notes = _watching(spool)
    made = bills.make(
        found.weighed,
        found.left_out,
        origins=[str(place) for place in weighed],
        basis=basis,
        price=price,
        watching=watching,
        notes=notes,
    )
    if not destination.printed:
        bill_text.show(made, cli.stdout())
    else:
        for one in found.left_out:
            cli.say(f"pgtare: {one.server} is left out: {one.reason}", err=True)
    destination.write(made.to_json())


def _price(core_month: float | None, currency: str | None) -> Price | None:
    from pgtare.weighing.bill.sums import Price

    if core_month is None:
        if currency is not None:
            raise UsageError("--currency needs a price: give --core-month as well")
        return None
    if not (math.isfinite(core_month) and core_month > 0):
        raise UsageError(f"--core-month {core_month:g}: give a price over 0, as in 40")
    if currency is not None and (not currency.strip() or not currency.isprintable()):
        raise UsageError("--currency: give the name of a currency, as in EUR")
    return Price(core_month, currency or CURRENCY)


def _watching(spool: Path | None) -> tuple[Watching | None, list[str]]:
    if spool is None:
        return None, []
    from pgtare.keeping.spool.agent_cost import agent_cost
    from pgtare.kit import numbers
    from pgtare.weighing.bill.sums import Watching

    cost = agent_cost(spool)
    notes = [
        f"The agent's own figures are of {numbers.seconds(cost.covered_s)}; an exporter "
        "(--metrics) is part of its process. The time of looks includes the network.",
        *cost.notes,
    ]
    return Watching(cost.process, cost.looks, cost.identities), notes
