"""What the trials of one server are drawn by."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from pgtare.weighing.fleet.server_weighing import ServerWeighing
from pgtare.weighing.fleet.stages import Stage
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
