"""A fleet weighing from end to end: looks at the servers, says what it will do, does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.estimate.fleet.guard import HarmLimits
from pgtare.estimate.trial.design import Design
from pgtare.kit import artefact, files
from pgtare.kit.numbers import counted, seconds
from pgtare.postgres import parallel
from pgtare.postgres.inventory import Inventory, InventoryServer
from pgtare.weighing.fleet import stages
from pgtare.weighing.fleet.coordinator import Coordinator
from pgtare.weighing.fleet.directory import FleetDirectory, servers_of
from pgtare.weighing.fleet.fleet_guard import LOAD_LABEL, FleetGuard
from pgtare.weighing.fleet.server_weighing import ServerWeighing
from pgtare.weighing.fleet.stages import ServerTraffic
from pgtare.weighing.fleet.state import WEIGHING, FleetDesign, FleetState
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.weigh import plan as planning
from pgtare.weighing.weigh.request import Request

#: How long a look at a server may take, in s.
_LOOK_LIMIT_S = 30.0
#: Open files of this process next to one for each server: libraries, what is written, threads.
_OTHER_FILES = 100


@dataclass(frozen=True)
class FleetRequest:
    """What a user asks for. chosen: what `design` names, as the catalogue has it."""

    inventory: Inventory
    design: FleetDesign
    chosen: tuple[Chosen, ...]
    out: Path
    resumed: bool = False
    skip_unready: bool = False

    def of(self, server: InventoryServer) -> Request:
        """The weighing of one server."""
        design = self.design
        return Request(
            chosen=self.chosen,
            inject_ns=tuple(design.inject_ns),
            duration_s=design.duration_s,
            margin=design.margin_pct / 100,
            seed=design.seed,
            dsn=server.dsn,
            role=design.role,
            application=design.application,
            participation=design.participation,
            allow=frozenset(design.allow),
        )

    @property
    def instrumented(self) -> float:
        """The share of a trial's transactions whose arm is neither base nor control."""
        design = self.trial_design
        slots = [design.arms[slot].role in ("instrument", "injected") for slot in design.block]
        return sum(slots) / len(slots)

    @property
    def trial_design(self) -> Design:
        """The design of every trial, without its seed."""
        return planning.design_of(self.of(InventoryServer(dsn="")))


@dataclass(frozen=True)
class Prepared:
    """A fleet weighing that can begin: the servers that are ready, and what they do now."""

    request: FleetRequest
    directory: FleetDirectory | None  # None: not made yet
    weighings: Mapping[str, ServerWeighing]
    traffic: Mapping[str, ServerTraffic]
    unready: Mapping[str, str]
    guard: FleetGuard

    def description(self) -> list[str]:
        """What will be done, and what it risks, line by line."""
        design = self.request.design
        ordered = stages.order(self.traffic)
        plan = stages.plan(ordered, design.duration_s, design.participation, design.canary_s)
        exposed = stages.exposures(
            plan, self.traffic, self.request.instrumented, design.lease_s, design.at_once
        )
        rate = sum(each.transactions_per_s for each in self.traffic.values())
        lines = [
            f"{counted(len(ordered), 'server')}, {rate:,.0f} transactions/s in all; "
            f"canary: {ordered[0]}",
        ]
        for each in exposed:
            stage = each.stage
            lines.append(
                f"stage {stage.name}: {counted(len(stage.servers), 'server')}, "
                f"{100 * stage.participation:g} % of the sessions"
                f"{'' if stage.last else ', one at least'}, {stage.seconds:.0f} s: "
                f"{each.transactions:,.0f} transactions with an instrument on at most"
            )
        worst = max(each.cut_off for each in exposed)
        lines += [
            self.guard.description(),
            f"worst case if nothing stops it: {sum(each.transactions for each in exposed):,.0f} "
            "transactions with an instrument on, at these rates",
            f"if this command is cut off, every trial ends by itself within {design.lease_s:g} s: "
            f"{worst:,.0f} such transactions at most",
            f"about {seconds(round(sum(stage.lasts_s(design.at_once) for stage in plan)))} in all",
        ]
        shorts = {name: self.weighings[name].too_short for name in ordered}
        lines += [f"{name}: {short}" for name, short in shorts.items() if short]
        lines += [f"left out: {name}: {why}" for name, why in self.unready.items()]
        return lines


def prepare(request: FleetRequest) -> Prepared:
    """Look at the servers, all at once. Changes nothing there.

    Raises UsageError if one is not ready, unless the request skips such, if none is, or if they
    take more open files than this process may have.
    """
    _ = request.trial_design  # contradictions show before anything is begun
    directory = None
    servers = dict(request.inventory.servers)
    if request.resumed:
        directory = FleetDirectory.resume(request.out)
        servers = _left(directory.state, servers, request.out)
    else:
        artefact.check_new(request.out, WEIGHING)
    wanted, most = len(servers) + _OTHER_FILES, files.raise_descriptor_limit()
    if most < wanted:
        raise UsageError(
            f"{counted(len(servers), 'server')} take up to {wanted} open files and this "
            f"process may have {most}: raise its hard limit, as root may (`ulimit -Hn {wanted}`)"
        )
    weighings = {name: ServerWeighing(name, request.of(server)) for name, server in servers.items()}
    outcomes = parallel.for_each(
        servers, lambda name: weighings[name].look(), at_once=32, limit_s=_LOOK_LIMIT_S
    )
    traffic = {
        name: replace(outcome.answer, weight=servers[name].weight)
        for name, outcome in outcomes.items()
        if outcome.answer is not None
    }
    unready = {name: each.problem for name, each in outcomes.items() if name not in traffic}
    if not traffic or (unready and not request.skip_unready):
        for weighing in weighings.values():
            weighing.close()
        raise _not_ready(unready, len(servers))
    samples = {name: weighings[name].sample for name in traffic}
    labels = {name: servers[name].labels for name in traffic}
    loads = {name: each[LOAD_LABEL] for name, each in labels.items() if LOAD_LABEL in each}
    guard = FleetGuard(samples, loads, limits_of(request.design.harm_pct / 100))
    return Prepared(request, directory, weighings, traffic, unready, guard)


def limits_of(harm: float) -> HarmLimits:
    """What the guard tolerates. A harm of 25 % allows twice the odds of a slow transaction."""
    return HarmLimits(body=harm, tail=1 + 4 * harm)


def run(prepared: Prepared, console: Console, command: list[str]) -> FleetDirectory:
    """Weigh. What was measured is in the directory, whatever ended it.

    Raises MeasurementError if no server is left, or an early stage lost one or saw too little.
    """
    request = prepared.request
    directory = prepared.directory or FleetDirectory.create(
        request.out,
        FleetState(
            command=command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            design=request.design,
            servers=servers_of(request.inventory.servers),
        ),
    )
    state = directory.state
    state.ended_by, state.breach = "", None
    for server in state.servers:
        if server.state != "done":
            server.state, server.reason = "waiting", ""
        if server.name in prepared.unready:
            server.state, server.reason = "lost", prepared.unready[server.name]
        if server.name in prepared.traffic:
            server.transactions_per_s = prepared.traffic[server.name].transactions_per_s
    directory.save()
    weighings = {name: prepared.weighings[name] for name in prepared.traffic}
    try:
        Coordinator(directory, weighings, prepared.traffic, prepared.guard, console, command).run()
    finally:
        directory.release()
    return directory


def _left(
    state: FleetState, servers: Mapping[str, InventoryServer], out: Path
) -> dict[str, InventoryServer]:
    """The servers that are still to be weighed. Raises UsageError if there is none."""
    missing = [server.name for server in state.servers if server.name not in servers]
    if missing:
        raise UsageError(
            f"{out} is of a fleet with {missing[0]}, which --inventory does not name: give the "
            "inventory that it was begun with"
        )
    left = [server.name for server in state.servers if server.state != "done"]
    if not left:
        raise UsageError(f"{out} is complete: pgtare fleet report {out} shows it")
    return {name: servers[name] for name in left}


def _not_ready(unready: Mapping[str, str], of: int) -> PgtareError:
    said = "; ".join(f"{name}: {why}" for name, why in unready.items())
    kind = MeasurementError if len(unready) == of else UsageError
    return kind(
        f"{len(unready)} of {of} servers cannot be weighed ({said}): `pgtare fleet check` shows "
        "what to do, and --skip-unready weighs the others"
    )
