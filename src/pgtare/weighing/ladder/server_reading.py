"""What is read in a server at both ends of a measured stretch, and what changed in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgtare.postgres.wait_counters.model import EventRow
from pgtare.weighing.ladder import evidence
from pgtare.weighing.ladder.study_sections import Workload
from pgtare.weighing.ladder.study_servers import Serving


@dataclass(frozen=True)
class ServerReading:
    """A server's counters at one moment.

    counter: the workload's own, 0 if it has none. calm: what should stay as it is, see
    `evidence.disturbances`. events: counters of waits, None if the variant counts none. activity,
    figures: by name. refused: settings that are not in force, in words.
    """

    counter: float
    calm: Mapping[str, str]
    events: tuple[EventRow, ...] | None
    activity: Mapping[str, float]
    figures: Mapping[str, float]
    refused: tuple[str, ...]

    def disturbed(self, first: ServerReading) -> tuple[str, ...]:
        """What happened since an earlier reading that should not: a checkpoint, a restart."""
        return tuple(what for what, value in first.calm.items() if value != self.calm[what])

    def figures_since(
        self, first: ServerReading, log: Path, workload: Workload, seconds: float
    ) -> dict[str, float]:
        """What a run's figures came to: growth a second of a query, lines of the log."""
        before, after = first.figures, self.figures
        return {
            f.name: (after[f.name] - before[f.name]) / seconds
            if f.log is None
            else float(_lines(log, round(before[f.name]), round(after[f.name]), f.log))
            for f in workload.figure
        }


def read(serving: Serving, conn: psycopg.Connection[Any]) -> ServerReading:
    """Read a server. conn: a session in the workload's database, see `Serving.connect`.

    Raises MeasurementError for a query of the study that gives no number.
    """
    workload = serving.workload
    return ServerReading(
        counter=evidence.counter(conn, workload.counter, "the counter")
        if workload.counter
        else 0.0,
        calm=evidence.disturbances(conn),
        events=evidence.read_events(serving),
        activity={
            one.name: evidence.counter(conn, one.query, f"the activity {one.name}")
            for one in workload.activity
        },
        # of a query its value, of the log its length
        figures={
            figure.name: evidence.counter(conn, figure.query, f"the figure {figure.name}")
            if figure.query
            else float(serving.cluster.log_path.stat().st_size)
            for figure in workload.figure
        },
        refused=tuple(evidence.not_in_force(conn)),
    )


def _lines(log: Path, first: int, last: int, text: str) -> int:
    """Lines with this text between two places of the log."""
    with open(log, "rb") as file:
        file.seek(first)
        return sum(text.encode() in line for line in file.read(last - first).splitlines())
