"""What a fleet weighing says before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.estimate.fleet.guard import HarmLimits
from pgtare.postgres.inventory import Inventory, InventoryServer
from pgtare.weighing.fleet.fleet_guard import FleetGuard
from pgtare.weighing.fleet.run import FleetRequest, Prepared, prepare
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


def test_a_fleet_that_takes_too_many_open_files_is_refused_before_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pgtare.kit.files.raise_descriptor_limit", lambda: 101)
    servers = {name: InventoryServer(dsn=f"host={name}") for name in "ab"}
    design = DESIGN.model_copy(update={"instruments": [], "inject_ns": [1000]})
    with pytest.raises(UsageError, match=r"2 servers take up to 102 open files and .* have 101"):
        prepare(FleetRequest(Inventory(servers=servers), design, (), tmp_path / "out"))
