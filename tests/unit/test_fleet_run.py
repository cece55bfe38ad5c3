"""What a fleet weighing says before it begins."""

from __future__ import annotations

from pathlib import Path

from pgtare.estimate.fleet.guard import HarmLimits
from pgtare.postgres.inventory import Inventory, InventoryServer
from pgtare.weighing.fleet.fleet_guard import FleetGuard
from pgtare.weighing.fleet.run import FleetRequest, Prepared
from pgtare.weighing.fleet.server_weighing import ServerWeighing
from pgtare.weighing.fleet.stages import ServerTraffic
from tests.fleet_data import DESIGN


def test_sessions_that_are_too_short_are_in_the_plan() -> None:
    server = InventoryServer(dsn="host=db1")
    design = DESIGN.model_copy(update={"instruments": [], "inject_ns": [1000]})
    request = FleetRequest(Inventory(servers={"a": server}), design, (), Path("out"))
    weighing = ServerWeighing("a", request.of(server))
    weighing.too_short = "Sessions of this database run 9 transactions on the mean."
    guard = FleetGuard({"a": weighing.sample}, {}, HarmLimits())
    traffic = {"a": ServerTraffic(10, 1, 1)}
    lines = Prepared(request, None, {"a": weighing}, traffic, {}, guard).description()
    assert f"a: {weighing.too_short}" in lines
