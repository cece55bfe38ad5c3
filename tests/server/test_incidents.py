"""Incidents while the recorder is on: what is known of them afterwards, one run of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from bench import incident_stage
from bench.incident_stage import Named, Stage

from pgtare.postgres.binaries import Binaries

#: What takes ten seconds and more
LONG = (incident_stage.eviction_storm, incident_stage.one_in_many, incident_stage.slow_fsync)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def stage(wheel: Binaries) -> Iterator[Stage]:
    with incident_stage.stage(wheel, one_in=20_000) as found:
        yield found


@pytest.mark.parametrize(
    "happen",
    [
        pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] if one in LONG else [])
        for one in incident_stage.INCIDENTS
    ],
)
def test_cause_victim_and_blocker_are_named(stage: Stage, happen: Callable[[Stage], Named]) -> None:
    stage.forget()
    named = happen(stage)
    assert named.all, named
