"""The bill: what watching costs, from weighings, and from the agent's own figures.

A cost is µs a transaction times transactions a second, in cores. Parts add up to the whole: a
server is the sum of its lines, the whole that of the servers and of the agent's process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pgtare.errors import PgtareError
from pgtare.estimate.interval_sums import Bounds, dependent_sum, independent_sum
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.weighing.bill import overlap as bill_overlap
from pgtare.weighing.bill.document import (
    Basis,
    Bill,
    BillAmount,
    BillLine,
    BillServer,
    LineKind,
    NotCounted,
    SwitchOff,
)
from pgtare.weighing.fleet.documents import FleetLeftOut
from pgtare.weighing.weigh.report import reason_words, wording
from pgtare.weighing.weigh.schema import ArmResult, WeighResult, number
from pgtare.weighing.weigh.transaction_rate import TransactionRate, transaction_rate

AGENT = "agent"


@dataclass(frozen=True)
class Weighed:
    """A server and its weighing."""

    server: str
    result: WeighResult


@dataclass(frozen=True)
class Watching:
    """What an agent takes, in cores: its process, and its looks at each server.

    identities: system identifier, and whether it is a standby, of each server that is known.
    """

    process: float
    looks: Mapping[str, float]
    identities: Mapping[str, tuple[str, bool]]


@dataclass(frozen=True)
class Price:
    """A core for a month."""

    core_month: float
    currency: str


def _amount(cores: Bounds, price: Price | None) -> BillAmount:
    """In cores and in money."""
    money = None if price is None else _interval(cores.times(price.core_month))
    return BillAmount(cores=_interval(cores), money=money)


def make(
    weighed: Sequence[Weighed],
    left_out: Sequence[FleetLeftOut] = (),
    *,
    origins: Sequence[str],
    basis: Basis = "service",
    price: Price | None = None,
    watching: Watching | None = None,
    notes: Iterable[str] = (),
) -> Bill:
    """The bill of these servers. origins: what they were read from.

    Raises PgtareError if there is nothing to count.
    """
    not_counted = [NotCounted(server=one.server, name="", reason=one.reason) for one in left_out]
    lines: list[BillLine] = []
    servers: list[BillServer] = []
    hints: dict[tuple[str, str], str] = {}
    unweighed, renamed = _as_weighed(weighed, watching) if watching else ({}, {})
    for one in sorted(weighed, key=lambda one: one.server):
        found, missing = _of_server(one, basis, price)
        not_counted += missing
        hints |= {(one.server, arm.name): _sql(arm, one.result) for arm in one.result.arms}
        if one.server in unweighed:
            found.append(_looks(one.server, unweighed.pop(one.server), price))
        lines += found
        if found:  # else its costs are not known, which is not that there are none
            servers.append(_server(one, found, price))
        elif not missing:
            reason = "no instrument was weighed"
            not_counted.append(NotCounted(server=one.server, name="", reason=reason))
    for server, cores in sorted(unweighed.items()):
        looks = _looks(server, cores, price)
        lines.append(looks)
        servers.append(
            BillServer(
                server=server,
                version="",
                transactions_per_s=None,
                whole_rate=False,
                amount=looks.amount,
            )
        )
    parts = [_cores(server) for server in servers]
    if watching is not None:
        bounds = Bounds(*[watching.process] * 3)
        process = _of_agent("", "agent", "processor time of the agent", bounds, price)
        lines.append(process)
        parts.append(bounds)
    if not lines:
        raise PgtareError(_nothing(not_counted))
    total = independent_sum(parts)
    off = [line for line in lines if line.now == "off"]
    return Bill(
        weighed=list(origins),
        basis=basis,
        core_month=price.core_month if price else None,
        currency=price.currency if price else None,
        total=_amount(total, price),
        off_now=_amount(_over_servers(off), price),
        servers=sorted(servers, key=_dearest),
        lines=sorted(lines, key=_dearest),
        switch_off=_switch_off(lines, total, hints, price),
        not_counted=not_counted,
        notes=[
            *notes,
            *_renamed(renamed),
            *_twice(weighed, lines),
            *_notes(lines, servers, weighed, basis),
        ],
    )


def _as_weighed(
    weighed: Sequence[Weighed], watching: Watching
) -> tuple[dict[str, float], dict[str, str]]:
    """The looks by the names of the weighings, and by which name of it each other one was found.

    A server that has another name at the agent is known by its system identifier, if only one of
    each is left without its namesake: a primary and its standbys have the same.
    """
    names = {one.server for one in weighed}
    of_agent: dict[tuple[str, bool], list[str]] = {}
    for server in watching.looks.keys() - names:
        if server in watching.identities:
            of_agent.setdefault(watching.identities[server], []).append(server)
    of_weighing: dict[tuple[str, bool], list[str]] = {}
    for one in weighed:
        identity = _identity(one.result)
        if one.server not in watching.looks and identity is not None:
            of_weighing.setdefault(identity, []).append(one.server)
    renamed = {
        of_agent[identity][0]: servers[0]
        for identity, servers in of_weighing.items()
        if len(servers) == len(of_agent.get(identity, ())) == 1
    }
    looks = {renamed.get(server, server): cores for server, cores in watching.looks.items()}
    return looks, renamed


def _identity(result: WeighResult) -> tuple[str, bool] | None:
    """The system identifier, and whether it is a standby; None if the role could not read it."""
    identifier = result.server.get("system_identifier")
    if not isinstance(identifier, str):
        return None
    return identifier, bool(result.server.get("standby"))


def _twice(weighed: Iterable[Weighed], lines: Iterable[BillLine]) -> list[str]:
    """Which instruments were weighed in one database under several names.

    Only a note: a server that was made of another one's files has the same identifier.
    """
    results = {one.server: one.result for one in weighed}
    names: dict[tuple[object, ...], list[str]] = {}
    for line in lines:
        if line.kind != "instrument":
            continue
        result = results[line.server]
        if (identity := _identity(result)) is not None:
            database = (*identity, result.server.get("database"))
            names.setdefault((line.name, *database), []).append(line.server)
    return [
        f"{instrument} is in the sums {len(servers)} times for one database, by the system "
        f"identifier of its server: {', '.join(servers)}. Leave out all but one, unless these "
        "servers are copies of each other."
        for (instrument, *_), servers in names.items()
        if len(servers) > 1
    ]


def _renamed(renamed: Mapping[str, str]) -> list[str]:
    """Which servers have two names."""
    if not renamed:
        return []
    pairs = ", ".join(f"{ours} ({agents})" for agents, ours in sorted(renamed.items()))
    return [f"The agent has other names for these servers, known by their identifier: {pairs}."]


def _of_server(
    one: Weighed, basis: Basis, price: Price | None
) -> tuple[list[BillLine], list[NotCounted]]:
    """The lines of a weighing, and its instruments that are not counted."""
    rate = transaction_rate(one.result)
    found: list[tuple[ArmResult, BillLine]] = []
    missing = []
    for arm in wording.by_cost(wording.of_role(one.result, "instrument")):
        line = _line(one, arm, rate, basis, price)
        if isinstance(line, str):
            missing.append(NotCounted(server=one.server, name=arm.name, reason=line))
        else:
            found.append((arm, line))
    reasons = bill_overlap.not_counted([arm for arm, _ in found], one.result)
    missing += [
        NotCounted(server=one.server, name=name, reason=why) for name, why in reasons.items()
    ]
    return [line for arm, line in found if arm.name not in reasons], missing


def _line(
    one: Weighed, arm: ArmResult, rate: TransactionRate | None, basis: Basis, price: Price | None
) -> BillLine | str:
    """A line, or why there is none."""
    answer = wording.answer_of(arm)
    if wording.ended_by_server(one.result):
        return "no figure, as the trial ended early"
    if answer is None:
        return f"not verified: {reason_words.because(arm)}"
    if one.result.design.outside is not None:
        return "it was weighed from outside, where the rate of your transactions is not known"
    if _load_was_ours(one.result):
        return "its load was pgtare's own, so the rate of your transactions is not known"
    cpu_us = arm.effect.cpu_us if arm.effect else None
    interval = answer.us if basis == "service" else cpu_us
    if interval is None:
        return "its weighing took no processor time (--no-cpu)"
    if interval.estimate is None or rate is None:
        return "nothing was measured"
    if interval.lo is None or interval.hi is None:  # the whole sum would have none, either
        return "too few transactions for an interval"
    return BillLine(
        server=one.server,
        kind="instrument",
        name=arm.name,
        cost_us=interval,
        transactions_per_s=rate.per_s,
        amount=_amount(_bounds(interval).times(rate.per_s / 1e6), price),
        verdict=arm.verdict,
        now=bill_overlap.state_now(arm, one.result),
    )


def _load_was_ours(result: WeighResult) -> bool:
    return bool(result.load.get("kind", "none") != "none")


def _server(one: Weighed, lines: Iterable[BillLine], price: Price | None) -> BillServer:
    rate = None if _load_was_ours(one.result) else transaction_rate(one.result)
    return BillServer(
        server=one.server,
        version=one.result.server_version,
        transactions_per_s=rate.per_s if rate else None,
        whole_rate=rate is not None and rate.whole,
        amount=_amount(dependent_sum(map(_cores, lines)), price),
    )


def _looks(server: str, cores: float, price: Price | None) -> BillLine:
    """The agent's looks. Their time includes the network: an upper bound of the cost."""
    return _of_agent(server, "looks", "looks of the agent", Bounds(cores, 0.0, cores), price)


def _of_agent(
    server: str, kind: LineKind, name: str, cores: Bounds, price: Price | None
) -> BillLine:
    return BillLine(
        server=server,
        kind=kind,
        name=name,
        cost_us=None,
        transactions_per_s=None,
        amount=_amount(cores, price),
        now="on",
    )


def _over_servers(lines: Iterable[BillLine]) -> Bounds:
    """A sum in which the lines of one server go together, and servers are independent."""
    by_server: dict[str, list[Bounds]] = {}
    for line in lines:
        by_server.setdefault(line.server, []).append(_cores(line))
    return independent_sum(dependent_sum(found) for found in by_server.values())


def _switch_off(
    lines: Iterable[BillLine],
    total: Bounds,
    hints: Mapping[tuple[str, str], str],
    price: Price | None,
) -> list[SwitchOff]:
    """Instruments over all servers, and the agent, without what is off or saves time."""
    groups: dict[str, list[BillLine]] = {}
    for line in lines:
        if line.now != "off":
            name = line.name if line.kind == "instrument" else AGENT
            groups.setdefault(name, []).append(line)
    found = []
    for name, members in groups.items():
        bounds = _over_servers(members)
        if not bounds.estimate > 0:
            continue
        share = 100 * bounds.estimate / total.estimate if total.estimate > 0 else math.nan
        servers = sorted({line.server for line in members} - {""})
        how = dict.fromkeys(hints.get((server, name), "") for server in servers)
        if any(line.kind == "agent" for line in members):
            how = dict.fromkeys(["stop `pgtare agent`, or give it longer intervals"])
        found.append(
            SwitchOff(
                name=name,
                amount=_amount(bounds, price),
                share_pct=number(share),
                servers=servers,
                how=[text for text in how if text],
            )
        )
    return sorted(found, key=_dearest)


def _sql(arm: ArmResult, result: WeighResult) -> str:
    """What switches an arm off: the base's settings."""
    base = result.arms[0].settings if result.arms else {}
    changes = bill_overlap.changes(arm, result)
    if arm.role != "instrument" or not changes:
        return ""
    commands = [
        f"ALTER SYSTEM SET {name} = {_literal(base[name])}"
        if name in base
        else f"ALTER SYSTEM RESET {name}"
        for name in sorted(changes)
    ]
    return "; ".join([*commands, "SELECT pg_reload_conf()"]) + ";"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _named(weighed: Iterable[Weighed]) -> str:
    """The names of the databases that were weighed, in brackets."""
    found = {
        str(one.result.server["database"]) for one in weighed if "database" in one.result.server
    }
    return f" ({', '.join(sorted(found))})" if found else ""


def _notes(
    lines: Sequence[BillLine],
    servers: Sequence[BillServer],
    weighed: Iterable[Weighed],
    basis: Basis,
) -> list[str]:
    """What the sums assume."""
    instruments = [line for line in lines if line.kind == "instrument"]
    notes = []
    known = {line.server for line in instruments}
    if len({(line.server, line.name) for line in instruments}) > len(known):
        notes.append(
            "Instruments were weighed one at a time. That together they cost the sum is assumed."
        )
    if instruments and basis == "service":
        notes.append(
            "Costs are of the time that sessions take for transactions; while an instrument waits, "
            "for example for the log to be written, that is no processor's time (--basis cpu)."
        )
    if instruments:
        notes.append(
            "Costs are weigh's answers, when left on: what slow transactions add is not in them. "
            "Rates are those of each trial, of the one database that was weighed on a server"
            f"{_named(weighed)}: what instruments cost in its other databases is not in the sums."
        )
    others = sorted({line.server for line in lines} - known - {""})
    if known and others:
        notes.append(
            f"No weighing has the name of these servers, at which the agent looks: "
            f"{', '.join(others)}. If one of them was weighed under another name, which its system "
            "identifier does not tell, name it alike in both: its costs are then in one place."
        )
    partly = [
        one.server for one in servers if one.transactions_per_s is not None and not one.whole_rate
    ]
    if partly:
        notes.append(
            "Of these servers only the transactions that took part are known, so that their rates "
            f"and costs are lower bounds: {', '.join(partly)}."
        )
    return notes


def _nothing(not_counted: Sequence[NotCounted]) -> str:
    if not not_counted:
        return "there is nothing to add up: no instrument was weighed"
    first = not_counted[0]
    what = f"{first.name} on {first.server}" if first.name else first.server
    more = f" (and {len(not_counted) - 1} more)" if len(not_counted) > 1 else ""
    return f"there is nothing to add up: {what}: {first.reason}{more}"


def _cores(one: BillLine | BillServer | SwitchOff) -> Bounds:
    return _bounds(one.amount.cores)


def _dearest(one: BillLine | BillServer | SwitchOff) -> float:
    """Sorts the most expensive first."""
    return -_cores(one).estimate


def _bounds(interval: Interval) -> Bounds:
    values = (interval.estimate, interval.lo, interval.hi)
    return Bounds(*(math.nan if value is None else value for value in values))


def _interval(bounds: Bounds) -> Interval:
    return Interval(estimate=number(bounds.estimate), lo=number(bounds.lo), hi=number(bounds.hi))


def sum_sentence(bill: Bill) -> str:
    """The whole in one sentence."""
    servers = {line.server for line in bill.lines} - {""}
    cores = f"{_with_bounds(bill.total.cores)} cores on {numbers.counted(len(servers), 'server')}"
    text = f"Watching costs {cores}"
    if not_shown(bill.total.cores):
        text = f"Watching is not shown to cost anything: {cores}"
    if bill.total.money is not None:
        text += f", {_with_bounds(bill.total.money)} {bill.currency} a month"
    return text + "."


def not_shown(cores: Interval) -> bool:
    """Whether a cost may as well be none, or a gain."""
    return cores.lo is None or cores.lo < 0


def not_shown_sentence(bill: Bill) -> str:
    """Which lines are not shown to cost anything; empty if all are."""
    named = [f"{line.name} on {line.server}" for line in bill.lines if not_shown(line.amount.cores)]
    return f"Not shown to cost anything: {', '.join(named)}." if named else ""


def off_sentence(bill: Bill) -> str:
    """How much of it is off at present; empty if nothing is known to be."""
    names = dict.fromkeys(line.name for line in bill.lines if line.now == "off")
    if not names:
        return ""
    return (
        f"Of this, {_with_bounds(bill.off_now.cores)} cores are what instruments would cost that "
        f"are off at present: {', '.join(names)}."
    )


def _with_bounds(interval: Interval) -> str:
    estimate = numbers.signed(interval.estimate, numbers.places(interval)).removeprefix("+")
    if not numbers.bounded(interval) or interval.lo == interval.hi:
        return estimate
    return f"{estimate} {numbers.bounds(interval).replace('+', '')}"
