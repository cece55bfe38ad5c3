"""What the trials of one server are drawn by."""

from __future__ import annotations

import dataclasses

import pytest

from pgtare.estimate.trial.observations import empty
from pgtare.weighing.fleet import stages
from pgtare.weighing.fleet.fleet_guard import BaseSample
from pgtare.weighing.fleet.server_weighing import ServerWeighing, traffic_per_s
from pgtare.weighing.fleet.stages import ServerTraffic, Stage
from pgtare.weighing.weigh.request import Request


@pytest.mark.parametrize("last", [False, True])
def test_a_resumed_canary_draws_other_sessions(last: bool) -> None:
    """What is estimated is drawn as the fleet's seed says."""
    request = Request(chosen=(), inject_ns=(1000,), seed=7, dsn="")
    stage = Stage("canary", ("a",), 0.01, 5.0, last)
    one, other = (ServerWeighing("a", request)._seed_of(stage) for _ in range(2))
    assert (one == other) == last


def test_our_own_look_is_no_traffic_that_makes_a_server_the_canary() -> None:
    nothing = BaseSample.of(empty())
    some = dataclasses.replace(nothing, transactions=300)
    idle, busy = (
        traffic_per_s(counted, sample, 1.0) for counted, sample in ((12, nothing), (112, some))
    )
    assert (idle, busy) == (0.0, 112.0)
    ordered = stages.order({"a": ServerTraffic(idle, 2, 1), "b": ServerTraffic(busy, 2, 1)})
    assert ordered == ["b", "a"]
    assert traffic_per_s(12, nothing, 0.01) == 12  # perhaps no session was drawn
