"""Of many sessions not every sample is computed with, and no time of them is lost."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from pgtare.keeping.agent.server_findings import ServerFindings
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.observing.findings.statement_texts import TextFile


def row(pid: int) -> tuple[Any, ...]:
    """A session on a processor, as the query has it."""
    return (
        *(1_800_000_000_000_000, pid, 1, 10, "shop", 5, "app", "web", "client backend"),
        *("active", None, None, 7, 1, 1, 1, None, None),
    )


@pytest.mark.parametrize(("sessions", "most"), [(10, 20), (150, 20), (500, 5), (2000, 4)])
def test_one_of_a_group_counts_for_all_of_it(sessions: int, most: int) -> None:
    findings = ServerFindings(None, TextFile())
    rows = [row(pid) for pid in range(sessions)]
    for second in range(20):
        findings.see(cast(ServerSession, None), rows, 1_000.0 + second, 1.0)
    assert len(findings.samples) == most
    assert sum(sample.weight_s for sample in findings.samples) == 20.0
    assert {len(sample.sessions) for sample in findings.samples} == {sessions}


@pytest.mark.parametrize(("burst", "every"), [(300, 2), (300, 7)])
def test_a_burst_of_sessions_is_neither_missed_nor_always_the_one(burst: int, every: int) -> None:
    random.seed(1)
    findings = ServerFindings(None, TextFile())
    quiet, busy = ([row(pid) for pid in range(n)] for n in (10, burst))
    seen_s = counted = 0.0
    seconds = 600 * every
    for second in range(seconds):
        rows = quiet if second % every else busy
        findings.see(cast(ServerSession, None), rows, 1_000.0 + second, 1.0)
        while findings.samples:
            sample = findings.samples.popleft()
            findings._seen_at.popleft()
            seen_s += sample.weight_s
            counted += sample.weight_s * len(sample.sessions)
    truth = (burst + 10 * (every - 1)) / every
    assert counted / seen_s == pytest.approx(truth, rel=0.1)


def test_counters_of_another_time_say_nothing_of_these_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are read once a minute, perhaps, or were read before a pile-up began."""
    now = [1000.0]
    monkeypatch.setattr("pgtare.keeping.agent.server_findings.time.monotonic", lambda: now[0])
    findings = ServerFindings(None, TextFile())
    assert findings._counted(20.0) is None
    for _ in range(3):
        now[0] += 10
        findings.count(10.0, {"Lock/tuple": 5.0})
    assert findings._counted(20.0) == {"Lock/tuple": 10.0}
    now[0] += 21
    assert findings._counted(20.0) is None
    findings.count(60.0, {"Lock/tuple": 5.0})
    assert findings._counted(20.0) is None
