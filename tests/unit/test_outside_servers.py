"""What is told of servers that are compared, and of their replicas."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from pgtare.estimate.trial.bursts import RUN
from pgtare.kit.option_values import LONGEST_S
from pgtare.postgres import pooler
from pgtare.weighing.outside import recording, servers
from pgtare.weighing.outside.servers import FoundServer, infos
from pgtare.weighing.weigh.report import wording
from pgtare.weighing.weigh.request import Request, ServerAddress


def found(name: str, **settings: str) -> FoundServer:
    return FoundServer(name, "18.6", False, "7", "now", settings)


def test_settings_that_only_one_server_shows_come_last() -> None:
    """They may be of another version, or hidden from the role."""
    told = infos(
        [
            found("a", allow_alter_system="on", jit="on", work_mem="4 MB", port="1"),
            found("b", jit="off", work_mem="8 MB", port="1"),
        ]
    )
    assert list(told[0].settings) == ["jit", "work_mem", "allow_alter_system"]
    listed = "jit (on / off), work_mem (4 MB / 8 MB), allow_alter_system (on / –)"
    assert wording._differing(told) == f"Their settings differ: {listed}."


def test_a_longer_trial_has_more_sessions() -> None:
    """They differ for as long as they last: the same number of longer ones tells no more."""

    def sessions(duration_s: float) -> float:
        pair = (ServerAddress("a", "dbname=a"), ServerAddress("b", "dbname=b"))
        request = Request(chosen=(), servers=pair, outside=True, duration_s=duration_s)
        return duration_s / servers.epoch_s(request)

    assert [sessions(seconds) for seconds in (60.0, 600.0)] == [60, 600]
    assert sessions(LONGEST_S) < np.iinfo(RUN["epoch"]).max


def test_a_replica_that_was_late_before_may_be_so_and_one_that_falls_behind_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lags: list[tuple[int, float]] = []
    monkeypatch.setattr(pooler, "rows", lambda *_: lags)
    state = recording._State(cast(Any, None), {"a": cast(Any, None)}, 0.0, lambda: True)
    for now in (
        [(1, 3600.0), (2, 0.0)],
        [(1, 3609.0), (2, 9.0)],
        [(1, 3600.0), (3, 300.0)],  # a new one is late, too
        [(1, 3600.0), (3, 309.0)],
    ):
        lags[:] = now
        state.check_replicas()
    lags[:] = [(1, 3600.0), (2, 11.0), (3, 0.0)]
    with pytest.raises(recording._Harm, match="a replica of a is 11 s behind"):
        state.check_replicas()


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        ({"a": 0, "b": 0}, None),
        ({"a": 1, "b": 0}, "the lag of standbys of a is not watched: this role may not see it"),
        ({"": 2}, "the lag of standbys is not watched: this role may not see it"),
    ],
)
def test_a_role_that_may_not_see_the_lag_of_standbys_is_named(
    monkeypatch: pytest.MonkeyPatch, hidden: dict[str, int], words: str | None
) -> None:
    monkeypatch.setattr(pooler, "rows", lambda conn, _: [(hidden[conn],)])
    controls: Any = {name: name for name in hidden}
    found = recording.unwatched(controls)
    assert found == () if words is None else found[0].startswith(words)
