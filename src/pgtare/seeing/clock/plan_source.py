"""A plan to predict the cost of timing for: from a file, or from a server that may also run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pgtare.seeing.clock.consequences import plan_timing
from pgtare.seeing.clock.explain_timing import (
    DEFAULT_PAIRS,
    Explainer,
    Measured,
    Progress,
    explainer,
)
from pgtare.seeing.clock.plan import Plan, read_plan
from pgtare.seeing.clock.schema import ClockReport, MeasuredTiming

_ELSEWHERE = (
    "the server is on another machine: this holds if its clock costs what this machine's does"
    " (run `pgtare clock` there)"
)

#: Called with the seconds so far and a text.
Tick = Callable[[float, str], None]


@dataclass(frozen=True)
class Given:
    """The plan, how it came, and what timing it was measured to cost if it was run."""

    source: str
    plan: Plan
    major: int
    notes: tuple[str, ...] = ()
    measured: Measured | None = None
    by_counter: bool | None = None
    """Whether the server, of version 19, times by the processor's counter."""

    def predict(self, report: ClockReport) -> None:
        """Put into the report what timing this plan costs by the clocks that it holds."""
        report.plan = plan_timing(
            report, self.plan, self.major, self.source, self.notes, self.by_counter
        )
        if self.measured is not None:
            report.plan.measured = as_reported(self.measured)
            if self.measured.interrupted:
                report.stopped_by = "interrupt"


def from_file(path: Path) -> Given:
    """The plan in a file. Raises UsageError."""
    plan = read_plan(path)
    major = plan.newest_major
    note = f"the file does not tell the version of PostgreSQL; {major} was assumed"
    return Given(str(path), plan, major, (note,))


def from_server(query: str, dsn: str) -> Given:
    """The server's plan, by its estimates; the statement is not run.

    Raises UsageError or MeasurementError.
    """
    with explainer(dsn, query) as session:
        return Given(
            _one_line(query),
            session.estimate(),
            session.major,
            _notes(session),
            by_counter=session.by_counter,
        )


def run_on_server(query: str, dsn: str, tick: Tick) -> Given:
    """The plan as executed, and what timing it was measured to cost.

    After Ctrl-C the finished pairs count. Raises UsageError or MeasurementError.
    """

    def tell(progress: Progress) -> None:
        done = f"{progress.pairs} of {progress.wanted} pairs"
        tick(progress.seconds, f"{done}, about {progress.left_s:.0f} s left")

    with explainer(dsn, query) as session:
        found = session.measure(DEFAULT_PAIRS, tell)
        notes = _notes(session)
        return Given(_one_line(query), found.plan, found.major, notes, found, session.by_counter)


def _one_line(query: str) -> str:
    return " ".join(query.split())


def _notes(session: Explainer) -> tuple[str, ...]:
    return () if session.local else (_ELSEWHERE,)


def as_reported(measured: Measured) -> MeasuredTiming:
    """What was measured, as reports hold it."""
    return MeasuredTiming.model_validate(measured.as_json())
