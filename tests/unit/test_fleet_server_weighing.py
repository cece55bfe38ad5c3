"""What the trials of one server are drawn by."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from pgtare.estimate.trial.observations import OBSERVATION
from pgtare.weighing.fleet.server_weighing import ServerWeighing
from pgtare.weighing.fleet.stages import ServerTraffic, Stage
from pgtare.weighing.weigh.recording import Halt, TrialRecording
from pgtare.weighing.weigh.request import Request


@pytest.mark.parametrize("last", [False, True])
def test_a_resumed_canary_draws_other_sessions(last: bool) -> None:
    """What is estimated is drawn as the fleet's seed says."""
    request = Request(chosen=(), inject_ns=(1000,), seed=7, dsn="")
    stage = Stage("canary", ("a",), 0.01, 5.0, last)
    one, other = (ServerWeighing("a", request)._seed_of(stage) for _ in range(2))
    assert (one == other) == last


def test_what_a_server_gave_is_not_kept_once_it_was_taken() -> None:
    weighing = ServerWeighing("a", Request(chosen=(), inject_ns=(1000,), dsn=""))
    weighing._measurement = Mock()
    assert weighing.weighing([]) is not None
    assert weighing.weighing([]) is None


@pytest.mark.parametrize("last", [False, True])
def test_a_stage_before_the_last_is_never_whole(
    monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """If a guard breaches as it ends, what it gave is kept, but replaces nothing better."""
    halt = Halt()

    def record(*_: object, **__: object) -> TrialRecording:
        halt.set()
        return TrialRecording(np.zeros(9, OBSERVATION), 5.0, "time", None)

    monkeypatch.setattr("pgtare.weighing.weigh.plan.make_plan", Mock())
    monkeypatch.setattr("pgtare.weighing.weigh.recording.record", record)
    monkeypatch.setattr("pgtare.weighing.fleet.server_weighing.Measurement", Mock())
    weighing = ServerWeighing("a", Request(chosen=(), inject_ns=(1000,), dsn=""))
    weighing._module, weighing._info = Mock(), Mock()
    weighing.trial(Stage("x", ("a",), 1.0, 5.0, last), ServerTraffic(9.0, 1, 1.0), halt, Mock())
    measurement = weighing._measurement
    assert isinstance(measurement, Mock)
    (got,) = measurement.end.call_args.args
    assert got.stopped_by == ("time" if last else "interrupt")
