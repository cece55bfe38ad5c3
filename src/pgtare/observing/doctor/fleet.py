"""What stalls the servers of a fleet: runs the doctor on all of them, and ranks what it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from rich.table import Table
from rich.text import Text

from pgtare.kit.document import Document, Model, schema_name
from pgtare.kit.terminal_text import plain
from pgtare.observing.doctor.examine import examine
from pgtare.observing.doctor.model import EXIT_STATUS, Level, Report, worst
from pgtare.observing.doctor.session import connected
from pgtare.observing.findings.model import Finding, place
from pgtare.postgres import parallel
from pgtare.postgres.inventory import InventoryServer

#: How many servers to look at at a time; each may take the interval and this long, in s.
AT_ONCE = 16
_LIMIT_S = 30.0


@dataclass(frozen=True)
class Examined:
    """One server: what the doctor said of it, or why it could not be looked at."""

    server: str
    labels: Mapping[str, str]
    weight: float
    report: Report | None
    problem: str = ""


def examine_fleet(servers: Mapping[str, InventoryServer], interval_s: float) -> list[Examined]:
    """Look at all servers, several at once."""

    def look(name: str) -> Report:
        with connected(servers[name].dsn) as session:
            return examine(session, interval_s)

    limit_s = interval_s + _LIMIT_S
    outcomes = parallel.for_each(servers, look, at_once=AT_ONCE, limit_s=limit_s)
    return [
        Examined(name, server.labels, server.weight, outcomes[name].answer, outcomes[name].problem)
        for name, server in servers.items()
    ]


#: Of a server of which only settings were seen: its `unseen` says what is missing.
_BLIND = "cannot see what its sessions wait for; `pgtare doctor` on it says what helps"
#: Names of servers are cut to this many characters, and what was found has as many at least.
_NAME = 26


class RankedFinding(Model):
    """A finding, and where it was found."""

    server: str = Field(description="name of the server")
    finding: Finding = Field(description="as `pgtare doctor` has it")


class ExaminedServer(Model):
    """One server of the fleet."""

    server: str = Field(description="its name in the inventory")
    labels: dict[str, str] = Field(description="its labels")
    problem: str | None = Field(
        description="why its sessions could not be looked at; `null`: they were"
    )
    level: Level | None = Field(
        description="the worst of its findings: `ok`, `warning` or `critical`"
    )
    version: str = Field(description="version of PostgreSQL; empty: it was not looked at")
    transactions_per_s: float | None = Field(description="of the whole server; `null`: not known")
    unseen: list[str] = Field(description="what could not be looked at there")


class FleetDoctor(Document):
    """What stalls the servers of a fleet."""

    schema_: Literal["pgtare.fleet.doctor/1"] = schema_name("pgtare.fleet.doctor/1")
    level: Level = Field(description="the worst of all findings")
    findings: list[RankedFinding] = Field(
        description="all findings: the most urgent first, then by the weight of the server"
    )
    servers: list[ExaminedServer] = Field(description="the servers, in the inventory's order")

    @property
    def exit_status(self) -> int:
        """As of `pgtare doctor`; 1 if nothing was found, and a server could not be looked at."""
        found = EXIT_STATUS[self.level]
        return found or int(any(one.problem is not None for one in self.servers))


def document(examined: Sequence[Examined]) -> FleetDoctor:
    """Everything found, ranked."""
    found = [
        (one, finding)
        for one in examined
        if one.report is not None
        for finding in one.report.findings
    ]
    found.sort(key=lambda pair: (place(pair[1]), -pair[0].weight, pair[0].server, pair[1].key))
    return FleetDoctor(
        level=worst(finding for _, finding in found),
        findings=[RankedFinding(server=one.server, finding=finding) for one, finding in found],
        servers=[_server(one) for one in examined],
    )


def _server(one: Examined) -> ExaminedServer:
    report = one.report
    return ExaminedServer(
        server=one.server,
        labels=dict(one.labels),
        problem=one.problem or (_BLIND if report is not None and report.is_blind else None),
        level=None if report is None else report.level,
        version="" if report is None else report.server.version.split()[0],
        transactions_per_s=None if report is None else report.transactions_per_s,
        unseen=[] if report is None else [unseen.what for unseen in report.unseen],
    )


def table(found: FleetDoctor) -> Table:
    """One row for each finding, the worst first; what was found goes on below if it is long."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("level", "sure", "server"):
        made.add_column(name, no_wrap=True, overflow="ellipsis", max_width=_NAME)
    made.add_column("finding", overflow="fold", min_width=_NAME)
    for one in found.findings:
        finding = one.finding
        cells = (finding.level, finding.sure, one.server, finding.title)
        made.add_row(*(Text(plain(cell)) for cell in cells))
    return made
