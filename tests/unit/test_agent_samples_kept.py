"""Of many sessions not every sample is computed with, and no time of them is lost."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pgtare.keeping.agent.server_findings import ServerFindings
from pgtare.keeping.agent.server_session import ServerSession


def row(pid: int) -> tuple[Any, ...]:
    """A session on a processor, as the query has it."""
    return (
        *(1_800_000_000_000_000, pid, 1, 10, "shop", 5, "app", "web", "client backend"),
        *("active", None, None, 7, 1, 1, 1, None, None),
    )


@pytest.mark.parametrize(("sessions", "most"), [(10, 20), (150, 20), (500, 5), (2000, 4)])
def test_the_time_of_what_is_passed_over_is_the_next_ones(sessions: int, most: int) -> None:
    findings = ServerFindings(None)
    rows = [row(pid) for pid in range(sessions)]
    for second in range(20):
        findings.see(cast(ServerSession, None), rows, 1_000.0 + second, 1.0)
    assert len(findings.samples) == most
    assert sum(sample.weight_s for sample in findings.samples) == 20.0
    assert {len(sample.sessions) for sample in findings.samples} == {sessions}
