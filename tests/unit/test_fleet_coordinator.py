"""How the coordinator writes down what became of a server."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from pgtare.errors import DiskFull, MeasurementError
from pgtare.estimate.fleet.guard import HarmLimits
from pgtare.estimate.trial.observations import empty
from pgtare.weighing.fleet import stages
from pgtare.weighing.fleet.coordinator import Coordinator, _Job
from pgtare.weighing.fleet.directory import FleetDirectory
from pgtare.weighing.fleet.fleet_guard import BaseSample, FleetGuard
from pgtare.weighing.fleet.server_weighing import Seen, ServerWeighing, TrialEnd
from pgtare.weighing.fleet.stages import ServerTraffic, Stage
from pgtare.weighing.fleet.state import FleetServerState, FleetState
from pgtare.weighing.weigh.measurement import Weighing
from pgtare.weighing.weigh.recording import Halt
from tests.fleet_data import DESIGN
from tests.sessions import eventually

LAST = stages.Stage("all", ("a",), 1.0, 60.0, last=True)


def coordinator(path: Path, weighings: Mapping[str, ServerWeighing] | None = None) -> Coordinator:
    """Of a fleet; if nothing else is said of one server, which is not asked anything."""
    weighings = weighings or {"a": Mock(spec=ServerWeighing)}
    servers = [FleetServerState(name=name, labels={}) for name in weighings]
    state = FleetState(command=["pgtare"], created="2026-01-01", design=DESIGN, servers=servers)
    guard = FleetGuard(dict.fromkeys(weighings, BaseSample.of(empty())), {}, HarmLimits())
    console = Console(file=io.StringIO())
    directory = FleetDirectory.create(path, state)
    traffic = dict.fromkeys(weighings, ServerTraffic(100.0, 4, 1.0))
    return Coordinator(directory, weighings, traffic, guard, console, ["pgtare"])


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
    eventually(lambda: close.called)


class Crashing(ServerWeighing):
    """A server that what is weighed ends. exposed: names of those that had a trial."""

    def __init__(self, name: str, exposed: list[str]) -> None:
        self.name, self.exposed = name, exposed

    def trial(self, stage: Stage, traffic: ServerTraffic, halt: Halt, seen: Seen) -> TrialEnd:
        self.exposed.append(self.name)
        return TrialEnd(5, time.monotonic(), "the connection was lost")

    def weighing(self, command: list[str]) -> Weighing | None:
        return None

    def close(self) -> None:
        pass


def test_a_canary_that_its_trial_ends_is_not_followed_by_another(tmp_path: Path) -> None:
    """Else an instrument that ends servers would end all of them, one after the other."""
    names, exposed = ("a", "b", "c"), list[str]()
    made = coordinator(tmp_path / "x", {name: Crashing(name, exposed) for name in names})
    state = made.directory.state
    with pytest.raises(MeasurementError, match=r"canary lost 1 server \(a: the connection"):
        made.run()
    assert exposed == ["a"]
    assert [server.state for server in state.servers] == ["lost", "waiting", "waiting"]
    assert state.ended_by == "blind"


class Steady(Crashing):
    """A server whose trials give something, after a while or when they are stopped."""

    def trial(self, stage: Stage, traffic: ServerTraffic, halt: Halt, seen: Seen) -> TrialEnd:
        self.exposed.append(self.name)
        halt.wait(0.1 if self.name == "a" else 80.0)
        return TrialEnd(5, time.monotonic())

    def weighing(self, command: list[str]) -> Weighing | None:
        return Mock()


def test_a_full_disk_stops_all_and_loses_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each further server would be weighed for nothing."""
    exposed = list[str]()
    made = coordinator(tmp_path / "x", {name: Steady(name, exposed) for name in "abc"})
    made.directory.state.design = DESIGN.model_copy(update={"at_once": 2})
    monkeypatch.setattr(made.directory, "keep", Mock(side_effect=DiskFull("no room: free some")))
    began = time.monotonic()
    with pytest.raises(DiskFull, match=r"no room: free some; then --resume .*/x goes on"):
        made._stage(Stage("all", ("a", "b", "c"), 1.0, 60.0, last=True), 1)
    assert time.monotonic() - began < 60
    assert sorted(exposed) == ["a", "b"]  # side by side
    saved = FleetDirectory.open(tmp_path / "x").state.servers
    assert [server.state for server in saved] == ["stopped", "stopped", "waiting"]
    assert saved[0].reason == "no room: free some"


def test_trials_are_stopped_and_waited_for_if_the_state_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed = list[str]()
    made = coordinator(tmp_path / "x", {name: Steady(name, exposed) for name in "bc"})
    monkeypatch.setattr(made.directory, "keep", Mock(return_value=True))
    monkeypatch.setattr(
        made.directory, "save", Mock(side_effect=[None, MeasurementError("I/O error"), None])
    )
    ended = Mock(wraps=made._ended)
    monkeypatch.setattr(made, "_ended", ended)
    with pytest.raises(MeasurementError, match="I/O error"):
        made._stage(Stage("all", ("b", "c"), 1.0, 60.0, last=True), 1)
    assert exposed == ["b"]
    assert ended.call_count == 1


class Quiet(Crashing):
    """A server of which nobody takes part before the last stage; c's sessions do."""

    def trial(self, stage: Stage, traffic: ServerTraffic, halt: Halt, seen: Seen) -> TrialEnd:
        self.exposed.append(f"{stage.name} {self.name}")
        return TrialEnd(5 if stage.last or self.name == "c" else 0, time.monotonic())

    def weighing(self, command: list[str]) -> Weighing | None:
        found = Mock()
        found.result.design.stopped_by = "time"
        return found


def test_a_canary_that_shows_nothing_is_passed_over_and_weighed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed = list[str]()
    made = coordinator(tmp_path / "x", {name: Quiet(name, exposed) for name in "abc"})
    monkeypatch.setattr(made.directory, "keep", Mock(return_value=True))
    monkeypatch.setattr(made.guard, "blind", Mock(return_value=""))
    made.run()
    assert exposed[:3] == ["canary a", "canary b", "canary c"]
    assert sorted(exposed[3:]) == ["all a", "all b", "all c", "few a", "few c"]
    assert [server.state for server in made.directory.state.servers] == ["done"] * 3
    assert made.directory.state.ended_by == "time"


def test_a_server_that_was_passed_over_and_weighed_is_done_though_the_others_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(Quiet):
        def trial(self, stage: Stage, traffic: ServerTraffic, halt: Halt, seen: Seen) -> TrialEnd:
            end = super().trial(stage, traffic, halt, seen)
            return replace(end, trouble="it was lost") if stage.last else end

    weighings = {"a": Quiet("a", []), "c": Lost("c", [])}
    made = coordinator(tmp_path / "x", weighings)
    monkeypatch.setattr(made.directory, "keep", Mock(return_value=True))
    monkeypatch.setattr(made.guard, "blind", Mock(return_value=""))
    made.run()
    assert [server.state for server in made.directory.state.servers] == ["done", "lost"]


def test_a_fleet_of_servers_that_show_nothing_is_not_weighed(tmp_path: Path) -> None:
    exposed = list[str]()
    made = coordinator(tmp_path / "x", {name: Quiet(name, exposed) for name in "ab"})
    with pytest.raises(MeasurementError, match="no server is left: a: none of its sessions took"):
        made.run()
    assert exposed == ["canary a", "canary b"]
    assert [server.state for server in made.directory.state.servers] == ["lost", "lost"]
