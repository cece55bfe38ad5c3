"""Every SQL function of the modules, with arbitrary arguments, called by ordinary roles."""

from __future__ import annotations

import pytest
from bench import functions

from pgtare.postgres.binaries import Binaries
from tests.servers import SLOWLY_ON_15, stopped_at_once, with_everything

_ODD = b"""CREATE FUNCTION sql_trace_odd() RETURNS int LANGUAGE plpgsql
AS $$BEGIN RAISE 'oh' USING ERRCODE = 'XX000'; END$$"""

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.mark.parametrize("fixture", SLOWLY_ON_15)
def test_the_server_goes_on(fixture: str, request: pytest.FixtureRequest) -> None:
    binaries: Binaries = request.getfixturevalue(fixture)
    with stopped_at_once(with_everything(binaries, functions.SETTINGS)) as cluster:
        calls = functions.attack(cluster, seed=11, most=700)
    assert calls.wrong == []
    assert calls.outcomes["answers"] > 250
    assert calls.outcomes["42501"] > 100
    assert len(calls.answered) > 25


def test_an_internal_error_is_found(wheel: Binaries) -> None:
    with stopped_at_once(with_everything(wheel, functions.SETTINGS)) as cluster:
        with cluster.connect() as admin:
            admin.execute(_ODD)
        calls = functions.attack(cluster, seed=11, most=700, only="sql_trace_odd")
    assert len(calls.wrong) == 1
    assert ": XX000" in calls.wrong[0]
