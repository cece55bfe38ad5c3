"""The bill on a terminal: the sum, its lines, and what could be switched off."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.fitted_table import Fitted
from pgtare.kit.interval import Interval
from pgtare.kit.terminal_text import plain
from pgtare.weighing import verdict_names
from pgtare.weighing.bill import sums as bill
from pgtare.weighing.bill.document import Bill, BillAmount, BillLine

_BASIS = {"service": "µs a transaction", "cpu": "CPU µs a transaction"}


def show(found: Bill, console: Console) -> None:
    """Print a bill. Names steer no terminal."""
    _say(console, bill.sum_sentence(found))
    off = bill.off_sentence(found)
    if off:
        _say(console, off)
    console.print()
    console.print(_lines(found), highlight=False)
    not_shown = bill.not_shown_sentence(found)
    if not_shown:
        _say(console, not_shown)
    if found.switch_off:
        console.print()
        _say(console, "What could be switched off, the most expensive first")
        console.print(_switch_off(found), highlight=False)
        for row in found.switch_off:
            for text in row.how:
                _say(console, f"  {row.name}: {text}")
    if found.not_counted:
        console.print()
        _say(console, "Not counted")
        for one in found.not_counted:
            what = f"{one.server}, {one.name}" if one.name else one.server
            _say(console, f"- {what}: {one.reason}")
    if found.notes:
        console.print()
        for note in found.notes:
            _say(console, note)


def _say(console: Console, text: str) -> None:
    console.print(Text(plain(text)), highlight=False, soft_wrap=True)


def _lines(found: Bill) -> Fitted:
    money = _money_heading(found)
    table = Fitted(
        "instrument",
        "server",
        _BASIS[found.basis],
        "per s",
        "cores",
        "95 % interval",
        *money,
        "verdict",
        "now",
        spare=("now", "per s", "verdict"),
    )
    for server in found.servers:
        for line in found.lines:
            if line.server == server.server:
                table.add_row(*_line(line, found))
    for line in found.lines:
        if not line.server:
            table.add_row(*_line(line, found))
    for server in found.servers:
        table.add_row(
            "sum",
            server.server,
            "",
            "" if server.transactions_per_s is None else numbers.rate(server.transactions_per_s),
            *_amount(server.amount, found),
        )
    table.add_row("sum of all", "", "", "", *_amount(found.total, found))
    return table


def _line(line: BillLine, found: Bill) -> tuple[str, ...]:
    verdict = verdict_names.NAMES.get(line.verdict or "", "")  # type: ignore[call-overload]
    return (
        line.name,
        line.server or "(agent)",
        _size(line.cost_us) if line.cost_us else "",
        "" if line.transactions_per_s is None else numbers.rate(line.transactions_per_s),
        *_amount(line.amount, found),
        verdict,
        "" if line.now == "unknown" else line.now,
    )


def _amount(amount: BillAmount, found: Bill) -> tuple[str, ...]:
    cells = (_size(amount.cores), _bounds(amount.cores))
    if found.core_month is None:
        return cells
    return (*cells, _size(amount.money))


def _money_heading(found: Bill) -> tuple[str, ...]:
    return () if found.currency is None else (f"{found.currency} a month",)


def _size(interval: Interval | None) -> str:
    """The estimate, with a sign only if it is a gain."""
    if interval is None:
        return numbers.NONE
    return numbers.signed(interval.estimate, numbers.places(interval)).removeprefix("+")


def _bounds(interval: Interval) -> str:
    if interval.lo == interval.hi:
        return ""
    return numbers.bounds(interval).replace("+", "")


def _switch_off(found: Bill) -> Fitted:
    table = Fitted(
        "instrument", "servers", "cores", "95 % interval", *_money_heading(found), "share"
    )
    for row in found.switch_off:
        share = "" if row.share_pct is None else numbers.percent(row.share_pct)
        count = str(len(row.servers)) if row.servers else ""
        table.add_row(row.name, count, *_amount(row.amount, found), share)
    return table
