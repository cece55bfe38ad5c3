"""How the coordinator writes down what became of a server."""

from __future__ import annotations

import io
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from pgtare.errors import MeasurementError
from pgtare.estimate.fleet.guard import HarmLimits
from pgtare.estimate.trial.observations import empty
from pgtare.weighing.fleet import stages
from pgtare.weighing.fleet.coordinator import Coordinator, _Job
from pgtare.weighing.fleet.directory import FleetDirectory
from pgtare.weighing.fleet.fleet_guard import BaseSample, FleetGuard
from pgtare.weighing.fleet.server_weighing import ServerWeighing, TrialEnd, Watcher
from pgtare.weighing.fleet.stages import ServerTraffic, Stage
from pgtare.weighing.fleet.state import FleetServerState, FleetState
from pgtare.weighing.weigh.recording import Halt
from tests.fleet_data import DESIGN
from tests.sessions import eventually

LAST = stages.Stage("all", ("a",), 1.0, 60.0, last=True)


def coordinator(path: Path) -> Coordinator:
    """Of a fleet of one server, which is not asked anything."""
    servers = [FleetServerState(name="a", labels={})]
    state = FleetState(command=["pgtare"], created="2026-01-01", design=DESIGN, servers=servers)
    guard = FleetGuard({}, {}, HarmLimits())
    console = Console(file=io.StringIO())
    directory = FleetDirectory.create(path, state)
    weighings = {"a": Mock(spec=ServerWeighing)}
    return Coordinator(directory, weighings, {}, guard, console, ["pgtare"])


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


def test_no_rows_of_a_server_are_kept_once_its_trial_has_ended(tmp_path: Path) -> None:
    made = coordinator(tmp_path / "x")
    made.guard._pending["a"] = empty()
    job = _Job(made, "a", LAST)
    job.end = TrialEnd(500, 0.0)
    made._ended(job)
    assert made.guard._pending == {}


@pytest.mark.parametrize(("whole", "trouble"), [(True, ""), (False, "the connection was lost")])
def test_a_server_that_needs_no_trial_any_more_keeps_no_connection(
    tmp_path: Path, whole: bool, trouble: str
) -> None:
    """A thousand take as many open files as a process usually may have."""
    made = coordinator(tmp_path / "x")
    job = _Job(made, "a", LAST)
    job.end, job.whole = TrialEnd(500, 0.0, trouble), whole
    made._ended(job)
    close = made.weighings["a"].close
    assert isinstance(close, Mock)
    eventually(lambda: close.called, 5)


class Crashing(ServerWeighing):
    """A server that what is weighed ends. exposed: names of those that had a trial."""

    def __init__(self, name: str, exposed: list[str]) -> None:
        self.name, self.exposed = name, exposed

    def trial(self, stage: Stage, traffic: ServerTraffic, halt: Halt, watcher: Watcher) -> TrialEnd:
        self.exposed.append(self.name)
        return TrialEnd(5, time.monotonic(), "the connection was lost")

    def weighing(self, command: list[str]) -> None:
        return None

    def close(self) -> None:
        pass


def test_a_canary_that_its_trial_ends_is_not_followed_by_another(tmp_path: Path) -> None:
    """Else an instrument that ends servers would end all of them, one after the other."""
    names, exposed = ("a", "b", "c"), list[str]()
    servers = [FleetServerState(name=name, labels={}) for name in names]
    state = FleetState(command=["pgtare"], created="2026-01-01", design=DESIGN, servers=servers)
    directory = FleetDirectory.create(tmp_path / "x", state)
    made = Coordinator(
        directory,
        {name: Crashing(name, exposed) for name in names},
        {name: ServerTraffic(100.0, 4, 1.0) for name in names},
        FleetGuard(dict.fromkeys(names, BaseSample.of(empty())), {}, HarmLimits()),
        Console(file=io.StringIO()),
        ["pgtare"],
    )
    with pytest.raises(MeasurementError, match=r"canary lost 1 server \(a: the connection"):
        made.run()
    assert exposed == ["a"]
    assert [server.state for server in state.servers] == ["lost", "waiting", "waiting"]
    assert state.ended_by == "blind"
