"""How the coordinator writes down what became of a server."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from pgtare.estimate.fleet.guard import HarmLimits
from pgtare.weighing.fleet import stages
from pgtare.weighing.fleet.coordinator import Coordinator, _Job
from pgtare.weighing.fleet.directory import FleetDirectory
from pgtare.weighing.fleet.fleet_guard import FleetGuard
from pgtare.weighing.fleet.server_weighing import TrialEnd
from pgtare.weighing.fleet.state import FleetServerState, FleetState
from tests.fleet_data import DESIGN

LAST = stages.Stage("all", ("a",), 1.0, 60.0, last=True)


def coordinator(path: Path) -> Coordinator:
    """Of a fleet of one server, which is not asked anything."""
    servers = [FleetServerState(name="a", labels={})]
    state = FleetState(command=["pgtare"], created="2026-01-01", design=DESIGN, servers=servers)
    guard = FleetGuard({}, {}, HarmLimits())
    console = Console(file=io.StringIO())
    return Coordinator(FleetDirectory.create(path, state), {}, {}, guard, console, ["pgtare"])


def test_a_server_that_was_weighed_to_its_end_is_done_though_all_is_stopped(tmp_path: Path) -> None:
    """Otherwise --resume would weigh it again."""
    made = coordinator(tmp_path / "x")
    made.halt.set()
    for whole, state in ((True, "done"), (False, "stopped")):
        job = _Job(made, "a", LAST)
        job.end = TrialEnd(500, 0.0)
        job.kept, job.whole = True, whole
        made._ended(job)
        assert made.directory.state.of("a").state == state
