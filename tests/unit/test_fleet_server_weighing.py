"""What the trials of one server are drawn by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import psycopg
import pytest

from pgtare.estimate.trial.observations import OBSERVATION
from pgtare.weighing.fleet.server_weighing import LEASE, ServerWeighing
from pgtare.weighing.fleet.stages import ServerTraffic, Stage
from pgtare.weighing.weigh import recording
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


def made(monkeypatch: pytest.MonkeyPatch, record: Callable[..., TrialRecording]) -> ServerWeighing:
    """One whose trials record these; there is no server."""
    monkeypatch.setattr("pgtare.weighing.weigh.plan.make_plan", Mock())
    monkeypatch.setattr("pgtare.weighing.weigh.recording.record", record)
    monkeypatch.setattr("pgtare.weighing.fleet.server_weighing.Measurement", Mock())
    weighing = ServerWeighing("a", Request(chosen=(), inject_ns=(1000,), dsn=""))
    weighing._module, weighing._info = Mock(), Mock()
    return weighing


@pytest.mark.parametrize("last", [False, True])
def test_a_stage_before_the_last_is_never_whole(
    monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """If a guard breaches as it ends, what it gave is kept, but replaces nothing better."""
    halt = Halt()

    def record(*_: object, **__: object) -> TrialRecording:
        halt.set()
        return TrialRecording(np.zeros(9, OBSERVATION), 5.0, "time", None)

    weighing = made(monkeypatch, record)
    weighing.trial(Stage("x", ("a",), 1.0, 5.0, last), ServerTraffic(9.0, 1, 1.0), halt, Mock())
    measurement = weighing._measurement
    assert isinstance(measurement, Mock)
    (got,) = measurement.end.call_args.args
    assert got.stopped_by == ("time" if last else "interrupt")


def test_a_session_that_is_slower_than_most_has_time_to_take_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One fast session among slow ones makes the mean rate that of none of them."""
    given_up = list[float]()

    def record(
        *_: object, tick: Callable[[float, int], None], halt: Halt, **__: object
    ) -> TrialRecording:
        seconds = 0
        while not halt.wanted and seconds < 60:
            seconds += 1
            tick(seconds, 0)
        given_up.append(seconds)
        return TrialRecording(np.zeros(0, OBSERVATION), seconds, "interrupt", None)

    weighing = made(monkeypatch, record)
    weighing.sample = replace(weighing.sample, per_s={1: 500.0, **dict.fromkeys(range(2, 22), 0.5)})
    traffic = ServerTraffic(510.0, 21, 1.0)
    end = weighing.trial(Stage("canary", ("a",), 0.01, 60.0), traffic, Halt(), Mock())
    assert (end.transactions, end.trouble) == (0, "")
    assert given_up == [*[7] * 7, 60]


def test_a_server_that_goes_away_as_its_trial_begins_is_lost_in_it() -> None:
    """Else the next server would be the canary of what has ended this one."""
    trials = Mock()
    trials.renew.side_effect = psycopg.OperationalError("the connection is lost")
    got = recording.record(
        trials,
        Mock(),
        Mock(),
        60.0,
        cpu=False,
        load=None,
        look=None,
        tick=Mock(),
        lease=LEASE,
    )
    assert (got.trouble, got.stopped_by) == ("the connection is lost", "server")
