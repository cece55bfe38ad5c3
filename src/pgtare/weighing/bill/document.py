"""The bill as a document, schema `pgtare.bill/1`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

import pgtare
from pgtare.kit.document import Document, Model, schema_name
from pgtare.kit.interval import Interval

#: What a cost is taken of: the time a transaction takes, or its time on a processor.
Basis = Literal["service", "cpu"]
#: What a line is for.
LineKind = Literal["instrument", "agent", "looks"]
NowState = Literal["on", "off", "unknown"]


class BillAmount(Model):
    """Cores, and what they cost."""

    cores: Interval = Field(description="interval: cores, each a second of time a second")
    money: Interval | None = Field(
        default=None, description="interval: the same a month, in `currency`; `null` without price"
    )


class BillLine(Model):
    """What one instrument costs one server."""

    server: str = Field(description="name of the server; empty for the agent's own process")
    kind: LineKind = Field(
        description="`instrument`; `agent`, its process; `looks`, its transactions on the server"
    )
    name: str = Field(description="name of the instrument, or what of the agent it is")
    cost_us: Interval | None = Field(
        description="interval: cost of a transaction in µs, as `pgtare weigh` has it; `null` for "
        "the agent"
    )
    transactions_per_s: float | None = Field(
        description="transactions a second of the database that was weighed, during its trial; "
        "`null` for the agent"
    )
    amount: BillAmount = Field(description="`cost_us` times `transactions_per_s`")
    verdict: str | None = Field(
        default=None, description="verdict of the weighing; `null` for the agent"
    )
    now: NowState = Field(
        default="unknown",
        description="whether the server's own settings had it on when it was weighed: `on`, `off`, "
        "or `unknown`",
    )


class BillServer(Model):
    """What watching costs one server: its lines together."""

    server: str = Field(description="name of the server")
    version: str = Field(description="version of PostgreSQL; empty if not known")
    transactions_per_s: float | None = Field(
        description="transactions a second of the database that was weighed, during the trial; "
        "`null` if none was"
    )
    whole_rate: bool = Field(
        description="whether those that took no part in the trial are in it; if not, rate and "
        "amounts are lower bounds"
    )
    amount: BillAmount = Field(
        description="sum of its lines; intervals of one trial are added up in the worst case"
    )


class SwitchOff(Model):
    """What would be saved on all servers together."""

    name: str = Field(description="name of the instrument, or `agent`")
    amount: BillAmount = Field(
        description="sum over the servers on which it is not known to be off"
    )
    share_pct: float | None = Field(
        description="share of the whole; `null` if that is not above zero"
    )
    servers: list[str] = Field(description="names of these servers")
    how: list[str] = Field(description="how to switch it off: SQL for each server, or words")


class NotCounted(Model):
    """What was weighed, or should have been, and is not in the sums."""

    server: str = Field(description="name of the server")
    name: str = Field(description="name of the instrument; empty if it is the whole server")
    reason: str = Field(description="why, in words")


class Bill(Document):
    """What watching costs: µs a transaction times transactions a second, and the agent's time."""

    schema_: Literal["pgtare.bill/1"] = schema_name("pgtare.bill/1")
    pgtare_version: str = Field(
        default=pgtare.__version__, description="version of pgtare that wrote it"
    )
    weighed: list[str] = Field(description="the results that it is made of")
    basis: Basis = Field(
        description="what costs are of: `service`, the time of a transaction; `cpu`, its time on a "
        "processor"
    )
    core_month: float | None = Field(description="price of a core for a month; `null` if not given")
    currency: str | None = Field(description="currency of that price; `null` without a price")
    total: BillAmount = Field(description="all lines together; servers are taken as independent")
    off_now: BillAmount = Field(description="of it, the lines that are off at present")
    servers: list[BillServer] = Field(description="the servers, the most expensive first")
    lines: list[BillLine] = Field(description="the lines, the most expensive first")
    switch_off: list[SwitchOff] = Field(
        description="what could be switched off, the most expensive first"
    )
    not_counted: list[NotCounted] = Field(description="what is not in the sums, and why")
    notes: list[str] = Field(description="what a reader must know, in sentences")
