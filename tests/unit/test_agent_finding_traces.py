"""For which findings an agent has traces kept, of which sessions, and how often."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from pgtare.errors import MeasurementError
from pgtare.keeping.agent import finding_traces
from pgtare.keeping.agent.finding_traces import TracesAsked
from pgtare.keeping.agent.server_session import LookRefused, ServerGone
from pgtare.observing.findings.model import ACTIVE, LIMIT, Finding, Who


class AnsweringSession:
    """A session whose server keeps what it is asked for. error: or that is what comes of it."""

    def __init__(
        self, *, keep: str | None = "public", error: MeasurementError | None = None
    ) -> None:
        self.offer = SimpleNamespace(keep=keep, keep_grant="GRANT …;", trace="public")
        self.asked: list[tuple[list[int], str]] = []
        self.error = error

    @contextlib.contextmanager
    def look(self, name: str, limit_s: float) -> Iterator[None]:
        yield

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        if self.error is not None:
            raise self.error
        if not values:
            return [(True,)]
        pids, label = values
        self.asked.append((pids, label))
        return [(pid, n, f"kept-{n}", None) for n, pid in enumerate(pids[:-1])] + [
            (pids[-1], None, None, "the session is not traced")
        ]


def a_finding(class_: int = ACTIVE, root: Who | None = None, kind: str = "lock") -> Finding:
    started = datetime(2026, 11, 28, 7, tzinfo=UTC)
    return Finding(
        key="lock/1",
        kind=kind,
        class_=class_,
        level="warning",
        root=root or Who(pid=1, started=started, application="token=s3cret/../x"),
        gate=Who(pid=9),
        victims=[2, 3, 4, 5, 6, 7],
        title="",
        evidence=[],
        why="",
        remedy=[],
        sure="certain",
        because="",
    )


def test_root_gate_and_the_first_victims_by_a_label_of_no_client() -> None:
    session: Any = AnsweringSession()
    found = TracesAsked().keep(session, a_finding())
    assert session.asked == [([1, 9, 2, 3, 4, 5], "lock:1@1795849200")]
    assert found is not None
    assert [one.pid for one in found.kept] == [1, 9, 2, 3, 4]
    assert found.missing == "no trace of 5: the session is not traced"


@pytest.mark.parametrize("finding", [a_finding(LIMIT), a_finding(root=Who(gid="prepared"))])
def test_no_trace_without_a_session_that_holds_others_up(finding: Finding) -> None:
    session: Any = AnsweringSession()
    assert TracesAsked().keep(session, finding) is None
    assert session.asked == []


def test_a_few_in_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(finding_traces.time, "monotonic", lambda: now)
    session: Any = AnsweringSession()
    traces = TracesAsked()
    for _ in range(5):
        last = traces.keep(session, a_finding())
    assert len(session.asked) == 3
    assert last is not None
    assert "3 findings" in last.missing
    now += 3601
    traces.keep(session, a_finding())
    assert len(session.asked) == 4


def test_what_it_may_not_ask_for() -> None:
    stranger: Any = AnsweringSession(keep=None)
    found = TracesAsked().keep(stranger, a_finding())
    assert found is not None
    assert found.missing.endswith("GRANT …;")
    stranger.offer.keep_grant = None  # there is no such function
    assert TracesAsked().keep(stranger, a_finding()) is None


@pytest.mark.parametrize("keep", ["public", None])
@pytest.mark.parametrize(
    "error", [LookRefused("permission denied", lasting=True), ServerGone("the session ended")]
)
def test_findings_go_on_if_no_trace_can_be_asked_for(
    error: MeasurementError, keep: str | None
) -> None:
    """What opened and closed at the same evaluation has not been handed on yet."""
    session: Any = AnsweringSession(keep=keep, error=error)
    assert TracesAsked().keep(session, a_finding()) is None
